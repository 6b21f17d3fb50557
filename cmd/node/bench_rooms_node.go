package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"kvferry/node"
)

const (
	// roomsPatience is how long what a round has begun may take to end, and a node to
	// start: far more than on a busy machine.
	roomsPatience = time.Minute

	// roomsLeave is how long a node may take to end after its input did. After that
	// it ends at once: its parent may be gone, and nobody else would end it.
	roomsLeave = 10 * time.Second
)

// newBenchRoomsNodeCommand is one of the two nodes. It ends with its input.
func newBenchRoomsNodeCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rooms-node", Short: "Be a node of bench rooms", Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			log, err := newLogger(c, &runFlags{logLevel: "warn"})
			if err != nil {
				return err
			}
			return serveRooms(c.Context(), c.InOrStdin(), c.OutOrStdout(), log, func() { os.Exit(1) })
		},
	}
}

// roomsNode is a node and its engine, and what the orders use of them.
type roomsNode struct {
	log     *zap.Logger
	answers *json.Encoder
	orders  <-chan *roomsOrder
	count   *messageCount

	node    *node.Node
	echoes  *echoes
	cache   *cache
	prefill *node.Prefill // or
	decode  *node.Decode
}

// serveRooms carries out orders until the end of in. exit is called where the node
// does not end in order.
func serveRooms(ctx context.Context, in io.Reader, out io.Writer, log *zap.Logger, exit func()) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	orders := make(chan *roomsOrder)
	n := &roomsNode{log: log, answers: json.NewEncoder(out), orders: orders, count: &messageCount{counts: map[string]uint64{}}}
	go func() {
		decoder := json.NewDecoder(in)
		for {
			o := new(roomsOrder)
			if err := decoder.Decode(o); err != nil {
				end(fmt.Errorf("read an order: %w", err))
				time.AfterFunc(roomsLeave, exit)
				return
			}
			select {
			case orders <- o:
			case <-ctx.Done():
			}
		}
	}()
	err := n.run(ctx)
	if errors.Is(err, io.EOF) {
		err = nil // the parent is done, or gone
	}
	if err != nil {
		_ = n.answers.Encode(&roomsAnswer{Did: doFailed, Error: err.Error()}) // to nobody, perhaps
	}
	leave, cancel := context.WithTimeout(context.Background(), roomsLeave/2)
	defer cancel()
	if n.node != nil {
		err = errors.Join(err, n.node.Close(leave))
	}
	if n.echoes != nil {
		err = errors.Join(err, n.echoes.remote.Close())
	}
	return err
}

func (n *roomsNode) run(ctx context.Context) error {
	for {
		var died <-chan struct{}
		if n.node != nil {
			died = n.node.Done()
		}
		select {
		case o := <-n.orders:
			a, err := n.carryOut(ctx, o)
			if err != nil {
				return fmt.Errorf("%s: %w", o.Do, err)
			}
			a.Did = o.Do
			if err := n.answers.Encode(a); err != nil || o.Do == doStop {
				return err
			}
		case <-died:
			return n.node.Err()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (n *roomsNode) carryOut(ctx context.Context, o *roomsOrder) (*roomsAnswer, error) {
	if (n.node == nil) != (o.Do == doStart) {
		return nil, errors.New("want one start, and that first")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Duration+roomsPatience,
		fmt.Errorf("it took longer than %v", o.Duration+roomsPatience))
	defer cancel()
	switch o.Do {
	case doStart:
		return n.start(ctx, o)
	case doPair:
		if err := n.node.WaitPaired(ctx, "prefill", "decode"); err != nil {
			return nil, err
		}
		return new(roomsAnswer), nil
	case doRooms:
		return n.profiled(o, func() (*roomsAnswer, error) {
			if n.prefill != nil {
				return n.send(ctx, o)
			}
			return n.receive(ctx, o)
		})
	case doEcho:
		return n.echoes.measure(ctx, o.Peer, o.InFlight, o.Duration)
	case doUsage:
		return &roomsAnswer{CPU: usedCPU()}, nil
	case doStop:
		return new(roomsAnswer), n.stop(ctx)
	}
	return nil, errors.New("there is no such order")
}

// start starts the node and attaches its engine.
func (n *roomsNode) start(ctx context.Context, o *roomsOrder) (*roomsAnswer, error) {
	config := node.Config{
		Name: o.Role, Bind: "127.0.0.1:0", Cluster: o.Cluster, Providers: []string{o.Provider}, Log: n.log,
	}
	if o.Join != "" {
		config.Join = []string{o.Join}
	}
	var err error
	if n.echoes, err = startEchoes(n.log); err != nil {
		return nil, err
	}
	config.Embed.System, config.Embed.PeerDown = n.echoes.system, n.echoes.remote.PeerDown
	if o.Messages {
		config.Embed.Base = []actor.PropsOption{actor.WithReceiverMiddleware(n.count.middleware)}
	}
	if n.node, err = node.Start(ctx, config); err != nil {
		return nil, err
	}
	if err := n.attach(ctx, o); err != nil {
		return nil, err
	}
	return &roomsAnswer{Gossip: n.node.GossipAddress(), Remoting: n.echoes.remote.Address()}, nil
}

// stop detaches the engine. The memory goes with the process.
func (n *roomsNode) stop(ctx context.Context) error {
	if n.prefill != nil {
		return n.prefill.Detach(ctx)
	}
	return n.decode.Detach(ctx)
}
