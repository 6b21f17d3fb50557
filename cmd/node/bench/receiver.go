package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"sync"
	"time"

	"kvferry/transport/rdma"
)

// The two sides as they name each other, and the one session between them.
const (
	senderName   = "sender"
	receiverName = "receiver"
)

var generation = rdma.Generation{Number: 1, Low: 1, High: 1}

// receiver is the side that is written to. It does what it is told, one order after
// the other.
type receiver struct {
	open      func(name string, connections int) (rdma.Provider, error)
	pool      *pool
	provider  rdma.Provider // nil: the raw loop alone is measured
	listeners []net.Listener
	layouts   map[Spec]*sample
	running   sync.WaitGroup // of what close waits for

	mu      sync.Mutex
	arrived uint64 // bytes that the provider told of
	failed  error
	told    chan struct{} // has room for one: something of the above has changed
}

var _ far = (*receiver)(nil)

func newReceiver(open func(string, int) (rdma.Provider, error)) *receiver {
	return &receiver{open: open, layouts: map[Spec]*sample{}, told: make(chan struct{}, 1)}
}

func (r *receiver) ask(o order) (answer, error) {
	switch o.Do {
	case doOpen:
		return r.onOpen(o)
	case doLoop:
		return r.onLoop(o)
	case doClear:
		s, err := r.sampleOf(o.Spec)
		if err == nil {
			s.clear(r.pool.view)
		}
		return answer{}, err
	case doCheck:
		return r.onCheck(o)
	case doUsage:
		return answer{CPU: cpuTime()}, nil
	}
	return answer{}, fmt.Errorf("there is no order %q", o.Do)
}

// onOpen makes the pool, and grants the sender all of it.
func (r *receiver) onOpen(o order) (a answer, err error) {
	if r.pool, err = newPool("bench-target", o.Pool); err != nil || o.Provider == "" {
		return a, err
	}
	if r.provider, err = r.open(o.Provider, o.Connections); err != nil {
		return a, err
	}
	r.running.Go(r.poll)
	d, err := r.provider.Register(r.pool.memory)
	if err != nil {
		return a, err
	}
	a.Region, a.Endpoint = d.Region, r.provider.Endpoint()
	rand.Read(a.Grant[:])
	if err := r.provider.Grant(rdma.Grant{ID: a.Grant, Peer: senderName, Ranges: []rdma.Range{{
		Region: a.Region, Bytes: o.Pool, Count: [2]uint32{1, 1}, Runs: []rdma.Run{{Count: 1, Step: 1}},
	}}}); err != nil {
		return a, err
	}
	return a, r.provider.Connect(rdma.Connection{Session: rdma.SessionID{Peer: senderName, Generation: generation}, Self: receiverName})
}

// poll takes what the provider tells until it is closed.
func (r *receiver) poll() {
	var evs [64]rdma.Event
	for {
		n, err := r.provider.Poll(context.Background(), evs[:])
		if n == 0 && err != nil {
			return
		}
		r.mu.Lock()
		for _, ev := range evs[:n] {
			switch ev := ev.(type) {
			case rdma.Arrived:
				r.arrived += ev.Bytes
			case rdma.Stale:
				r.failed = fmt.Errorf("the receiver refused a write: %s", ev.Reason)
			case rdma.Disconnected:
				r.failed = fmt.Errorf("the receiver lost the session: %w", ev.Err)
			}
		}
		r.mu.Unlock()
		select {
		case r.told <- struct{}{}:
		default:
		}
	}
}

func (r *receiver) onLoop(o order) (answer, error) {
	s, err := r.sampleOf(o.Spec)
	if err != nil {
		return answer{}, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return answer{}, err
	}
	r.listeners = append(r.listeners, l)
	r.running.Go(func() { serveLoop(l.(*net.TCPListener), o.Connections, s.layout, r.pool.view) })
	return answer{Address: l.Addr().String()}, nil
}

// onCheck looks at the sample, when the provider has told of every byte.
func (r *receiver) onCheck(o order) (a answer, err error) {
	s, err := r.sampleOf(o.Spec)
	if err != nil {
		return a, err
	}
	if err := r.await(o.Bytes); err != nil {
		return a, err
	}
	a.Checked, a.Wrong = s.check(r.pool.view, o.First, o.Landed)
	return a, nil
}

// await waits until so many bytes have arrived since open.
func (r *receiver) await(bytes uint64) error {
	late := time.After(patience)
	for {
		r.mu.Lock()
		arrived, err := r.arrived, r.failed
		r.mu.Unlock()
		switch {
		case err != nil:
			return err
		case arrived > bytes:
			return fmt.Errorf("the receiver was told of %d bytes, of %d that have landed", arrived, bytes)
		case arrived == bytes:
			return nil
		}
		select {
		case <-r.told:
		case <-late:
			return fmt.Errorf("the receiver was told of %d bytes in %s, of %d that have landed", arrived, patience, bytes)
		}
	}
}

// sampleOf is a layout and its sample, which are the same each time.
func (r *receiver) sampleOf(spec Spec) (*sample, error) {
	if s := r.layouts[spec]; s != nil {
		return s, nil
	}
	l, err := newLayout(spec)
	if err != nil {
		return nil, err
	}
	r.layouts[spec] = newSample(l)
	return r.layouts[spec], nil
}

// close ends the side that is written to. The sender has closed its connections of the
// raw loop, or has died.
func (r *receiver) close() error {
	for _, l := range r.listeners {
		_ = l.Close()
	}
	var err error
	if r.provider != nil {
		err = r.provider.Close()
	}
	r.running.Wait()
	if r.pool != nil {
		r.pool.close()
	}
	return err
}
