package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/mem"
)

// Config is what both kinds of measuring need.
type Config struct {
	Connections int           // of tcp, and of the raw loop
	Pool        uint64        // bytes of the pool of each side
	Duration    time.Duration // of one measurement
	Rounds      int
	// Peer is the command that serves the other side: it calls Serve with its
	// standard input and output.
	Peer []string
}

// sender is the side that writes, and what it has of the other.
type sender struct {
	config Config
	source *pool
	far    far
	near   *receiver // far, when it is in this process

	provider rdma.Provider // nil: the raw loop alone
	session  rdma.SessionID
	region   rdma.RegionID
	target   rdma.RegionID
	grant    rdma.GrantID
	landed   uint64 // bytes

	loops []*loop
	own   *pool // that the loops of one process copy to
}

// openSender starts the other side, and connects to it by the provider, "" for none.
func openSender(ctx context.Context, c Config, provider string) (s *sender, err error) {
	s = &sender{config: c, session: rdma.SessionID{Peer: receiverName, Generation: generation}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	open := openProvider
	if provider == "mem" {
		network, err := mem.NewNetwork(mem.Config{})
		if err != nil {
			return s, err
		}
		open = func(string, int) (rdma.Provider, error) { return network.Provider("mem"), nil }
		s.near = newReceiver(open)
		s.far = s.near
	} else if s.far, err = startProcess(ctx, c.Peer); err != nil {
		s.far = nil // not a process that was not started
		return s, err
	}
	a, err := s.far.ask(order{Do: doOpen, Provider: provider, Connections: c.Connections, Pool: c.Pool})
	if err != nil {
		return s, err
	}
	if s.source, err = newPool("bench-source", c.Pool); err != nil {
		return s, err
	}
	s.source.fill()
	if provider == "" {
		return s, nil
	}
	if s.provider, err = open(provider, c.Connections); err != nil {
		return s, err
	}
	return s, s.connect(ctx, a)
}

// connect makes the session to the side that answered.
func (s *sender) connect(ctx context.Context, a answer) error {
	d, err := s.provider.Register(s.source.memory)
	if err != nil {
		return err
	}
	s.region, s.target, s.grant = d.Region, a.Region, a.Grant
	if err := s.provider.Connect(rdma.Connection{Session: s.session, Self: senderName, Dial: true, Endpoint: a.Endpoint}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		var evs [1]rdma.Event
		if _, err := s.provider.Poll(ctx, evs[:]); err != nil {
			return fmt.Errorf("%s: connect: %w", s.provider.Name(), err)
		}
		switch ev := evs[0].(type) {
		case rdma.Connected:
			return nil
		case rdma.Disconnected:
			return fmt.Errorf("%s: connect: %w", s.provider.Name(), ev.Err)
		}
	}
}

// usage is the CPU time of both sides so far.
func (s *sender) usage() (time.Duration, error) {
	if s.near != nil {
		return cpuTime(), nil
	}
	a, err := s.far.ask(order{Do: doUsage})
	return cpuTime() + a.CPU, err
}

// loop is the raw loop with a layout.
func (s *sender) loop(ctx context.Context, l *layout) (*subject, error) {
	a, err := s.far.ask(order{Do: doLoop, Connections: s.config.Connections, Spec: l.Spec})
	if err != nil {
		return nil, err
	}
	p, err := dialLoop(ctx, a.Address, s.config.Connections, l, s.source.view, s.usage)
	if err != nil {
		return nil, err
	}
	s.loops = append(s.loops, p)
	return &subject{name: "raw loop", run: p.run, pass: l.writes}, nil
}

// copies is the kernels with a layout: from the source to a pool of this process.
func (s *sender) copies(l *layout) (all []*subject, err error) {
	if s.near != nil {
		return copySubjects(l, s.source.view, s.near.pool.view), nil
	}
	if s.own == nil {
		if s.own, err = newPool("bench-own", s.config.Pool); err != nil {
			return nil, err
		}
	}
	return copySubjects(l, s.source.view, s.own.view), nil
}

// takeTurns measures the subjects, and the cores that others used meanwhile.
func (s *sender) takeTurns(ctx context.Context, subjects []*subject) (cores float64, err error) {
	o, err := s.watchOthers()
	if err != nil {
		return 0, err
	}
	if err := takeTurns(ctx, subjects, s.config.Rounds, s.config.Duration); err != nil {
		return 0, err
	}
	return o.cores()
}

// close ends both sides. The provider of this one first: its session is fenced, and
// the other has nothing to write to then.
func (s *sender) close() error {
	for _, p := range s.loops {
		p.close()
	}
	var errs []error
	if s.provider != nil {
		errs = append(errs, s.provider.Close())
	}
	if s.far != nil {
		errs = append(errs, s.far.close())
	}
	for _, p := range []*pool{s.source, s.own} {
		if p != nil {
			p.close()
		}
	}
	return errors.Join(errs...)
}
