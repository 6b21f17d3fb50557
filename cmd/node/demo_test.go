package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"kvferry/kv"
)

// testDemo is a small demo with its sizes settled.
func testDemo(t *testing.T, prefill, decode string, change func(*demoFlags)) *sized {
	t.Helper()
	f := &demoFlags{rooms: 40, scale: 0.02, seed: 5, decodeInstances: 2, layers: 4}
	f.model, f.output = "qwen3-30b-a3b", "text"
	if change != nil {
		change(f)
	}
	p, err := parseShort("--prefill", prefill, f.model)
	if err != nil {
		t.Fatal(err)
	}
	d, err := parseShort("--decode", decode, f.model)
	if err != nil {
		t.Fatal(err)
	}
	s, err := sizeDemo(f, p, d, 600<<20)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func playFake(t *testing.T, s *sized, f *fakeCluster) (*demoResult, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return newPlay(s, &fakeLauncher{cluster: f}, io.Discard).run(ctx)
}

func TestEveryRoomOfEveryTopologyArrives(t *testing.T) {
	for _, c := range []struct {
		model, prefill, decode string
		instances              int
	}{
		{"qwen3-30b-a3b", "tp=2", "tp=1", 2},
		{"qwen3-30b-a3b", "tp=8,pp=2,page=16", "tp=2,page=64,layout=hnd", 1},
		{"deepseek-v2-lite", "tp=4", "tp=2", 1},
		{"qwen3-30b-a3b", "tp=1,dp=2,page=3,layout=hnd", "tp=2,dp=2,page=5", 2},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			s := testDemo(t, c.prefill, c.decode, func(f *demoFlags) { f.model, f.decodeInstances = c.model, c.instances })
			r, err := playFake(t, s, newFakeCluster())
			if err != nil {
				t.Fatal(err)
			}
			if r.Rooms != 40 || r.Failed != 0 || r.WrongBytes != 0 || len(r.Failures) != 0 || len(r.took) != 40 {
				t.Fatalf("%+v", r)
			}
			if want := s.moved() + 40*demoMetaBytes*uint64(s.decode.TP*s.decode.PP); r.Bytes != want {
				t.Fatalf("%d bytes arrived, want %d", r.Bytes, want)
			}
			sent := uint64(0)
			for _, n := range r.Nodes {
				if n.Role == "prefill" {
					sent += n.Bytes
				}
			}
			if sent != r.Bytes || r.PlannedCopies == 0 || r.P99 < r.P50 {
				t.Fatalf("%d bytes sent: %+v", sent, r)
			}
		})
	}
}

func TestOneFlippedByteIsOneWrongByte(t *testing.T) {
	for seed := range uint64(6) {
		s := testDemo(t, "tp=2,page=8", "tp=1", func(f *demoFlags) { f.flipByte, f.seed, f.rooms = true, seed, 12 })
		r, err := playFake(t, s, newFakeCluster())
		if err != nil {
			t.Fatal(err)
		}
		if r.WrongBytes != 1 || r.Failed != 1 || len(r.Failures) != 1 || !strings.Contains(r.Failures[0].Reason, "1 wrong bytes, the first at decode-") {
			t.Fatalf("seed %d: %+v", seed, r)
		}
	}
}

func TestCopiesThatMissTheirPlaceAreSeen(t *testing.T) {
	for name, bend := range map[string]func(*kv.Copy){
		"a row of the source beside": func(c *kv.Copy) {
			if c.Component == "k" && c.Layer == 1 && c.Source.Offset > 0 {
				c.Source.Offset -= 256
			}
		},
		"one row too many": func(c *kv.Copy) {
			if c.Component == "v" && c.Layer == 0 {
				c.Bytes += 256
			}
		},
		"another layer": func(c *kv.Copy) {
			if c.Component == "k" && c.Layer == 0 {
				c.Layer, c.Source.Offset = 1, c.Source.Offset+4096
			}
		},
		"not at all": func(c *kv.Copy) {
			if c.Layer == 2 {
				c.Runs = nil
			}
		},
		"another metadata row": func(c *kv.Copy) {
			if c.Component == "" {
				c.Bytes--
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeCluster()
			f.bend = bend
			r, err := playFake(t, testDemo(t, "tp=1", "tp=1", func(f *demoFlags) { f.rooms = 6 }), f)
			if err != nil || r.WrongBytes == 0 || r.Failed == 0 {
				t.Fatalf("%+v, %v", r, err)
			}
		})
	}
}

