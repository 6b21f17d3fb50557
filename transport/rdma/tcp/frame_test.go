package tcp

import (
	"bytes"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"kvferry/transport/rdma"
)

// payloadOf reads what iovecs point at.
func payloadOf(v iovecs) []byte {
	var out []byte
	for _, e := range v {
		out = append(out, unsafe.Slice(e.Base, e.Len)...)
	}
	return out
}

func drawWrite(t *rapid.T, source []byte) *rdma.Write {
	w := &rdma.Write{Grant: rdma.GrantID{9}}
	for range rapid.IntRange(1, 3).Draw(t, "copies") {
		c := rdma.Copy{
			Bytes: rapid.SampledFrom([]uint64{1, 3, 512, 2000, 70000}).Draw(t, "bytes"),
			Count: [2]uint32{rapid.Uint32Range(1, 5).Draw(t, "outer"), rapid.Uint32Range(1, 9).Draw(t, "inner")},
		}
		for _, p := range []*rdma.Place{&c.Source, &c.Target} {
			p.Region = 3
			p.Offset = rapid.Uint64Range(0, 100).Draw(t, "offset")
			p.Stride = [2]uint64{rapid.Uint64Range(0, 9000).Draw(t, "outer stride"), rapid.Uint64Range(0, 600).Draw(t, "inner stride")}
			p.UnitStride = rapid.Uint64Range(0, 20000).Draw(t, "unit stride")
		}
		for range rapid.IntRange(1, 4).Draw(t, "runs") {
			c.Runs = append(c.Runs, rdma.PairRun{
				Source: rapid.Uint32Range(0, 5).Draw(t, "source"), Target: rapid.Uint32Range(0, 5).Draw(t, "target"),
				Count: rapid.Uint32Range(1, 4).Draw(t, "count"), SourceStep: rapid.Uint32Range(0, 3).Draw(t, "step"), TargetStep: rapid.Uint32Range(0, 3).Draw(t, "step"),
			})
		}
		if c.Check("c", uint64(len(source)), rdma.Unbounded) == nil {
			w.Copies = append(w.Copies, c)
		}
	}
	if len(w.Copies) == 0 {
		t.Skip("no copy fits")
	}
	return w
}

