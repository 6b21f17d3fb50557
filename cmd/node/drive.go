package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"kvferry/kv"
	"kvferry/node"
	"kvferry/transport/rdma"
)

const (
	// chunkTokens is what a prefill step computes by default, as serving engines do.
	chunkTokens = 2048

	// stopWait is how long the rooms that are open at a stop may take to end.
	stopWait = 10 * time.Second

	// roomQueue bounds the rooms that wait to be opened: the demo plays fewer.
	roomQueue = 4096
)

// drive does what the commands on in say with the node, and tells of it on out,
// until a stop, the end of in or of ctx, or the end of the node.
func drive(ctx context.Context, n *node.Node, in io.Reader, out io.Writer, log *zap.Logger) error {
	return driveEngine(ctx, realNode{n}, in, out, log)
}

// driver runs the one engine of a driven node.
//
// The goroutine of run owns what is not said to be another's. One goroutine opens
// the rooms, in the order of the commands: so all ranks of an instance give pages
// to the same rooms first, and none waits for another for ever. Each room then
// runs in a goroutine of its own.
type driver struct {
	node driveNode
	log  *zap.Logger
	ctx  context.Context // ends the waiting of rooms
	end  context.CancelCauseFunc

	attach  *driveCommand // what was attached, nil before
	cache   *cache
	memory  []*rdma.Memory
	prefill prefillEngine
	decode  decodeEngine
	queue   chan *leg      // to the opener
	opener  sync.WaitGroup // the opener, and the rooms
	pages   pageBook       // the opener's and the rooms'

	outMu sync.Mutex // orders the events of rooms
	out   *json.Encoder

	legsMu sync.Mutex // guards legs and what is in them; the opener and the rooms change it
	legs   map[uint64]*leg
}

// leg is this engine's side of a room, from its command to its event.
type leg struct {
	command *driveCommand
	ctx     context.Context // ends when the room is given up before it is open
	giveUp  context.CancelCauseFunc
	room    openRoom // nil before it is open
}

func driveEngine(ctx context.Context, n driveNode, in io.Reader, out io.Writer, log *zap.Logger) error {
	d := &driver{node: n, log: log, out: json.NewEncoder(out), legs: make(map[uint64]*leg), queue: make(chan *leg, roomQueue)}
	d.ctx, d.end = context.WithCancelCause(ctx)
	defer d.end(nil)
	commands := make(chan *driveCommand)
	read := make(chan error, 1)
	go d.read(in, commands, read)
	d.tell(&driveEvent{Event: eventReady, Name: n.Self().Name, Address: n.GossipAddress(), PID: os.Getpid()})
	err := d.run(commands, read)
	if err != nil {
		d.tell(&driveEvent{Event: eventFailed, Error: err.Error()})
	}
	return errors.Join(err, d.stop(err == nil))
}

// read passes on commands until the end of in. It may outlive the driver: a read
// of standard input cannot be interrupted.
func (d *driver) read(in io.Reader, commands chan<- *driveCommand, end chan<- error) {
	decoder := json.NewDecoder(in)
	decoder.DisallowUnknownFields()
	for {
		c := new(driveCommand)
		if err := decoder.Decode(c); err != nil {
			end <- err
			return
		}
		select {
		case commands <- c:
		case <-d.ctx.Done():
			return
		}
	}
}

// run carries out commands until a stop, which is no error.
func (d *driver) run(commands <-chan *driveCommand, read <-chan error) error {
	for {
		select {
		case c := <-commands:
			if c.Op == opStop {
				return nil
			}
			if err := d.carryOut(c); err != nil {
				return fmt.Errorf("%s: %w", c.Op, err)
			}
		case err := <-read:
			if errors.Is(err, io.EOF) {
				return nil // the demo is gone, or done
			}
			return fmt.Errorf("read a command: %w", err)
		case <-d.node.Done():
			return d.node.Err()
		case <-d.ctx.Done():
			return nil
		}
	}
}

func (d *driver) carryOut(c *driveCommand) error {
	if c.Op != opAttach && d.attach == nil {
		return errors.New("no engine is attached")
	}
	switch c.Op {
	case opAttach:
		return d.onAttach(c)
	case opPair:
		return d.onPair(c)
	case opSend, opReceive:
		if (c.Op == opSend) != (d.prefill != nil) {
			return fmt.Errorf("room %d: the engine is a %s engine", c.Room, d.attach.Role)
		}
		return d.enqueue(c)
	case opAbort:
		d.legsMu.Lock()
		defer d.legsMu.Unlock()
		if l := d.legs[c.Room]; l != nil {
			l.abort(c.Reason)
		}
		return nil
	}
	return errors.New("there is no such command")
}

func (d *driver) enqueue(c *driveCommand) error {
	l := &leg{command: c}
	d.legsMu.Lock()
	defer d.legsMu.Unlock()
	if d.legs[c.Room] != nil {
		return fmt.Errorf("room %d: it is open already", c.Room)
	}
	l.ctx, l.giveUp = context.WithCancelCause(d.ctx)
	select {
	case d.queue <- l:
		d.legs[c.Room] = l
		return nil
	default:
		l.giveUp(nil)
		return fmt.Errorf("room %d: %d rooms wait to be opened", c.Room, roomQueue)
	}
}

