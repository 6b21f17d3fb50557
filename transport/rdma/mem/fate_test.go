package mem

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"kvferry/transport/rdma"
)

// pair is two connected providers with one region each, inside a bubble.
type pair struct {
	t        *testing.T
	net      *Network
	a, b     rdma.Provider
	from, to *rdma.Memory
	grant    rdma.GrantID
	write    rdma.Write
}

const pairBytes = 1 << 16

var (
	toB = rdma.SessionID{Peer: "b", Generation: rdma.Generation{Number: 1}}
	toA = rdma.SessionID{Peer: "a", Generation: rdma.Generation{Number: 1}}
)

func newPair(t *testing.T, c Config, wrap func(rdma.Provider) rdma.Provider) *pair {
	t.Helper()
	n := newNetwork(t, c)
	p := &pair{t: t, net: n, a: n.Provider("a"), b: n.Provider("b"), grant: rdma.GrantID{1}}
	if wrap != nil {
		p.a = wrap(p.a)
	}
	t.Cleanup(func() {
		p.a.Close()
		p.b.Close()
	})
	var ds [2]rdma.Descriptor
	for i, m := range []**rdma.Memory{&p.from, &p.to} {
		var err error
		if *m, err = rdma.NewMemory("pair", pairBytes); err != nil {
			t.Fatal(err)
		}
		if ds[i], err = []rdma.Provider{p.a, p.b}[i].Register(*m); err != nil {
			t.Fatal(err)
		}
	}
	one := [2]uint32{1, 1}
	if err := p.b.Grant(rdma.Grant{ID: p.grant, Peer: "a", Ranges: []rdma.Range{
		{Region: ds[1].Region, Bytes: pairBytes, Count: one, Runs: []rdma.Run{{Count: 1}}},
	}}); err != nil {
		t.Fatal(err)
	}
	p.write = rdma.Write{ID: 1, Tag: 1, Grant: p.grant, Copies: []rdma.Copy{{
		Source: rdma.Place{Region: ds[0].Region}, Target: rdma.Place{Region: ds[1].Region},
		Bytes: pairBytes, Count: one, Runs: []rdma.PairRun{{Count: 1}},
	}}}
	for i := range p.from.Bytes() {
		p.from.Bytes()[i] = 7
	}
	p.connect()
	return p
}

func (p *pair) connect() {
	p.t.Helper()
	if err := p.a.Connect(rdma.Connection{Session: toB, Self: "a", Dial: true, Endpoint: p.b.Endpoint()}); err != nil {
		p.t.Fatal(err)
	}
	if err := p.b.Connect(rdma.Connection{Session: toA, Self: "b"}); err != nil {
		p.t.Fatal(err)
	}
	next[rdma.Connected](p, p.a)
	next[rdma.Connected](p, p.b)
}

// next is the next event, which is an E.
func next[E rdma.Event](p *pair, from rdma.Provider) (e E) {
	p.t.Helper()
	var evs [1]rdma.Event
	if _, err := from.Poll(context.Background(), evs[:]); err != nil {
		p.t.Fatal(err)
	}
	e, ok := evs[0].(E)
	if !ok {
		p.t.Fatalf("got %#v, want %T", evs[0], e)
	}
	return e
}

func (p *pair) post() {
	p.t.Helper()
	if err := p.a.Post(toB, []*rdma.Write{&p.write}); err != nil {
		p.t.Fatal(err)
	}
}

// landed is how many bytes are at the target.
func (p *pair) landed() int { return bytes.Count(p.to.Bytes(), []byte{7}) }

func fate(f Fate) Config {
	return Config{Fate: func(from, to string, w *rdma.Write) Fate { return f }}
}

func TestDelayTakesVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, fate(Fate{Delay: time.Hour}), nil)
		begin := time.Now()
		p.post()
		if c := next[rdma.Completed](p, p.a); c.Outcome != rdma.Landed || time.Since(begin) != time.Hour {
			t.Errorf("got %s after %s", c.Outcome, time.Since(begin))
		}
		if a := next[rdma.Arrived](p, p.b); a.Count != 1 || a.Bytes != pairBytes {
			t.Errorf("got %+v", a)
		}
	})
}

func TestQuiesceEndsADelayedWriteBeforeItBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, fate(Fate{Delay: time.Hour}), nil)
		begin := time.Now()
		p.post()
		synctest.Wait()
		p.a.Quiesce(1)
		if c := next[rdma.Completed](p, p.a); c.Outcome != rdma.NotPosted || time.Since(begin) != 0 {
			t.Errorf("got %s after %s", c.Outcome, time.Since(begin))
		}
		if q := next[rdma.Quiesced](p, p.a); len(q.Unknown) != 0 || p.landed() != 0 {
			t.Errorf("got %+v, %d bytes landed", q, p.landed())
		}
	})
}

