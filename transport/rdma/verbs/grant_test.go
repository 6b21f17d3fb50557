package verbs

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

// A grant comes over the channel as it was given, and runs that its ranges share go once.
func TestGrantIsReadAsItWasTold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := rdma.Grant{ID: rdma.GrantID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))}
		number := rapid.OneOf(rapid.Uint32(), rapid.Uint32Range(0, 3))
		long := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 3))
		var runs [][]rdma.Run
		for range rapid.IntRange(1, 3).Draw(t, "runs") {
			var rs []rdma.Run
			for range rapid.IntRange(1, 4).Draw(t, "length") {
				rs = append(rs, rdma.Run{First: number.Draw(t, "first"), Count: number.Draw(t, "count"), Step: number.Draw(t, "step")})
			}
			runs = append(runs, rs)
		}
		used := map[[2]int]bool{}
		for range rapid.IntRange(1, 6).Draw(t, "ranges") {
			k := rapid.IntRange(0, len(runs)-1).Draw(t, "which")
			n := rapid.IntRange(1, len(runs[k])).Draw(t, "of it") // a part of runs is others
			used[[2]int{k, n}] = true
			g.Ranges = append(g.Ranges, rdma.Range{
				Region: rdma.RegionID(long.Draw(t, "region")), Offset: long.Draw(t, "offset"), UnitStride: long.Draw(t, "unit stride"), Bytes: long.Draw(t, "bytes"),
				Count: [2]uint32{number.Draw(t, "outer"), number.Draw(t, "inner")}, Stride: [2]uint64{long.Draw(t, "outer stride"), long.Draw(t, "inner stride")},
				Runs: runs[k][:n],
			})
		}
		raw, err := proto.Marshal(wireGrant(&g, 77))
		w := &control.Grant{}
		if err := errors.Join(err, proto.Unmarshal(raw, w)); err != nil {
			t.Fatal(err)
		}
		if len(w.Runs) != len(used) || w.Immediate != 77 {
			t.Fatalf("%d runs were told with immediate %d, want %d runs", len(w.Runs), w.Immediate, len(used))
		}
		got, err := readGrant(w)
		if err != nil || !reflect.DeepEqual(got, g) {
			t.Fatalf("got %+v, error %v; want %+v", got, err, g)
		}
		for i := range got.Ranges {
			for k := range got.Ranges {
				same := &g.Ranges[i].Runs[0] == &g.Ranges[k].Runs[0] && len(g.Ranges[i].Runs) == len(g.Ranges[k].Runs)
				if same != (&got.Ranges[i].Runs[0] == &got.Ranges[k].Runs[0]) {
					t.Fatalf("ranges %d and %d: that they share runs was %v", i, k, same)
				}
			}
		}
	})
}

func TestGrantsThatAreNone(t *testing.T) {
	id := make([]byte, 16)
	three := &control.Runs{Numbers: []uint32{0, 1, 1}}
	name := strings.Repeat("0", 32)
	for want, w := range map[string]*control.Grant{
		"the id of a grant has 0 bytes, want 16":                             {},
		"the id of a grant has 15 bytes, want 16":                            {Id: id[1:]},
		"the id of a grant has 17 bytes, want 16":                            {Id: append(id, 0)},
		"runs 0 of grant " + name + " have 0 numbers, want some, 3 for each": {Id: id, Runs: []*control.Runs{{}}},
		"runs 1 of grant " + name + " have 4 numbers, want some, 3 for each": {Id: id, Runs: []*control.Runs{three, {Numbers: []uint32{0, 1, 1, 0}}}},
		"range 0 of grant " + name + " has runs 0, want below 0":             {Id: id, Ranges: []*control.Range{{}}},
		"range 1 of grant " + name + " has runs 1, want below 1":             {Id: id, Runs: []*control.Runs{three}, Ranges: []*control.Range{{}, {Runs: 1}}},
		"range 0 of grant " + name + " has runs 4294967295, want below 1":    {Id: id, Runs: []*control.Runs{three}, Ranges: []*control.Range{{Runs: 1<<32 - 1}}},
	} {
		if g, err := readGrant(w); err == nil || err.Error() != want {
			t.Errorf("got %+v, error %v; want %s", g, err, want)
		}
	}
}

// The description of a grant fits a message, whole, or the grant is refused: a session
// never ends with what this side may grant.
func TestGrantThatFitsAMessage(t *testing.T) {
	p, _ := partsProvider(t, 1)
	s := partsSession(t, p, "b", false)
	defer partsEnd(s)
	partsUp(t, s)
	m, err := rdma.NewDeviceMemory("grant-test", rdma.DMABuf{File: devNull(t), Bytes: 1 << 36})
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Register(m)
	if err != nil {
		t.Fatal(err)
	}
	runs := []rdma.Run{{Count: 1, Step: 1}}
	g := rdma.Grant{Peer: "b", Ranges: []rdma.Range{{Region: d.Region, UnitStride: 8, Bytes: 8, Count: [2]uint32{1, 1}, Runs: runs}}}
	if err := p.Grant(g); err != nil { // so that the next has an immediate of one byte
		t.Fatal(err)
	}
	runs = make([]rdma.Run, (frameMost-100)/10) // 10 bytes each: a step that nothing uses is long
	for i := range runs {
		runs[i] = rdma.Run{First: 1<<31 + uint32(i), Count: 1, Step: 1 << 21}
	}
	g.Ranges[0].Runs = runs
	spare := frameMost - proto.Size(&control.Frame{Body: &control.Frame_Grant{Grant: wireGrant(&g, 1)}})
	for i := range spare + 1 {
		if runs[i].Step = 1 << 28; i < spare-1 { // one byte more
			continue
		}
		g.ID[0]++
		err := p.Grant(g)
		var failed *rdma.RangeError
		if fits := i == spare-1; fits != (err == nil) || !fits && (!errors.As(err, &failed) || failed.Got != frameMost+1 || failed.Want != frameMost) {
			t.Errorf("a message of %d bytes: got error %v", frameMost-spare+i+1, err)
		}
		p.mu.Lock()
		if s.state != up {
			t.Errorf("a message of %d bytes has ended the session: %v", frameMost-spare+i+1, s.why)
		}
		p.mu.Unlock()
	}
}
