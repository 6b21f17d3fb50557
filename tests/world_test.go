package tests

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"log/slog"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/node"
	"kvferry/tests/fabric"
	"kvferry/transport/rdma"
	"kvferry/transport/rdma/mem"
)

// world is whole nodes in one process and in virtual time: real actors, real
// gossip and real protocol, over a network in memory. Use it in a synctest bubble.
type world struct {
	t     *testing.T
	net   *fabric.Net
	data  *mem.Network
	nodes map[string]*member // by host
	log   *zap.Logger

	// fate is what happens to each write; nil: it lands. Set before the first node
	// is started.
	fate func(from, to string, w *rdma.Write) mem.Fate

	// config changes the config of each node that is started; nil changes nothing.
	config func(host string, c *node.Config)
}

// member is one node of a world.
type member struct {
	*node.Node
	host   string
	fabric *fabric.Node
	down   bool
}

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, net: fabric.New(1), nodes: map[string]*member{},
		log: zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel)),
	}
	data, err := mem.NewNetwork(mem.Config{Fate: func(from, to string, write *rdma.Write) mem.Fate {
		if w.fate == nil {
			return mem.Fate{}
		}
		return w.fate(from, to, write)
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.data = data
	return w
}

// ctx bounds what a test waits for, in virtual time.
func (w *world) ctx(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	w.t.Cleanup(cancel)
	return ctx
}

// start starts a node on a host of the network, an IP.
func (w *world) start(name, host string) *member {
	w.t.Helper()
	system := actor.NewActorSystem(actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(slog.DiscardHandler) }))
	attached := w.net.Attach(system, host+":7947")
	c := node.Config{
		Name: name, Bind: host + ":7946", Join: w.seeds(), Log: w.log,
		Embed: node.Embed{
			System: system, PeerDown: attached.PeerDown,
			Providers: []rdma.Provider{w.data.Provider(host)},
			Gossip:    w.net.Transport(host, 7946),
		},
	}
	if w.config != nil {
		w.config(host, &c)
	}
	n, err := node.Start(w.ctx(10*time.Second), c)
	if err != nil {
		w.t.Fatalf("start %s: %v", name, err)
	}
	for other := range w.nodes { // what a crash at this address had cut
		if other != host {
			w.data.Heal(host, other)
		}
	}
	m := &member{Node: n, host: host, fabric: attached}
	w.nodes[host] = m
	return m
}

func (w *world) seeds() []string {
	var all []string
	for i := range 8 {
		all = append(all, fmt.Sprintf("10.0.0.%d:7946", i+1))
	}
	return all
}

// crash ends a node as a power cut does: nothing that it says arrives any more.
func (w *world) crash(m *member) {
	m.down = true
	w.net.Crash(m.host)
	for host := range w.nodes {
		if host != m.host {
			w.data.Cut(m.host, host)
		}
	}
	go m.Close(w.ctx(time.Millisecond)) // its goroutines, not its peers
}

// close leaves with every node that is up, and lets the last timers end.
func (w *world) close() {
	for _, m := range w.nodes {
		if !m.down {
			if err := m.Close(w.ctx(30 * time.Second)); err != nil {
				w.t.Errorf("close %s: %v", m.Self(), err)
			}
		}
	}
	time.Sleep(40 * time.Second) // virtual: probes, throttles and tombstones end
}

// layout is how a deployment lies in memory, with metadata rows.
func layout(t *testing.T, model kv.Model, tp, pp int, page uint32, order kv.Layout, pages uint32) *kv.Instance {
	t.Helper()
	return layoutOf(t, kv.Deployment{Model: model, TP: tp, PP: pp, PageTokens: page, Layout: order}, pages)
}

// layoutOf is layout of any deployment of one DP rank.
func layoutOf(t *testing.T, d kv.Deployment, pages uint32) *kv.Instance {
	t.Helper()
	d.DP, d.MetaRows, d.MetaRowBytes = 1, 32, 64
	i, reasons := d.Instance(pages)
	if len(reasons) > 0 {
		t.Fatalf("deployment: %v", reasons)
	}
	return i
}

// smallModel is GQA with few layers, so that a test moves some kilobytes.
func smallModel() kv.Model {
	layers := []int{0, 1, 2}
	return kv.Model{ID: "small", Components: []kv.Component{
		{Name: "k", Kind: kv.Paged, Layers: layers, Heads: 4, HeadBytes: 32, DType: kv.BF16},
		{Name: "v", Kind: kv.Paged, Layers: layers, Heads: 4, HeadBytes: 48, DType: kv.BF16},
	}}
}

