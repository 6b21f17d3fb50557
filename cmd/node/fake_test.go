package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"go.uber.org/zap"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/node"
)

// fakeCluster stands for a whole cluster: nodes that know each other, and rooms
// that are copied by the plan when both sides are whole. It follows the promises
// of package node that the driver relies on.
type fakeCluster struct {
	mu      sync.Mutex
	engines map[string][]*fakeEngine // by instance
	rooms   map[uint64]*fakeRoom
	bend    func(c *kv.Copy) // spoils copies
	stall   map[uint64]bool  // rooms that never end by themselves
}

func newFakeCluster() *fakeCluster {
	return &fakeCluster{engines: make(map[string][]*fakeEngine), rooms: make(map[uint64]*fakeRoom), stall: make(map[uint64]bool)}
}

type fakeNode struct {
	cluster *fakeCluster
	name    string
	done    chan struct{}
}

type fakeEngine struct {
	cluster *fakeCluster
	config  node.EngineConfig
	kv      *kv.Engine
	pools   *actors.Pools
	changed chan struct{} // closed and replaced when pages come back
}

// fakeRoom is one room of all engines.
type fakeRoom struct {
	prefill, decode string
	pdp             int
	prefix, length  uint64
	sends           map[kv.Rank]*fakeLeg
	receives        map[kv.Rank]*fakeLeg
	over            bool
}

type fakeLeg struct {
	engine *fakeEngine
	room   uint64
	place  kv.Placement
	length uint64
	at     uint64 // computed
	ended  chan node.Result
	result node.Result
}

func (n *fakeNode) Self() messages.Node   { return messages.Node{Name: n.name, Incarnation: 1} }
func (n *fakeNode) GossipAddress() string { return n.name + ":1" }
func (n *fakeNode) Done() <-chan struct{} { return n.done }
func (n *fakeNode) Err() error {
	select {
	case <-n.done:
		return errors.New("the node failed")
	default:
		return nil
	}
}

func (n *fakeNode) WaitPaired(ctx context.Context, prefill, decode string) error { return ctx.Err() }

func (n *fakeNode) attach(c node.EngineConfig) *fakeEngine {
	n.cluster.mu.Lock()
	defer n.cluster.mu.Unlock()
	e := &fakeEngine{cluster: n.cluster, config: c, changed: make(chan struct{})}
	for i := range c.Layout.Engines {
		if c.Layout.Engines[i].Rank == c.Rank {
			e.kv = &c.Layout.Engines[i]
		}
	}
	e.pools = actors.NewPools(c.Layout, c.Rank, e.kv.Meta.Rows)
	n.cluster.engines[c.Instance] = append(n.cluster.engines[c.Instance], e)
	return e
}

func (n *fakeNode) AttachPrefill(_ context.Context, c node.EngineConfig) (prefillEngine, error) {
	return n.attach(c), nil
}

func (n *fakeNode) AttachDecode(_ context.Context, c node.EngineConfig) (decodeEngine, error) {
	return n.attach(c), nil
}

func (e *fakeEngine) Detach(context.Context) error {
	e.cluster.mu.Lock()
	defer e.cluster.mu.Unlock()
	for _, r := range e.cluster.rooms {
		if s, d := r.sends[e.config.Rank], r.receives[e.config.Rank]; s != nil && s.engine == e || d != nil && d.engine == e {
			e.cluster.end(r, "the engine was detached")
		}
	}
	return nil
}

// take waits for pages. The cluster's mutex is held at its return.
func (e *fakeEngine) take(ctx context.Context, prefix, length uint64) (kv.Placement, error) {
	for {
		e.cluster.mu.Lock()
		if at, ok := e.pools.Take(prefix, length); ok {
			return at, nil
		}
		changed := e.changed
		e.cluster.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			e.cluster.mu.Lock()
			return kv.Placement{}, context.Cause(ctx)
		}
	}
}

func (e *fakeEngine) give(l *fakeLeg) {
	e.pools.Give(l.place)
	close(e.changed)
	e.changed = make(chan struct{})
}

func (f *fakeCluster) room(id uint64) *fakeRoom {
	if f.rooms[id] == nil {
		f.rooms[id] = &fakeRoom{sends: make(map[kv.Rank]*fakeLeg), receives: make(map[kv.Rank]*fakeLeg)}
	}
	return f.rooms[id]
}

func (e *fakeEngine) Open(ctx context.Context, q node.SendRequest) (sendRoom, error) {
	place, err := e.take(ctx, 0, q.Tokens)
	defer e.cluster.mu.Unlock()
	if err != nil {
		return nil, err
	}
	l := &fakeLeg{engine: e, room: q.Room, place: place, length: q.Tokens, ended: make(chan node.Result, 1)}
	r := e.cluster.room(q.Room)
	r.prefill, r.pdp = e.config.Instance, e.config.Rank.DP
	r.sends[e.config.Rank] = l
	return l, nil
}

func (e *fakeEngine) Receive(ctx context.Context, q node.ReceiveRequest) (receiveRoom, error) {
	place, err := e.take(ctx, q.Prefix, q.Length)
	defer e.cluster.mu.Unlock()
	if err != nil {
		return nil, err
	}
	l := &fakeLeg{engine: e, room: q.Room, place: place, length: q.Length, ended: make(chan node.Result, 1)}
	r := e.cluster.room(q.Room)
	r.decode, r.prefix, r.length = e.config.Instance, q.Prefix, q.Length
	r.receives[e.config.Rank] = l
	e.cluster.move(r, q.Room)
	return l, nil
}

func (l *fakeLeg) Place() kv.Placement { return l.place }

func (l *fakeLeg) Wait(ctx context.Context) (node.Result, error) {
	select {
	case r := <-l.ended:
		l.ended <- r
		return r, nil
	case <-ctx.Done():
		return node.Result{}, context.Cause(ctx)
	}
}

