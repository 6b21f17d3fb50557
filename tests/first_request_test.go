package tests

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"kvferry/actors"
	"kvferry/kv"
	"kvferry/messages"
	"kvferry/node"
	"kvferry/transport/rdma"
)

// grantCounter counts every grant that was ever given.
type grantCounter struct {
	rdma.Provider
	given *atomic.Int64
}

func (g grantCounter) Grant(grant rdma.Grant) error {
	g.given.Add(1)
	return g.Provider.Grant(grant)
}

// counted has the nodes of a world count their grants.
func counted(w *world) *atomic.Int64 {
	var given atomic.Int64
	w.config = func(_ string, c *node.Config) {
		for n, p := range c.Embed.Providers {
			c.Embed.Providers[n] = grantCounter{p, &given}
		}
	}
	return &given
}

// stages is smallModel with so many layers, TP 1, in pages of 16 tokens.
func stages(t *testing.T, layers, pp int) *kv.Instance {
	t.Helper()
	m := smallModel()
	for n := range m.Components {
		m.Components[n].Layers = nil
		for l := range layers {
			m.Components[n].Layers = append(m.Components[n].Layers, l)
		}
	}
	return layout(t, m, 1, pp, 16, kv.NHD, 8)
}

// empty takes all tensors from an engine; its metadata rows stay.
func empty(e *kv.Engine) {
	e.Shards = nil
	e.Meta.Offset = 0
	e.RegionBytes = []uint64{e.Meta.RowBytes * uint64(e.Meta.Rows)}
}

// attachAll attaches the ranks of an instance, each to a node of its own.
func (w *world) attachAll(instance string, l *kv.Instance, host int, prefill bool) (engines []*engine, on []*member) {
	w.t.Helper()
	for n := range l.Engines {
		m := w.start(fmt.Sprintf("%s-%d", instance, n), fmt.Sprintf("10.0.0.%d", host+n))
		on = append(on, m)
		engines = append(engines, w.attach(m, instance, l, l.Engines[n].Rank, prefill))
	}
	return engines, on
}

// TestTheErrorsOfTheFirstRequestComeBeforeIt: that the layers of a prefill stage are
// not decode's, and that a prefill engine holds nothing, is found by other systems
// when the first request is sent. Here every node says so, by field, as soon as both
// sides are there; a request gets no grant, and its pages come back.
func TestTheErrorsOfTheFirstRequestComeBeforeIt(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T) (prefill, decode *kv.Instance)
		field string
		text  string
	}{
		{"a prefill stage has layers that decode lacks", func(t *testing.T) (*kv.Instance, *kv.Instance) {
			return stages(t, 4, 2), stages(t, 3, 1)
		}, "layers", "decode holds layers 0-2 of `k`, prefill stage 1 (tp 0) sends 3: start decode with all 4 layers"},
		{"decode has layers that no prefill stage has", func(t *testing.T) (*kv.Instance, *kv.Instance) {
			return stages(t, 3, 2), stages(t, 4, 1)
		}, "layers", "prefill holds layers 0-2 of `k`, decode stage 0 (tp 0) needs 3: start prefill with all 4 layers"},
		{"a prefill stage has other layers than it declares", func(t *testing.T) (*kv.Instance, *kv.Instance) {
			p := stages(t, 4, 2)
			for k := range p.Engines[1].Shards {
				p.Engines[1].Shards[k].Layers[0].Layer = 1 // beside layer 3: nobody has 2
			}
			return p, stages(t, 4, 1)
		}, "layers", "prefill holds layers 0-1,3 of `k`, decode stage 0 (tp 0) needs 2"},
		{"the prefill engine holds no tensor", func(t *testing.T) (*kv.Instance, *kv.Instance) {
			p := stages(t, 3, 1)
			empty(&p.Engines[0])
			return p, stages(t, 3, 1)
		}, "layers", "prefill holds nothing of `k`, decode stage 0 (tp 0) needs layers 0-2: start prefill with all 3 layers"},
		{"a prefill stage holds no tensor", func(t *testing.T) (*kv.Instance, *kv.Instance) {
			p := stages(t, 4, 2)
			empty(&p.Engines[1])
			return p, stages(t, 4, 1)
		}, "layers", "prefill holds layers 0-1 of `v`, decode stage 0 (tp 0) needs 2-3"},
		{"the decode engine holds no tensor", func(t *testing.T) (*kv.Instance, *kv.Instance) {
			d := stages(t, 3, 1)
			empty(&d.Engines[0])
			return stages(t, 3, 1), d
		}, "layers", "decode holds nothing of `k`, prefill stage 0 (tp 0) sends layers 0-2: start decode with all 3 layers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				given := counted(w)
				p, d := tc.spoil(t)
				senders, on := w.attachAll("p", p, 1, true)
				receivers, there := w.attachAll("d", d, 5, false)
				for _, m := range append(on, there...) {
					err := m.WaitPaired(w.ctx(10*time.Second), "p", "d")
					if err == nil || !strings.Contains(err.Error(), "mismatched") || !strings.Contains(err.Error(), tc.text) {
						t.Errorf("%s: paired with %v, want a mismatch and %q", m.Self(), err, tc.text)
					}
					status, err := m.Status(w.ctx(time.Second))
					if err != nil {
						t.Error(err)
					}
					if fields := refused(status, "p", "d"); !strings.Contains(fields, tc.field+" ") {
						t.Errorf("%s: reasons are about %q, want %s", m.Self(), fields, tc.field)
					}
				}

				// Who asks decode all the same is refused at once, with the reason. Prefill
				// does not know for whom it computes: its room expires.
				var ends []node.Result
				for _, e := range senders {
					s, err := e.prefill.Open(w.ctx(time.Minute), node.SendRequest{Room: 1, Tokens: 20, Wait: 5 * time.Second})
					if err != nil { // as well
						t.Logf("prefill opens no room: %v", err)
						continue
					}
					s.Chunk(20)
					end, err := s.Wait(w.ctx(time.Minute))
					s.Free()
					if err != nil {
						t.Errorf("send: %v", err)
					}
					ends = append(ends, end)
				}
				for _, e := range receivers {
					since := time.Now()
					_, err := e.decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: 1, Prefill: "p", Length: 20, Wait: 5 * time.Second})
					var refused *actors.RefusedError
					if !errors.As(err, &refused) || refused.Kind != messages.CauseKind_CAUSE_NOT_PAIRED || !strings.Contains(refused.Text, tc.text) {
						t.Errorf("decode: got %v, want it refused as not paired, with %q", err, tc.text)
					}
					if took := time.Since(since); took > time.Second {
						t.Errorf("decode refused after %v", took)
					}
				}
				for _, end := range ends {
					if end.Complete || end.Kind != messages.CauseKind_CAUSE_EXPIRED || end.Bytes > 0 {
						t.Errorf("a request ended with %+v, want it to expire with no byte moved", end)
					}
				}
				if n := given.Load(); n != 0 {
					t.Errorf("%d grants were given, want none", n)
				}
				(&pair{w: w, prefill: senders, decode: receivers[0]}).atRest()
			})
		})
	}
}