// TestADeadDecodeNodeFailsOnlyItsRooms kills one of two decode nodes while rooms
// of it never end.
func TestADeadDecodeNodeFailsOnlyItsRooms(t *testing.T) {
	f := newFakeCluster()
	f.stall[9] = true
	s := testDemo(t, "tp=2", "tp=1", nil)
	l := &fakeLauncher{cluster: f, started: make(chan *fakeProcess, 8)}
	p := newPlay(s, l, io.Discard)
	p.patience = 100 * time.Millisecond
	var victim *demoNode
	p.now = func() time.Time {
		if r := p.open[9]; r != nil && victim == nil {
			victim = p.nodes[2+p.places[r.place].instance]
			victim.process.kill()
		}
		return time.Now()
	}
	r, err := p.run(t.Context())
	if err == nil || victim == nil || !strings.Contains(err.Error(), victim.name+" died: ") {
		t.Fatalf("%v", err)
	}
	if r.Rooms != 40 || r.Failed < 1 || r.Failed > instanceRooms || len(r.Failures) != r.Failed || r.WrongBytes != 0 {
		t.Fatalf("%+v", r)
	}
	for _, f := range r.Failures {
		if !strings.Contains(f.Reason, victim.name+" died") {
			t.Errorf("room %d: %s", f.Room, f.Reason)
		}
	}
}

func TestAnInterruptEndsTheRoomsAndTheNodes(t *testing.T) {
	f := newFakeCluster()
	f.stall[3] = true
	s := testDemo(t, "tp=2", "tp=1", func(f *demoFlags) { f.decodeInstances = 1 })
	ctx, cancel := context.WithCancelCause(t.Context())
	p := newPlay(s, &fakeLauncher{cluster: f}, io.Discard)
	p.now = func() time.Time {
		if p.open[3] != nil && p.next > 4 {
			cancel(errors.New("interrupted"))
		}
		return time.Now()
	}
	r, err := p.run(ctx)
	if err == nil || err.Error() != "interrupted" {
		t.Fatal(err)
	}
	if r.Rooms != 40 || r.Failed == 0 || !slices.ContainsFunc(r.Failures, func(f roomFailure) bool { return f.Room == 3 }) {
		t.Fatalf("%+v", r)
	}
	for _, n := range p.nodes {
		if !n.ended {
			t.Errorf("%s was not reaped", n.name)
		}
	}
}

func TestANodeThatFailsInTheStartIsSaid(t *testing.T) {
	s := testDemo(t, "tp=2", "tp=1", nil)
	l := &fakeLauncher{cluster: newFakeCluster(), failing: "decode-1"}
	r, err := newPlay(s, l, io.Discard).run(t.Context())
	if r != nil || err == nil || !strings.Contains(err.Error(), "start decode-1: the node failed") {
		t.Fatalf("%v, %v", r, err)
	}
}

func TestJSONHasExactlyTheFieldsThatScriptsRelyOn(t *testing.T) {
	s := testDemo(t, "tp=2", "tp=1", func(f *demoFlags) { f.rooms = 3 })
	r, err := playFake(t, s, newFakeCluster())
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := r.print(&b, "json", s); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := []string{"bytes", "failed", "failures", "gb_per_s", "nodes", "p50_ms", "p99_ms", "planned_copies", "rooms", "seconds", "wrong_bytes"}
	var keys []string
	for k := range got {
		keys = append(keys, k)
	}
	if slices.Sort(keys); !slices.Equal(keys, want) {
		t.Fatalf("got %v, want %v", keys, want)
	}
	if got["failures"] == nil || len(got["nodes"].([]any)) != 4 {
		t.Fatalf("%s", b.String())
	}
	node := got["nodes"].([]any)[3].(map[string]any)
	if node["name"] != "decode-1" || node["role"] != "decode" || node["pid"] == nil || node["rooms"] == nil || node["bytes"] == nil || len(node) != 5 {
		t.Fatalf("%v", node)
	}
}

func TestTheTableIsAligned(t *testing.T) {
	tab := table{head: []string{"node", "rooms"}}
	tab.add("prefill-0", "3")
	tab.add("d", "1,000")
	var b bytes.Buffer
	if err := tab.write(&b, " "); err != nil {
		t.Fatal(err)
	}
	if want := " node       rooms\n prefill-0      3\n d          1,000\n"; b.String() != want {
		t.Fatalf("got\n%s\nwant\n%s", b.String(), want)
	}
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 5 << 30: "5 GiB", 1023 << 20: "0.999 GiB", 1 << 45: "32 TiB"} {
		if got := humanBytes(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := grouped(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

func TestPercentiles(t *testing.T) {
	for _, c := range []struct {
		n, percent int
		want       time.Duration
	}{{0, 50, 0}, {1, 50, 1}, {1, 99, 1}, {2, 50, 1}, {100, 50, 50}, {100, 99, 99}, {200, 99, 198}, {101, 99, 100}} {
		var all []time.Duration
		for i := range c.n {
			all = append(all, time.Duration(i+1))
		}
		if got := percentile(all, c.percent); got != c.want {
			t.Errorf("p%d of %d: got %d, want %d", c.percent, c.n, got, c.want)
		}
	}
}
