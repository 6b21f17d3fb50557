package verbs

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

// A region comes over the channel as it is: every byte has the key of its registration,
// with each rail, and the bytes that are left of it.
func TestRegionIsReadAsItWasTold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rails := rapid.IntRange(1, 4).Draw(t, "rails")
		r := &region{id: 5, addr: rapid.Uint64Range(0, 1<<50).Draw(t, "address"), bytes: rapid.Uint64Range(1, 100).Draw(t, "bytes"), piece: rapid.Uint64Range(1, 120).Draw(t, "piece")}
		r.near = rapid.Uint64Range(0, 1<<rails-1).Draw(t, "near")
		of := newSpace(r.addr, rails)
		addr, keys := of.add(0, r.bytes, r.piece)
		for _, card := range keys {
			var known []registration
			for _, k := range card {
				known = append(known, fixedKey(k))
			}
			r.keys = append(r.keys, known)
		}
		raw, err := proto.Marshal(r.wire())
		if err != nil {
			t.Fatal(err)
		}
		w := &control.Region{}
		if err := proto.Unmarshal(raw, w); err != nil {
			t.Fatal(err)
		}
		got, err := readRegion(w, rails)
		if err != nil {
			t.Fatal(err)
		}
		near := r.near
		if near == 0 { // it says nothing, so all are
			near = 1<<rails - 1
		}
		if got.addr != r.addr || got.bytes != r.bytes || got.piece != r.piece || got.near != near {
			t.Fatalf("got %+v, want %+v", got, r)
		}
		if n := pieces(r.bytes, r.piece); n != len(keys[0]) {
			t.Fatalf("%d bytes are %d pieces of %d, want %d", r.bytes, n, r.piece, len(keys[0]))
		}
		for at := range r.bytes {
			for i := range rails {
				mine, rest := r.local(i, at)
				if x := of.byKey[i][mine]; addr+at < x[0] || addr+at+rest != x[1] {
					t.Fatalf("byte %d with card %d: key %#x and %d bytes; it is for %v", at, i, mine, rest, x)
				}
				if theirs, n := got.remote(i, at); theirs != ^mine || n != rest {
					t.Fatalf("byte %d with rail %d: key %#x and %d bytes, want %#x and %d", at, i, theirs, n, ^mine, rest)
				}
			}
		}
	})
}

func TestRegionsThatAreNone(t *testing.T) {
	keys := func(n ...int) (rails []*control.Keys) {
		for _, n := range n {
			rails = append(rails, &control.Keys{Keys: make([]uint32, n)})
		}
		return rails
	}
	good := func() *control.Region {
		return &control.Region{Id: 5, Address: 1 << 40, Bytes: 10000, Piece: 4096, Rails: keys(3, 3), Near: []uint32{1}}
	}
	if r, err := readRegion(good(), 2); err != nil || r.near != 2 {
		t.Fatalf("got %+v, error %v", r, err)
	}
	for _, c := range []struct {
		change func(w *control.Region)
		want   string
	}{
		{func(w *control.Region) { w.Id = 0 }, "region 0 has 10000 bytes at 0x10000000000 in pieces of 4096"},
		{func(w *control.Region) { w.Bytes, w.Rails = 0, keys(0, 0) }, "region 5 has 0 bytes at 0x10000000000 in pieces of 4096"},
		{func(w *control.Region) { w.Piece = 0 }, "region 5 has 10000 bytes at 0x10000000000 in pieces of 0"},
		{func(w *control.Region) { w.Address = 1<<64 - 9999 }, "region 5 has 10000 bytes at 0xffffffffffffd8f1 in pieces of 4096"},
		{func(w *control.Region) { w.Bytes, w.Piece, w.Rails = 1<<62+1, 1<<62, keys(2, 2) }, "region 5 has 4611686018427387905 bytes"},
		{func(w *control.Region) { w.Bytes, w.Piece = 1<<64-1, 1<<64-1 }, "region 5 has 18446744073709551615 bytes"},
		{func(w *control.Region) { w.Piece, w.Rails = 1<<64-1, keys(1, 1) }, "in pieces of 18446744073709551615"},
		{func(w *control.Region) { w.Rails = nil }, "region 5 has keys of 0 rails, want 2"},
		{func(w *control.Region) { w.Rails = keys(3) }, "region 5 has keys of 1 rails, want 2"},
		{func(w *control.Region) { w.Rails = keys(3, 3, 3) }, "region 5 has keys of 3 rails, want 2"},
		{func(w *control.Region) { w.Rails = keys(3, 2) }, "region 5 has 2 keys of rail 1, want 3"},
		{func(w *control.Region) { w.Rails = keys(4, 3) }, "region 5 has 4 keys of rail 0, want 3"},
		{func(w *control.Region) { w.Rails = []*control.Keys{nil, nil} }, "region 5 has 0 keys of rail 0, want 3"},
		{func(w *control.Region) { w.Near = []uint32{0, 2} }, "region 5 is near rail 2, want below 2"},
		{func(w *control.Region) { w.Near = []uint32{1<<32 - 1} }, "region 5 is near rail 4294967295, want below 2"},
	} {
		w := good()
		c.change(w)
		if r, err := readRegion(w, 2); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %+v, error %v; want %q", r, err, c.want)
		}
	}
}

