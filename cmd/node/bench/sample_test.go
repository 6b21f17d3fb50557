package bench

import (
	"errors"
	"testing"
)

func TestWrongBytesAreCounted(t *testing.T) {
	for _, tc := range []struct{ got, want, n uint64 }{
		{0, 0, 0}, {1, 0, 1}, {0xff, 0, 1}, {0x0101, 0, 2}, {1 << 63, 0, 1}, {0, 1<<64 - 1, 8}, {0x1200340000560000, 0, 3},
	} {
		if n := wrongBytes(tc.got, tc.want); n != tc.n {
			t.Errorf("%#x, want %#x: %d wrong bytes, want %d", tc.got, tc.want, n, tc.n)
		}
	}
}

// TestWrongBytesAreSeen plants what a provider could do wrong: whatever it is, a run
// fails with it.
func TestWrongBytesAreSeen(t *testing.T) {
	s, err := openSender(t.Context(), Config{Connections: 1, Pool: 16 << 20, Rounds: 1}, "mem")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	for _, rows := range []Rows{Scattered, Strided} {
		l, err := newLayout(Spec{Rows: rows, Block: 4 << 10, Batch: 512, Pool: 16 << 20})
		if err != nil {
			t.Fatal(err)
		}
		w := s.writer(l)
		some, err := s.near.sampleOf(l.Spec)
		if err != nil {
			t.Fatal(err)
		}
		source, target := l.row(some.rows[0])
		for _, plant := range []struct {
			name  string
			wrong bool
			least int
			do    func()
		}{
			{"nothing", false, l.writes, func() {}},
			{"a byte of the target", true, l.writes, func() { s.near.pool.view[target+4095] ^= 1 }},
			{"bytes from elsewhere", true, l.writes, func() { copy(s.near.pool.view[target:][:4096], s.source.view[(source+4096)%(8<<20):]) }},
			{"a row that was not written", true, l.writes, func() { clear(s.near.pool.view[target:][:4096]) }},
			{"a row that was written and should not be", true, 1, func() { s.source.copyTo(s.near.pool, l, some, w.next) }},
			{"nothing again", false, 1, func() {}},
		} {
			w.far = planted{s.near, plant.do}
			_, err := w.run(t.Context(), 0, plant.least)
			var wrong *WrongBytesError
			if errors.As(err, &wrong) != plant.wrong || !plant.wrong && err != nil {
				t.Errorf("%s, %s: error is %v", rows, plant.name, err)
			}
		}
	}
}

// copyTo puts down a row of the sample that is not of the write before next.
func (p *pool) copyTo(to *pool, l *layout, some *sample, next int) {
	for _, i := range some.rows {
		if (i/l.Batch+1)%l.writes != next {
			source, target := l.row(i)
			copy(to.view[target:][:l.Block], p.view[source:])
			return
		}
	}
}

// planted does something before the bytes are looked at.
type planted struct {
	*receiver
	do func()
}

func (p planted) ask(o order) (answer, error) {
	if o.Do == doCheck {
		p.do()
	}
	return p.receiver.ask(o)
}

// TestRawLoopMovesEveryRow: what the ceiling is measured with does move the rows.
func TestRawLoopMovesEveryRow(t *testing.T) {
	s, err := openSender(t.Context(), Config{Connections: 3, Pool: 16 << 20, Rounds: 1, Peer: peerCommand(t)}, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	for _, rows := range []Rows{Scattered, Strided, Gathered, Spread} {
		l, err := newLayout(Spec{Rows: rows, Block: 512, Batch: 2048, Pool: 16 << 20})
		if err != nil {
			t.Fatal(err)
		}
		loop, err := s.loop(t.Context(), l)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.far.ask(order{Do: doClear, Spec: l.Spec}); err != nil {
			t.Fatal(err)
		}
		r, err := loop.run(t.Context(), 0, l.writes)
		if err != nil || r.Bytes < uint64(l.writes)*l.writeBytes() {
			t.Fatalf("%s: %d bytes: %v", rows, r.Bytes, err)
		}
		a, err := s.far.ask(order{Do: doCheck, Spec: l.Spec, Landed: l.writes})
		if err != nil || a.Wrong > 0 || a.Checked < sampleBytes/2 {
			t.Errorf("%s: %d of %d bytes are wrong: %v", rows, a.Wrong, a.Checked, err)
		}
	}
}