// TestFramesAreTheWrite cuts writes and puts the frames together again: the same
// source byte goes to the same target address in the same order.
func TestFramesAreTheWrite(t *testing.T) {
	source := make([]byte, 1<<20)
	for i := range source {
		source[i] = byte(i*7 ^ i>>8)
	}
	type placed struct {
		at    uint64
		value byte
	}
	rapid.Check(t, func(t *rapid.T) {
		w := drawWrite(t, source)
		limit := rapid.SampledFrom([]uint64{frameBytesMin, frameBytesMin, 100_000}).Draw(t, "frame bytes")
		if w.Bytes() > 400_000 {
			t.Skip("too much to list")
		}
		var want, got []placed
		var sources [][]byte
		for i := range w.Copies {
			sources = append(sources, source)
			for rows := rdma.RowsOf(&w.Copies[i]); rows.Next(); {
				for b := range rows.Bytes {
					want = append(want, placed{rows.Target + b, source[rows.Source+b]})
				}
			}
		}
		var at cursor
		var f, parsed body
		for done := false; !done; {
			var payload iovecs
			f.reset()
			done = cut(w, sources, &at, &f, &payload, limit)
			raw := f.encode(nil)
			if f.bytes == 0 || f.bytes > limit || f.rows > rowsMax || len(raw) > bodyMax {
				t.Fatalf("a frame of %d bytes, %d rows, body of %d bytes", f.bytes, f.rows, len(raw))
			}
			if err := parsed.parse(raw, f.bytes); err != nil {
				t.Fatal(err)
			}
			bytes := payloadOf(payload)
			for i := range parsed.pieces {
				eachRow(&parsed.pieces[i], func(o uint64) {
					for b := range parsed.pieces[i].Bytes {
						got = append(got, placed{o + b, bytes[0]})
						bytes = bytes[1:]
					}
				})
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("frames place %d bytes, want %d, or elsewhere", len(got), len(want))
		}
	})
}

func eachRow(r *rdma.Range, f func(offset uint64)) {
	for _, run := range r.Runs {
		for u := range uint64(run.Count) {
			for i := range uint64(r.Count[0]) {
				for j := range uint64(r.Count[1]) {
					f(r.Offset + (uint64(run.First)+u*uint64(run.Step))*r.UnitStride + i*r.Stride[0] + j*r.Stride[1])
				}
			}
		}
	}
}

func TestAManyUnitsWriteHasOneRunPerFrame(t *testing.T) {
	w := &rdma.Write{Copies: []rdma.Copy{{
		Source: rdma.Place{UnitStride: 512}, Target: rdma.Place{UnitStride: 1024}, Bytes: 512,
		Count: [2]uint32{1, 1}, Runs: []rdma.PairRun{{Count: 8000, SourceStep: 1, TargetStep: 1}},
	}}}
	var at cursor
	var f body
	var payload iovecs
	if !cut(w, [][]byte{make([]byte, 8000*512)}, &at, &f, &payload, frameBytesDefault) || len(f.pieces) != 1 || len(f.runs) != 1 {
		t.Errorf("got %d pieces and %d runs, want 1 and 1", len(f.pieces), len(f.runs))
	}
	if len(payload) != 1 {
		t.Errorf("a contiguous source is %d iovecs, want 1", len(payload))
	}
}

func TestIovecsAdvance(t *testing.T) {
	memory := []byte("abcdefghij")
	var v iovecs
	v.add(memory, 0, 3)
	v.add(memory, 3, 2) // goes on
	v.add(memory, 7, 3)
	if len(v) != 2 {
		t.Fatalf("got %d entries, want 2", len(v))
	}
	for n := range uint64(8) {
		w := slices.Clone(v)
		if w.advance(n); string(payloadOf(w)) != "abcdehij"[n:] {
			t.Errorf("after %d: got %q", n, payloadOf(w))
		}
	}
}

func TestHelloRoundTrip(t *testing.T) {
	h := hello{from: "a@1", to: "b@2", generation: rdma.Generation{Number: 3, Low: 4, High: 5}, stripe: 1, stripes: 4}
	got, err := readHello(bytes.NewReader(h.encode()))
	if err != nil || got != h {
		t.Errorf("got %+v, %v", got, err)
	}
	for at, v := range map[int]byte{0: 0, 4: 9, 6: 4, 8: 0, 11: 3, 14: 1} {
		b := h.encode()
		b[at] = v
		if _, err := readHello(bytes.NewReader(b)); err == nil {
			t.Errorf("byte %d as %d was taken", at, v)
		}
	}
}

// FuzzFrame parses what a peer could send: it never panics, and what it accepts is
// bounded and says the same when it is encoded again.
func FuzzFrame(f *testing.F) {
	source := make([]byte, 1<<16)
	w := &rdma.Write{Grant: rdma.GrantID{1, 2}, Copies: []rdma.Copy{{
		Source: rdma.Place{UnitStride: 100, Stride: [2]uint64{50, 10}}, Target: rdma.Place{Region: 1, Offset: 5, UnitStride: 900, Stride: [2]uint64{90, 20}},
		Bytes: 10, Count: [2]uint32{2, 3}, Runs: []rdma.PairRun{{Source: 1, Target: 2, Count: 5, SourceStep: 1, TargetStep: 2}, {Source: 9, Target: 50, Count: 1}},
	}}}
	var at cursor
	var b body
	var payload iovecs
	cut(w, [][]byte{source}, &at, &b, &payload, frameBytesMin)
	h := head{kind: kindFrame, number: 1, payload: b.bytes}
	raw := b.encode(make([]byte, headBytes))
	h.body = uint32(len(raw) - headBytes)
	h.encode(raw)
	f.Add(raw)
	f.Add([]byte{kindAck, statusLanded, 31: 0})
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) < headBytes {
			return
		}
		h, err := parseHead(raw)
		if err != nil {
			return
		}
		var again [headBytes]byte
		if h.encode(again[:]); !bytes.Equal(again[:], raw[:headBytes]) {
			t.Fatalf("head %x comes back as %x", raw[:headBytes], again)
		}
		var d body
		if d.parse(raw[headBytes:], h.payload) != nil {
			return
		}
		rows, sum := uint64(0), uint64(0)
		for i := range d.pieces {
			eachRow(&d.pieces[i], func(o uint64) {
				if rows++; rows > rowsMax || o > rdma.Unbounded-d.pieces[i].Bytes {
					t.Fatalf("row %d at %d", rows, o)
				}
				sum += d.pieces[i].Bytes
			})
		}
		if rows != d.rows || sum != h.payload {
			t.Fatalf("%d rows of %d bytes, said %d of %d", rows, sum, d.rows, h.payload)
		}
		if !bytes.Equal(d.encode(nil), raw[headBytes:]) {
			t.Fatal("the body comes back changed")
		}
	})
}
