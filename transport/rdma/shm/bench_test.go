package shm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/memcopy"
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
	l.session = rdma.SessionID{Peer: "b", Generation: rdma.Generation{Number: 1, Low: 2, High: 3}}
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
	if err := l.b.Grant(rdma.Grant{ID: l.grant, Peer: "a", Ranges: []rdma.Range{wholeOf(l.target, poolBytes)}}); err != nil {
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

func wholeOf(id rdma.RegionID, bytes uint64) rdma.Range {
	return rdma.Range{Region: id, Bytes: bytes, Count: [2]uint32{1, 1}, Runs: []rdma.Run{{Count: 1, Step: 1}}}
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

// land posts writes, as many as the window takes, and waits until they have landed.
func (l *linked) land(b testing.TB, ws []*rdma.Write, evs []rdma.Event) {
	for posted, done := 0, 0; done < len(ws); {
		for posted < len(ws) {
			err := l.a.Post(l.session, ws[posted:posted+1])
			if errors.Is(err, rdma.ErrFull) {
				break
			}
			if err != nil {
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
}

// rowsOf expands a write once, for the loops that the provider is compared with.
func rowsOf(l *linked, target []byte, w *rdma.Write) (rows []memcopy.Row) {
	for r := rdma.RowsOf(&w.Copies[0]); r.Next(); {
		rows = append(rows, memcopy.Row{Target: unsafe.Pointer(&target[r.Target]), Source: unsafe.Pointer(&l.from.Bytes()[r.Source]), Bytes: r.Bytes})
	}
	return rows
}

// BenchmarkWrite writes batches of rows scattered over pools larger than the caches,
// in turn with two loops over the same rows: memmove, and this package's own kernel.
// The metrics are what the provider reaches of the two in the same run.
func BenchmarkWrite(b *testing.B) {
	const poolBytes, batchBytes, writeBytes = 1 << 30, 64 << 20, 8 << 20
	for _, rowBytes := range []uint64{1 << 20, 64 << 10, 16 << 10, 4 << 10, 2 << 10, 512} {
		b.Run(fmt.Sprintf("row=%d", rowBytes), func(b *testing.B) {
			l := link(b, Config{}, poolBytes)
			target, err := mapShared(int(l.to.File().Fd()), poolBytes, unix.PROT_READ|unix.PROT_WRITE)
			if err != nil {
				b.Fatal(err)
			}
			defer target.release()
			rng := rand.New(rand.NewPCG(1, 2))
			evs := make([]rdma.Event, 64)
			batch := func() (ws []*rdma.Write, rows []memcopy.Row) {
				for range batchBytes / writeBytes {
					w := l.scattered(rng, rowBytes, int(writeBytes/rowBytes))
					ws = append(ws, w)
					rows = append(rows, rowsOf(l, target.bytes, w)...)
				}
				return ws, rows
			}
			var batches [8][]*rdma.Write
			var expanded [8][]memcopy.Row
			for i := range batches {
				batches[i], expanded[i] = batch()
				l.land(b, batches[i], evs)
			}
			b.SetBytes(batchBytes)
			b.ReportAllocs()
			var provider, memmove, kernel time.Duration
			took := func(sum *time.Duration, f func()) {
				start := time.Now()
				f()
				*sum += time.Since(start)
			}
			b.ResetTimer()
			for i := range b.N {
				took(&provider, func() { l.land(b, batches[i%8], evs) })
				b.StopTimer()
				rows := expanded[(i+3)%8]
				took(&memmove, func() {
					for k := range rows {
						memcopy.Plain(&rows[k])
					}
				})
				rows = expanded[(i+5)%8]
				took(&kernel, func() { memcopy.Rows(rows, nil, true) })
				b.StartTimer()
			}
			b.ReportMetric(float64(b.N)*batchBytes/provider.Seconds()/1e9, "GB/s")
			b.ReportMetric(memmove.Seconds()/provider.Seconds(), "of-memmove")
			b.ReportMetric(kernel.Seconds()/provider.Seconds(), "of-kernel")
		})
	}
}