func TestLostAndVanishedWritesAreUnknown(t *testing.T) {
	for what, c := range map[string]struct {
		fate   Fate
		landed int
	}{
		"lost":     {Fate{Lost: true}, pairBytes},
		"vanished": {Fate{Vanish: true}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, fate(c.fate), nil)
			p.post()
			if got := next[rdma.Completed](p, p.a); got.Outcome != rdma.Unknown || p.landed() != c.landed {
				t.Errorf("%s: got %s, %d bytes landed", what, got.Outcome, p.landed())
			}
			p.a.Quiesce(1)
			if q := next[rdma.Quiesced](p, p.a); len(q.Unknown) != 1 || q.Unknown[0] != toB {
				t.Errorf("%s: got %+v", what, q)
			}
		})
	}
}

func TestALateWriteLandsWhatTheSourceHeldUnlessClosed(t *testing.T) {
	for what, stop := range map[string]func(p *pair){
		"nothing": nil,
		"revoke":  func(p *pair) { p.b.Revoke(p.grant); next[rdma.Revoked](p, p.b) },
		"fence":   func(p *pair) { p.b.Fence(toA); next[rdma.Fenced](p, p.b) },
		"close":   func(p *pair) { p.b.Close() },
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPair(t, fate(Fate{Late: time.Minute}), nil)
			p.post()
			if c := next[rdma.Completed](p, p.a); c.Outcome != rdma.Unknown {
				t.Errorf("got %s", c.Outcome)
			}
			clear(p.from.Bytes()) // the source is the caller's again
			want := pairBytes
			if stop != nil {
				stop(p)
				want = 0
			}
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			if p.landed() != want {
				t.Errorf("%s: %d bytes landed, want %d", what, p.landed(), want)
			}
		})
	}
}

func TestATornWriteIsUnknownAndTheLinkBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, fate(Fate{Tear: true}), nil)
		p.post()
		if c := next[rdma.Completed](p, p.a); c.Outcome != rdma.Unknown || p.landed() != pairBytes/2 {
			t.Errorf("got %s, %d bytes landed", c.Outcome, p.landed())
		}
		next[rdma.Disconnected](p, p.a)
		next[rdma.Disconnected](p, p.b)
	})
}

func TestACutLinkDisconnectsUntilHealed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPair(t, Config{}, nil)
		p.net.Cut("b", "a")
		next[rdma.Disconnected](p, p.a)
		next[rdma.Disconnected](p, p.b)
		if err := p.a.Post(toB, []*rdma.Write{&p.write}); !errors.Is(err, rdma.ErrNotConnected) {
			t.Errorf("got %v", err)
		}
		p.a.Fence(toB)
		p.b.Fence(toA)
		next[rdma.Fenced](p, p.a)
		next[rdma.Fenced](p, p.b)
		second := toB
		second.Generation.Number = 2
		if err := p.a.Connect(rdma.Connection{Session: second, Self: "a", Dial: true, Endpoint: p.b.Endpoint()}); err != nil {
			t.Fatal(err)
		}
		next[rdma.Disconnected](p, p.a)
		p.net.Heal("a", "b")
		p.a.Fence(second)
		next[rdma.Fenced](p, p.a)
		third := second
		third.Generation.Number = 3
		if err := p.a.Connect(rdma.Connection{Session: third, Self: "a", Dial: true, Endpoint: p.b.Endpoint()}); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if d := next[rdma.Disconnected](p, p.a); d.Session != third || time.Since(begin) != connectTimeoutDefault {
			t.Errorf("nobody answers: got %+v after %s", d, time.Since(begin))
		}
	})
}

func TestFaultsAroundAProvider(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := true
		var f *Faults
		p := newPair(t, fate(Fate{Delay: time.Second}), func(inner rdma.Provider) rdma.Provider {
			f = NewFaults(inner, FaultsConfig{
				Lose:  func(rdma.Completed) bool { return true },
				Full:  func(rdma.SessionID) bool { return full },
				Delay: func() time.Duration { return time.Minute },
			})
			return f
		})
		begin := time.Now()
		p.post()
		second := p.write
		second.ID = 2
		if err := p.a.Post(toB, []*rdma.Write{&second}); !errors.Is(err, rdma.ErrFull) {
			t.Errorf("got %v, want ErrFull", err)
		}
		if c := next[rdma.Completed](p, p.a); c.Outcome != rdma.Unknown || !errors.Is(c.Err, ErrInjected) || c.Arrivals != nil || time.Since(begin) != time.Minute+time.Second {
			t.Errorf("got %+v after %s", c, time.Since(begin))
		}
		if p.landed() != pairBytes {
			t.Errorf("%d bytes landed: only the completion is lost", p.landed())
		}
		f.Quiesce(1)
		if q := next[rdma.Quiesced](p, p.a); len(q.Unknown) != 1 {
			t.Errorf("got %+v", q)
		}
		f.Cut("b")
		if d := next[rdma.Disconnected](p, p.a); !errors.Is(d.Err, ErrInjected) {
			t.Errorf("got %+v", d)
		}
		if err := f.Connect(rdma.Connection{Session: rdma.SessionID{Peer: "b"}}); !errors.Is(err, ErrInjected) {
			t.Errorf("got %v", err)
		}
		f.Heal("b")
		f.Fence(toB)
		next[rdma.Fenced](p, p.a)
	})
}