// abort gives the room up, open or not. legsMu is held.
func (l *leg) abort(reason string) {
	l.giveUp(errors.New("aborted: " + reason))
	if l.room != nil {
		l.room.Abort(reason)
	}
}

// onAttach makes the memory of the engine and attaches it.
func (d *driver) onAttach(c *driveCommand) error {
	if d.attach != nil || c.Deployment == nil {
		return errors.New("want one deployment, once")
	}
	layout, reasons := c.Deployment.Instance(c.Pages)
	if len(reasons) > 0 {
		return reasons[0]
	}
	var engine *kv.Engine
	for i := range layout.Engines {
		if layout.Engines[i].Rank == c.Rank {
			engine = &layout.Engines[i]
		}
	}
	if engine == nil {
		return fmt.Errorf("the deployment has no rank %s", c.Rank)
	}
	d.attach, d.cache = c, &cache{instance: layout, rank: c.Rank, meta: engine.Meta}
	for i, n := range engine.RegionBytes {
		m, err := rdma.NewMemory(fmt.Sprintf("%s-%d", d.node.Self().Name, i), n)
		if err != nil {
			return err
		}
		d.memory = append(d.memory, m)
		d.cache.regions = append(d.cache.regions, m.Bytes())
	}
	d.pages = newPageBook(d.cache)
	ctx, cancel := context.WithTimeout(d.ctx, c.Wait)
	defer cancel()
	config := node.EngineConfig{Instance: c.Instance, Rank: c.Rank, Layout: layout, Memory: d.memory}
	var err error
	switch c.Role {
	case "prefill":
		d.prefill, err = d.node.AttachPrefill(ctx, config)
	case "decode":
		for _, m := range d.cache.regions {
			fillCanaries(m)
		}
		d.decode, err = d.node.AttachDecode(ctx, config)
	default:
		err = fmt.Errorf("role is %q, want prefill or decode", c.Role)
	}
	if err != nil {
		d.prefill, d.decode = nil, nil
		return err
	}
	d.opener.Add(1)
	go d.openRooms()
	d.tell(&driveEvent{Event: eventAttached})
	return nil
}

func (d *driver) onPair(c *driveCommand) error {
	ctx, cancel := context.WithTimeout(d.ctx, c.Wait)
	defer cancel()
	for _, peer := range c.Peers {
		prefill, decode := d.attach.Instance, peer
		if d.decode != nil {
			prefill, decode = peer, d.attach.Instance
		}
		if err := d.node.WaitPaired(ctx, prefill, decode); err != nil {
			return err
		}
	}
	d.tell(&driveEvent{Event: eventPaired})
	return nil
}

// stop ends what is open, looks at the memory, and detaches the engine. orderly:
// somebody waits for what was found.
func (d *driver) stop(orderly bool) error {
	close(d.queue)
	ended := make(chan struct{})
	go func() {
		d.opener.Wait()
		close(ended)
	}()
	d.legsMu.Lock()
	for _, l := range d.legs {
		l.abort("the demo is stopping")
	}
	d.legsMu.Unlock()
	timer := time.NewTimer(stopWait)
	defer timer.Stop()
	select {
	case <-ended:
	case <-timer.C:
	case <-d.node.Done():
	}
	d.end(errors.New("the demo is stopping"))
	<-ended // rooms no longer wait for anything
	if d.attach == nil {
		if orderly {
			d.tell(&driveEvent{Event: eventStopped})
		}
		return nil
	}
	err := d.detach()
	if orderly && err == nil {
		found := d.pages.sweep(d.decode != nil)
		d.tell(&driveEvent{Event: eventStopped, WrongBytes: found.bytes, FirstWrong: found.first})
	}
	if err == nil {
		// Nothing writes into the memory any more; otherwise it stays, until the
		// process ends.
		for _, m := range d.memory {
			err = errors.Join(err, m.Close())
		}
	}
	return err
}

func (d *driver) detach() error {
	var engine detacher
	switch {
	case d.prefill != nil:
		engine = d.prefill
	case d.decode != nil:
		engine = d.decode
	default:
		return nil // it was refused
	}
	if d.node.Err() != nil {
		return nil // it went with the node
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	return engine.Detach(ctx)
}

// tell writes an event. A demo that is gone does not read it: the end of the
// input ends the driver.
func (d *driver) tell(e *driveEvent) {
	d.outMu.Lock()
	defer d.outMu.Unlock()
	if err := d.out.Encode(e); err != nil {
		d.log.Warn("the demo cannot be told", zap.String("event", e.Event), zap.Error(err))
	}
}

// monotonic is the monotonic clock of the machine: unlike that of package time
// it is the same for all processes.
func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(fmt.Sprintf("the monotonic clock: %v", err)) // every Linux has it
	}
	return time.Duration(t.Nano())
}