// What a device takes at once, and in all, is what it says.
func TestRegisterInPieces(t *testing.T) {
	for _, c := range []struct {
		bytes  uint64
		limits []Limits
		want   []uint64 // registrations, by their bytes
		err    string
	}{
		{bytes: 5 << 30, limits: []Limits{{}}, want: []uint64{2 << 30, 2 << 30, 1 << 30}},
		{bytes: 2 << 30, limits: []Limits{{MaxMR: 1<<64 - 1, MaxMRs: 1 << 24}}, want: []uint64{2 << 30}},
		{bytes: 2<<30 + 1, limits: []Limits{{}}, want: []uint64{2 << 30, 1}},
		{bytes: 3 << 30, limits: []Limits{{}, {MaxMR: 1 << 30}}, want: []uint64{1 << 30, 1 << 30, 1 << 30}},
		{bytes: 1 << 31, limits: []Limits{{MaxMR: 1<<31 - 1}}, want: []uint64{1<<31 - 4096, 4096}}, // whole pages
		{bytes: 10000, limits: []Limits{{MaxMR: 4096, MaxMRs: 3}}, want: []uint64{4096, 4096, 10000 - 8192}},
		{bytes: 10000, limits: []Limits{{MaxMR: 4096, MaxMRs: 2}}, err: "register 10000 bytes with fake_0: it takes 3 registrations of 4096 bytes, and the device has 2"},
		{bytes: 10000, limits: []Limits{{MaxMR: 100}}, want: []uint64{10000}}, // it is no limit
	} {
		p, _ := partsProvider(t, len(c.limits))
		var nics []*partsNic
		for i, x := range p.cards {
			n := newPartsNic(c.limits[i])
			x.nic, x.limits = n, c.limits[i]
			nics = append(nics, n)
		}
		m, err := rdma.NewDeviceMemory("pieces", rdma.DMABuf{File: devNull(t), Offset: 8192, Addr: 1 << 41, Bytes: c.bytes})
		if err != nil {
			t.Fatal(err)
		}
		d, err := p.Register(m)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%+v: got error %v, want %q", c.limits, err, c.err)
			}
		} else if err != nil || d.Bytes != c.bytes {
			t.Errorf("%+v: got %+v, error %v", c.limits, d, err)
		}
		for _, n := range nics {
			at := uint64(0)
			for i, w := range n.wins {
				if i >= len(c.want) || w.bytes != c.want[i] || w.addr != 1<<41+at || w.offset != 8192+at || w.dmabuf < 0 {
					t.Errorf("%+v: registration %d is %+v, want %v", c.limits, i, w, c.want)
				}
				at += w.bytes
			}
			if len(n.wins) != len(c.want) {
				t.Errorf("%+v: %d registrations, want %v", c.limits, len(n.wins), c.want)
			}
		}
		if err == nil {
			if err := p.Deregister(d.Region); err != nil {
				t.Error(err)
			}
		}
		for _, n := range nics {
			if n.known != 0 {
				t.Errorf("%+v: %d registrations are left", c.limits, n.known)
			}
		}
	}
}

// A registration that fails takes those before it along, with every card.
func TestRegisterThatFails(t *testing.T) {
	p, _ := partsProvider(t, 2)
	good, bad := newPartsNic(Limits{}), newPartsNic(Limits{})
	p.cards[0].nic, p.cards[1].nic = good, failingNic{bad}
	m, err := rdma.NewDeviceMemory("fails", rdma.DMABuf{File: devNull(t), Bytes: 7 << 30})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Register(m); err == nil || !strings.Contains(err.Error(), "register 7516192768 bytes with fake_1: cannot allocate memory") {
		t.Errorf("got error %v", err)
	}
	if good.known != 0 || bad.known != 0 || len(good.wins) != 4 || len(bad.wins) != 2 || len(p.memory) != 0 {
		t.Errorf("%d and %d registrations are left of %d and %d, and %d regions", good.known, bad.known, len(good.wins), len(bad.wins), len(p.memory))
	}
}