// engine is what a test attached: its layout and its memory.
type engine struct {
	t       *testing.T
	kv      *kv.Engine
	memory  []*rdma.Memory
	layout  *kv.Instance
	rank    kv.Rank
	prefill *node.Prefill
	decode  *node.Decode
}

func (w *world) attach(m *member, instance string, l *kv.Instance, rank kv.Rank, prefill bool) *engine {
	w.t.Helper()
	e := &engine{t: w.t, layout: l, rank: rank}
	for i := range l.Engines {
		if l.Engines[i].Rank == rank {
			e.kv = &l.Engines[i]
		}
	}
	for i, n := range e.kv.RegionBytes {
		memory, err := rdma.NewMemory(fmt.Sprintf("%s-%d", instance, i), n)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { memory.Close() })
		e.memory = append(e.memory, memory)
	}
	c := node.EngineConfig{Instance: instance, Rank: rank, Layout: l, Memory: e.memory, Limits: actors.EngineLimits{}}
	var err error
	if prefill {
		e.prefill, err = m.AttachPrefill(w.ctx(10*time.Second), c)
	} else {
		e.decode, err = m.AttachDecode(w.ctx(10*time.Second), c)
	}
	if err != nil {
		w.t.Fatalf("attach %s %s: %v", instance, rank, err)
	}
	return e
}

// bytes is a row in the memory of the engine.
func (e *engine) bytes(r kv.Row) []byte {
	return e.memory[r.Region].Bytes()[r.Offset:][:r.Component.HeadBytes]
}

// pattern is 16 bytes that say whose row it is.
func pattern(room uint64, r kv.Row) [16]byte {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], room<<32|r.Row)
	h := fnv.New32a()
	h.Write([]byte(r.Component.Name))
	binary.LittleEndian.PutUint32(b[8:], h.Sum32())
	b[12], b[13] = byte(r.Layer), byte(r.Head)
	return b
}

// fill writes the pattern of a room where its tokens [from, to) are kept.
func (e *engine) fill(room uint64, at kv.Placement, from, to uint64) {
	e.layout.EachRow(e.rank, &at, from, to, e.filler(room))
}

// fillState writes the state of a room of so many tokens.
func (e *engine) fillState(room uint64, at kv.Placement, length uint64) {
	e.layout.EachState(e.rank, at.Slot, length, e.filler(room))
}

func (e *engine) filler(room uint64) func(kv.Row) {
	return func(r kv.Row) {
		p, b := pattern(room, r), e.bytes(r)
		for i := range b {
			b[i] = p[i%16] + byte(i/16)
		}
	}
}

// check counts the bytes of a room of `to` tokens that are not the pattern, from
// token `from` on, and in its state.
func (e *engine) check(room uint64, at kv.Placement, from, to uint64) {
	e.t.Helper()
	wrong := 0
	compare := func(r kv.Row) {
		if w := r.Component.Window; w > 0 && r.Row+w < to {
			return // nobody needs it
		}
		p := pattern(room, r)
		for i, b := range e.bytes(r) {
			if b != p[i%16]+byte(i/16) {
				wrong++
			}
		}
	}
	e.layout.EachRow(e.rank, &at, from, to, compare)
	e.layout.EachState(e.rank, at.Slot, to, compare)
	if wrong > 0 {
		e.t.Errorf("room %d: %d bytes are wrong", room, wrong)
	}
}

// hybridModel has some of everything that is cached, in few bytes.
func hybridModel() kv.Model {
	m := smallModel()
	m.ID = "hybrid"
	m.Components = append(m.Components,
		kv.Component{Name: "swa.k", Kind: kv.Paged, Layers: []int{0, 2}, Heads: 4, HeadBytes: 24, DType: kv.BF16, Window: 20},
		kv.Component{Name: "c4", Kind: kv.Paged, Layers: []int{1, 2}, Heads: 1, HeadBytes: 36, DType: kv.UINT8, RowTokens: 4},
		kv.Component{Name: "c4.open", Kind: kv.Slot, Layers: []int{1, 2}, Heads: 1, HeadBytes: 40, DType: kv.F32, RowTokens: 4, SlotRows: 4},
		kv.Component{Name: "ssm", Kind: kv.Slot, Layers: []int{0}, Heads: 2, HeadBytes: 64, DType: kv.F32},
		kv.Component{Name: "conv.x", Kind: kv.Slot, Layers: []int{0, 1}, Heads: 4, HeadBytes: 16, DType: kv.BF16, SlotRows: 3, Tensor: "conv"},
		kv.Component{Name: "conv.b", Kind: kv.Slot, Layers: []int{0, 1}, Heads: 2, HeadBytes: 8, DType: kv.BF16, SlotRows: 3, Tensor: "conv"})
	return m
}