// TestAShardOfNoLayerIsRefusedAtAttach: an engine that is wrong by itself is not
// attached, so that no peer hears of it.
func TestAShardOfNoLayerIsRefusedAtAttach(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		l := stages(t, 3, 1)
		l.Engines[0].Shards[1].Layers = nil
		memory, err := rdma.NewMemory("p-0", l.Engines[0].RegionBytes[0])
		if err != nil {
			t.Error(err)
			return
		}
		defer memory.Close()
		a := w.start("a", "10.0.0.1")
		_, there := w.attachAll("d", stages(t, 3, 1), 5, false)
		_, err = a.AttachPrefill(w.ctx(10*time.Second), node.EngineConfig{Instance: "p", Layout: l, Memory: []*rdma.Memory{memory}})
		if want := `component "v": layers is 0, want 1 to`; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("attached with %v, want %q", err, want)
		}
		if err := there[0].WaitPaired(w.ctx(5*time.Second), "p", "d"); err == nil || !strings.Contains(err.Error(), "no engine of one of them is known") {
			t.Errorf("paired with %v, want no engine of p to be known", err)
		}
	})
}

// refused is what the reasons of a pair are about, each with a blank behind it.
func refused(s node.Status, prefill, decode string) string {
	var fields string
	for _, p := range s.Pairs {
		for _, r := range p.Reasons {
			if p.Prefill == prefill && p.Decode == decode {
				fields += r.GetField() + " "
			}
		}
	}
	return fields
}

// TestAnEngineOfNoTensorMayBeThereBesideOthers: a rank without a tensor is no error
// where the others hold all. As the last stage it writes the metadata row, and that
// is its part of the room.
func TestAnEngineOfNoTensorMayBeThereBesideOthers(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		p := stages(t, 3, 2)
		whole := stages(t, 3, 1)
		first := whole.Engines[0]
		first.Rank = p.Engines[0].Rank
		p.Engines[0] = first
		empty(&p.Engines[1])
		senders, on := w.attachAll("p", p, 1, true)
		receivers, there := w.attachAll("d", stages(t, 3, 1), 5, false)
		for _, m := range append(on, there...) {
			if err := m.WaitPaired(w.ctx(30*time.Second), "p", "d"); err != nil {
				t.Error(err)
			}
		}
		q := &pair{w: w, prefill: senders, decode: receivers[0], nodes: append(on, there...)}
		sent, received := q.carry(ask{room: 1, length: 40}, false)
		q.complete(sent, received)
		if sent[1].Excused || sent[1].Bytes == 0 || sent[1].Bytes >= sent[0].Bytes {
			t.Errorf("the stages sent %+v, want the second to write the metadata row alone", sent)
		}
		q.atRest()
	})
}

// A room that decode opened before the prefill instance was whole ends when it is
// known that the two do not fit, and not by its limit.
func TestARoomEndsWhenItsPairDoesNotFit(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		receivers, _ := w.attachAll("d", stages(t, 3, 1), 5, false)
		r, err := receivers[0].decode.Receive(w.ctx(time.Minute), node.ReceiveRequest{Room: 1, Prefill: "p", Length: 20, Wait: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		senders, _ := w.attachAll("p", stages(t, 4, 2), 1, true)
		end, err := r.Wait(w.ctx(10 * time.Second))
		if err != nil || end.Complete || end.Kind != messages.CauseKind_CAUSE_NOT_PAIRED || !strings.Contains(end.Cause, "prefill stage 1 (tp 0) sends 3") {
			t.Errorf("the room ended with %+v, %v, want it not paired, with the reason", end, err)
		}
		r.Free()

		// The right instance takes the place of the wrong one: rooms work.
		for _, e := range senders {
			if err := e.prefill.Detach(w.ctx(time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		m := w.start("p-again", "10.0.0.4")
		p := w.attach(m, "p", stages(t, 3, 1), kv.Rank{}, true)
		if err := m.WaitPaired(w.ctx(30*time.Second), "p", "d"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		(&pair{w: w, prefill: []*engine{p}, decode: receivers[0]}).complete((&pair{w: w, prefill: []*engine{p}, decode: receivers[0]}).carry(ask{room: 2, length: 40}, true))
	})
}
