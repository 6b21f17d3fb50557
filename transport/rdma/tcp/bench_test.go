package tcp

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"kvferry/transport/rdma"
)

// linked is two connected providers in one process, with a pool each.
type linked struct {
	a, b     *Provider
	from, to *rdma.Memory
	source   rdma.RegionID
	target   rdma.RegionID
	session  rdma.SessionID // as a names it
	grant    rdma.GrantID
}

func link(t testing.TB, c Config, poolBytes uint64) *linked {
	t.Helper()
	l := &linked{a: listen(t, c), b: listen(t, c), grant: rdma.GrantID{1}}
	l.session = rdma.SessionID{Peer: "b", Generation: rdma.Generation{Number: 1}}
	for _, x := range []struct {
		p  *Provider
		m  **rdma.Memory
		id *rdma.RegionID
	}{{l.a, &l.from, &l.source}, {l.b, &l.to, &l.target}} {
		m, err := rdma.NewMemory("pool", poolBytes)
		if err != nil {
			t.Fatal(err)
		}
		d, err := x.p.Register(m)
		if err != nil {
			t.Fatal(err)
		}
		*x.m, *x.id = m, d.Region
		for i := uint64(0); i < poolBytes; i += 4096 {
			m.Bytes()[i] = 1 // every page is there
		}
		t.Cleanup(func() {
			x.p.Close()
			m.Close()
		})
	}
	if err := l.b.Grant(rdma.Grant{ID: l.grant, Peer: "a", Ranges: []rdma.Range{
		{Region: l.target, Bytes: poolBytes, Count: [2]uint32{1, 1}, Runs: []rdma.Run{{Count: 1}}},
	}}); err != nil {
		t.Fatal(err)
	}
	if err := l.b.Connect(rdma.Connection{Session: rdma.SessionID{Peer: "a", Generation: l.session.Generation}, Self: "b"}); err != nil {
		t.Fatal(err)
	}
	if err := l.a.Connect(rdma.Connection{Session: l.session, Self: "a", Dial: true, Endpoint: l.b.Endpoint()}); err != nil {
		t.Fatal(err)
	}
	awaitEvent[rdma.Connected](t, l.a)
	awaitEvent[rdma.Connected](t, l.b)
	return l
}

// awaitEvent takes events until one is an E.
func awaitEvent[E rdma.Event](t testing.TB, p *Provider) E {
	t.Helper()
	for {
		var evs [1]rdma.Event
		if _, err := p.Poll(t.Context(), evs[:]); err != nil {
			t.Fatal(err)
		}
		if e, ok := evs[0].(E); ok {
			return e
		}
	}
}

// scattered is a write of n rows from random places to random places.
func (l *linked) scattered(rng *rand.Rand, rowBytes uint64, n int) *rdma.Write {
	rows := l.from.Len() / rowBytes
	c := rdma.Copy{
		Source: rdma.Place{Region: l.source, UnitStride: rowBytes}, Target: rdma.Place{Region: l.target, UnitStride: rowBytes},
		Bytes: rowBytes, Count: [2]uint32{1, 1}, Runs: make([]rdma.PairRun, n),
	}
	for i := range c.Runs {
		c.Runs[i] = rdma.PairRun{Source: uint32(rng.Uint64N(rows)), Target: uint32(rng.Uint64N(rows)), Count: 1}
	}
	return &rdma.Write{Tag: 1, Grant: l.grant, Copies: []rdma.Copy{c}}
}

// BenchmarkWrite writes 8 MiB at a time, of rows scattered over pools larger than
// the caches; a few writes are in flight.
func BenchmarkWrite(b *testing.B) {
	const writeBytes, poolBytes, inFlight = 8 << 20, 512 << 20, 8
	for _, rowBytes := range []uint64{1 << 20, 64 << 10, 4 << 10, 1 << 10} {
		b.Run(fmt.Sprintf("row=%dK", rowBytes>>10), func(b *testing.B) {
			l := link(b, Config{}, poolBytes)
			rng := rand.New(rand.NewPCG(1, 2))
			var ws [64]*rdma.Write
			for i := range ws {
				ws[i] = l.scattered(rng, rowBytes, int(writeBytes/rowBytes))
			}
			b.SetBytes(writeBytes)
			b.ReportAllocs()
			b.ResetTimer()
			evs := make([]rdma.Event, 64)
			for posted, done := 0, 0; done < b.N; {
				for posted < b.N && posted-done < inFlight {
					w := ws[posted%len(ws)]
					w.ID = rdma.WriteID(posted)
					if err := l.a.Post(l.session, []*rdma.Write{w}); err != nil {
						b.Fatal(err)
					}
					posted++
				}
				n, err := l.a.Poll(b.Context(), evs)
				if err != nil {
					b.Fatal(err)
				}
				for _, ev := range evs[:n] {
					if c, ok := ev.(rdma.Completed); ok {
						if c.Outcome != rdma.Landed {
							b.Fatal(c.Err)
						}
						done++
					}
				}
			}
		})
	}
}