func (l *fakeLeg) Chunk(to uint64) {
	f := l.engine.cluster
	f.mu.Lock()
	defer f.mu.Unlock()
	if r := f.rooms[l.room]; to > l.at && to <= l.length {
		l.at = to
		f.move(r, l.room)
	} else {
		f.end(r, fmt.Sprintf("chunk ends at %d after %d of %d", to, l.at, l.length))
	}
}

// ChunkLayers changes nothing: the copies are made when all is there.
func (l *fakeLeg) ChunkLayers(uint64, int) {}

func (l *fakeLeg) Abort(reason string) {
	l.engine.cluster.mu.Lock()
	defer l.engine.cluster.mu.Unlock()
	l.engine.cluster.end(l.engine.cluster.rooms[l.room], "aborted: "+reason)
}

func (l *fakeLeg) Free() {
	l.engine.cluster.mu.Lock()
	defer l.engine.cluster.mu.Unlock()
	l.engine.give(l)
}

// end ends a room: complete for no reason. Pages stay the callers' until they are
// freed.
func (f *fakeCluster) end(r *fakeRoom, reason string) {
	if r.over {
		return
	}
	r.over = true
	for _, l := range r.sends {
		l.ended <- node.Result{Complete: reason == "", Cause: reason, Copies: l.result.Copies, Bytes: l.result.Bytes}
	}
	for _, l := range r.receives {
		l.ended <- node.Result{Complete: reason == "", Cause: reason, Bytes: l.result.Bytes}
	}
}

// move copies a room when everybody is ready, and ends it.
func (f *fakeCluster) move(r *fakeRoom, id uint64) {
	if r.over || f.stall[id] || r.prefill == "" || r.decode == "" {
		return
	}
	fit := kv.Match(f.engines[r.prefill][0].config.Layout, f.engines[r.decode][0].config.Layout)
	route := kv.Route{PrefillDP: r.pdp, Room: id}
	for rank := range r.receives {
		route.DecodeDP = rank.DP
	}
	for _, s := range fit.Senders(route) {
		if l := r.sends[s]; l == nil || l.at < l.length {
			return
		}
	}
	for _, to := range fit.Receivers(route) {
		if r.receives[to] == nil {
			return
		}
	}
	for _, to := range fit.Receivers(route) {
		for _, from := range fit.Writers(route, to, r.prefix, r.length) {
			if err := f.pair(fit, route, r, from, to); err != nil {
				f.end(r, err.Error())
				return
			}
		}
	}
	f.end(r, "")
}

func (f *fakeCluster) pair(fit *kv.Fit, route kv.Route, r *fakeRoom, from, to kv.Rank) error {
	s, d := r.sends[from], r.receives[to]
	pair, err := fit.Pair(route, from, to, r.prefix, r.length)
	if err != nil {
		return err
	}
	copies, err := pair.Copies(kv.Chunk{To: r.length, Source: s.place, Last: true}, &d.place)
	if err != nil {
		return err
	}
	for _, c := range copies {
		if f.bend != nil {
			f.bend(&c)
		}
		n := execute(&c, s.engine.config.Memory[c.Source.Region].Bytes(), d.engine.config.Memory[c.Target.Region].Bytes())
		s.result.Bytes, d.result.Bytes = s.result.Bytes+n, d.result.Bytes+n
	}
	s.result.Copies += uint64(len(copies))
	return nil
}

// execute does a copy the slow way.
func execute(c *kv.Copy, source, target []byte) uint64 {
	n := uint64(0)
	for _, run := range c.Runs {
		for u := range run.Count {
			for i := range c.Count[0] {
				for j := range c.Count[1] {
					at := func(p *kv.Place, unit uint32) uint64 {
						return p.Offset + uint64(unit)*p.UnitStride + uint64(i)*p.Stride[0] + uint64(j)*p.Stride[1]
					}
					from, to := at(&c.Source, run.Source+u*run.SourceStep), at(&c.Target, run.Target+u*run.TargetStep)
					n += uint64(copy(target[to:to+c.Bytes], source[from:from+c.Bytes]))
				}
			}
		}
	}
	return n
}

// fakeLauncher runs drivers in goroutines, over pipes.
type fakeLauncher struct {
	cluster *fakeCluster
	started chan *fakeProcess
	failing string // of a node: it has failed when it begins
}

type fakeProcess struct {
	name   string
	in     *io.PipeWriter
	out    *io.PipeReader
	ended  chan error
	cancel context.CancelCauseFunc
	node   *fakeNode
}

var errKilled = errors.New("signal: killed")

func (l *fakeLauncher) start(name, join string) (process, error) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ctx, cancel := context.WithCancelCause(context.Background())
	p := &fakeProcess{
		name: name, in: inW, out: outR, ended: make(chan error, 1), cancel: cancel,
		node: &fakeNode{cluster: l.cluster, name: name, done: make(chan struct{})},
	}
	if name == l.failing {
		close(p.node.done)
	}
	go func() {
		err := driveEngine(ctx, p.node, inR, outW, zap.NewNop())
		if errors.Is(context.Cause(ctx), errKilled) {
			err = errKilled
		}
		p.ended <- err
		inR.Close()
		outW.Close()
	}()
	if l.started != nil {
		l.started <- p
	}
	return p, nil
}

func (p *fakeProcess) input() io.WriteCloser { return p.in }
func (p *fakeProcess) output() io.Reader     { return p.out }
func (p *fakeProcess) pid() int              { return 1 }
func (p *fakeProcess) wait() error           { return <-p.ended }
func (p *fakeProcess) kill() {
	p.cancel(errKilled)
	p.out.Close()
}
