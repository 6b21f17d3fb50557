package pairing

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

var rewrite = flag.Bool("rewrite", false, "write what the scenarios say now into their files")

// TestScenarios runs testdata/*.txt: lines of "> command arguments", each behind
// it what the nodes did. See command for what there is.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("scenarios: %v, %d files", err, len(files))
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, bad := play(t, string(want))
			if bad != "" {
				t.Errorf("violation: %s", bad)
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(want) {
				t.Errorf("%s differs (go test -rewrite, then read the diff); got:\n%s", file, got)
			}
		})
	}
}

// play runs a scenario and returns it with what happens now.
func play(t *testing.T, text string) (got, bad string) {
	w := newWorld()
	got = playIn(t, w, text)
	return got, w.bad
}

// playIn runs a scenario in a world.
func playIn(t *testing.T, w *world, text string) string {
	var out strings.Builder
	for _, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		switch {
		case strings.HasPrefix(line, "> "):
			out.WriteString(line + "\n")
			w.log.Reset()
			if err := w.command(strings.Fields(line)[1:]); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			out.WriteString(w.log.String())
		case line == "" || strings.HasPrefix(line, "#"):
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// command runs one line of a scenario.
func (w *world) command(f []string) error {
	for _, kind := range []func([]string) (bool, error){w.worldCommand, w.linkCommand, w.directoryCommand} {
		if known, err := kind(f); known {
			return err
		}
	}
	return fmt.Errorf("no command %q", f[0])
}

// at is a word of a line, "" where it ends.
func at(f []string, n int) string {
	if n < len(f) {
		return f[n]
	}
	return ""
}

// worldCommand is what happens to the world.
func (w *world) worldCommand(f []string) (bool, error) {
	arg := func(n int) string { return at(f, n) }
	name := func(n int) *node { return w.nodes[arg(n)] }
	switch f[0] {
	case "trace": // kinds
		clear(w.trace)
		for _, k := range f[1:] {
			w.trace[k] = true
		}
	case "start": // node incarnation [address]
		address := arg(3)
		if address == "" {
			address = arg(1) + ":1"
		}
		w.start(arg(1), number(arg(2)), address)
	case "meet": // nodes: gossip shows each to each
		for i := 1; i < len(f); i++ {
			for j := 1; j < len(f); j++ {
				if i != j {
					w.meet(name(i), name(j))
				}
			}
		}
	case "run":
		d, err := time.ParseDuration(arg(1))
		if err != nil {
			return true, err
		}
		w.run(d)
	case "crash":
		w.crash(name(1))
	case "cut", "heal": // from to
		w.cut[[2]string{arg(1), arg(2)}] = f[0] == "cut"
	case "hold": // from to: keep what is sent
		w.hold[[2]string{arg(1), arg(2)}] = true
	case "release": // from to [order of the held ones, 0-based; default all]
		return true, w.release(arg(1), arg(2), f[min(3, len(f)):])
	case "no-probes": // the actors that should answer die
		w.noProbes = arg(1) == "on"
	case "mend":
		w.mended = true
	case "mute":
		w.mute = arg(1) == "on"
	case "cluster": // node label
		w.cluster[arg(1)] = arg(2)
	case "version": // node min max
		w.version[arg(1)] = [2]uint32{uint32(number(arg(2))), uint32(number(arg(3)))}
	case "offer": // node providers
		w.offers[arg(1)] = f[2:]
	case "show": // what people see
		w.show(f[1:])
	default:
		return false, nil
	}
	return true, nil
}

// linkCommand is what happens to one Link.
func (w *world) linkCommand(f []string) (bool, error) {
	arg := func(n int) string { return at(f, n) }
	name := func(n int) *node { return w.nodes[arg(n)] }
	switch f[0] {
	case "gossip-down": // at, node, incarnation
		peer := messages.Node{Name: arg(2), Incarnation: number(arg(3))}
		name(1).step(peer, GossipDown{Cause: &messages.Cause{Kind: messages.CauseKind_CAUSE_PEER_LOST, Text: "gossip: node " + peer.String() + " is dead"}})
	case "silent": // at, node, incarnation
		peer := messages.Node{Name: arg(2), Incarnation: number(arg(3))}
		name(1).step(peer, Silent{Cause: &messages.Cause{Kind: messages.CauseKind_CAUSE_PEER_LOST, Text: "node " + peer.String() + ": silent"}})
	case "say": // from to
		name(1).submit(name(2).id)
	case "fence": // at, peer, generation number: 0 for whichever
		n, g := name(1), rdma.Generation{}
		for _, o := range n.opened[name(2).id] {
			if o.Number == number(arg(3)) {
				g = o
			}
		}
		n.step(name(2).id, FenceWanted{Generation: g, Reason: "a room asks"})
	case "slow-fence": // at duration
		d, err := time.ParseDuration(arg(2))
		name(1).slowFence = d
		return true, err
	case "hold-fence":
		name(1).heldFences = true
	case "release-fence":
		n := name(1)
		n.heldFences = false
		for _, do := range n.waiting {
			do()
		}
		n.waiting = nil
	case "progress":
		name(1).step(name(2).id, Progress{})
	case "break": // at, peer: the session breaks
		n, peer := name(1), name(2).id
		n.step(peer, Disconnected{Generation: n.links[peer].gen, Err: errors.New("broken pipe")})
	case "probe":
		name(1).step(name(2).id, Probe{})
	case "leave":
		n := name(1)
		for _, peer := range sorted(n.links, compareNodes) {
			n.step(peer, Leave{Reason: strings.Join(f[2:], " ")})
		}
	case "forget": // at, peer, [all]: the actor of the Link died; all: it forgot its numbers too
		n, peer := name(1), name(2).id
		first := n.numbers[peer]
		if arg(3) == "all" {
			first = 0
		}
		delete(n.up, peer)
		n.tell(LinkDown{Node: peer})
		n.open(peer, n.peerAddress[peer], first)
	default:
		return false, nil
	}
	return true, nil
}

// directoryCommand is what happens to one Directory.
func (w *world) directoryCommand(f []string) (bool, error) {
	arg := func(n int) string { return at(f, n) }
	name := func(n int) *node { return w.nodes[arg(n)] }
	switch f[0] {
	case "forget-directory": // node: the registry died; engines attach again by attach
		n := name(1)
		n.dir = NewDirectory(DirectoryConfig{Self: n.id, FirstVersion: number(arg(2))})
		n.pairs, n.ready, n.attached = map[string]*messages.Pairing{}, map[string]bool{}, map[place]messages.Engine{}
		for _, peer := range sorted(n.up, compareNodes) {
			n.tell(LinkUp{Node: peer, Address: n.peerAddress[peer], Generation: n.up[peer]})
		}
	case "attach":
		c, err := parseEngine(f[2:])
		if err != nil {
			return true, err
		}
		name(1).tell(Attach{Description: c})
	case "detach": // node instance tp incarnation
		name(1).tell(Detach{Engine: messages.Engine{Instance: arg(2), Rank: kv.Rank{TP: int(number(arg(3)))}, Incarnation: number(arg(4))},
			Cause: &messages.Cause{Kind: messages.CauseKind_CAUSE_DETACHED, Text: "detached"}})
	case "catalog": // at, from, version, part, parts, engines in parentheses: a part as if it came
		return true, w.catalog(name(1), name(2), f[3:])
	case "word": // at, from, prefill, decode, sequence, ready or reason: a word as if it came
		r := &messages.Readiness{Prefill: arg(3), Decode: arg(4), Sequence: number(arg(5)), Ready: arg(6) == "ready"}
		if p := name(1).dir.pairs[pairName{arg(3), arg(4)}]; p != nil {
			r.PrefillRoster, r.DecodeRoster = p.word.GetPrefillRoster(), p.word.GetDecodeRoster()
		}
		if !r.Ready {
			r.Reasons = []*messages.Reason{{Field: "test", Text: arg(6)}}
		}
		name(1).tell(ReadinessReceived{From: name(2).id, Readiness: r})
	default:
		return false, nil
	}
	return true, nil
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil && s != "" {
		panic(err)
	}
	return n
}

// release lets what was held go: all of it, or those of these places.
func (w *world) release(from, to string, order []string) error {
	w.hold[[2]string{from, to}] = false
	var mine, others []flight
	for _, f := range w.held {
		if f.from == from && f.to == to {
			mine = append(mine, f)
		} else {
			others = append(others, f)
		}
	}
	w.held = others
	if len(order) == 0 {
		for _, f := range mine {
			w.fly(f)
		}
		return nil
	}
	for _, o := range order {
		n, err := strconv.Atoi(o)
		if err != nil || n >= len(mine) {
			return fmt.Errorf("held envelope %s of %d", o, len(mine))
		}
		w.fly(mine[n])
	}
	return nil
}

func (w *world) show(names []string) {
	for _, name := range w.order {
		n := w.nodes[name]
		if len(names) > 0 && !slices.Contains(names, name) {
			continue
		}
		for _, peer := range sorted(n.links, compareNodes) {
			fmt.Fprintf(&w.log, "%s link %s: %s\n", n.id, peer, n.links[peer].State())
		}
		for _, e := range n.dir.Engines() {
			fmt.Fprintf(&w.log, "%s engine %s on %s: %s\n", n.id, e.Engine, e.Node, strings.TrimSuffix(e.State.String()+": "+e.Text, ": "))
		}
		for _, p := range n.dir.Pairs() {
			fmt.Fprintf(&w.log, "%s pair %s (%d of %d) + %s (%d of %d): %s%s\n", n.id, p.Prefill, p.PrefillHave, p.PrefillWant, p.Decode, p.DecodeHave, p.DecodeWant, p.State, printReasons(p.Reasons))
		}
	}
}

// catalog gives a Directory a part of a catalog as if it came.
func (w *world) catalog(n, from *node, f []string) error {
	c := &messages.Catalog{Version: number(f[0]), Part: uint32(number(f[1])), Parts: uint32(number(f[2])), Have: n.dir.version}
	var engine []string
	for _, word := range f[3:] {
		if word == ";" {
			e, err := parseEngine(engine)
			if err != nil {
				return err
			}
			c.Engines, engine = append(c.Engines, e), nil
			continue
		}
		engine = append(engine, word)
	}
	n.tell(CatalogReceived{From: from.id, Catalog: c})
	return nil
}

// parseEngine reads "prefill NAME TP-RANK of TP-SIZE #INCARNATION [page=N]
// [heads=N] [bytes=N]": a small model, whose heads are split over TP.
func parseEngine(f []string) (*messages.EngineDescription, error) {
	if len(f) < 6 {
		return nil, fmt.Errorf("engine %q", f)
	}
	d := Described{
		Role:   messages.Role_ROLE_DECODE,
		Engine: messages.Engine{Instance: f[1], Rank: kv.Rank{TP: int(number(f[2]))}, Incarnation: number(strings.TrimPrefix(f[5], "#"))},
		DP:     1, PP: 1, CP: 1, TP: int(number(f[4])),
	}
	if f[0] == "prefill" {
		d.Role = messages.Role_ROLE_PREFILL
	}
	page, heads, bytes := uint32(4), 4, uint64(1<<20)
	for _, o := range f[6:] {
		k, v, _ := strings.Cut(o, "=")
		switch k {
		case "page":
			page = uint32(number(v))
		case "heads":
			heads = int(number(v))
		case "bytes":
			bytes = number(v)
		default:
			return nil, fmt.Errorf("engine option %q", o)
		}
	}
	return Describe(small(d, page, heads, bytes)), nil
}

// small gives a description its model and memory.
func small(d Described, page uint32, heads int, bytes uint64) Described {
	const row = 16
	mine := heads / d.TP
	d.Model = kv.Model{ID: "small", Components: []kv.Component{{
		Name: "k", Kind: kv.Paged, Layers: []int{0, 1}, Heads: heads, HeadBytes: row, DType: kv.BF16,
	}}}
	d.Regions = []*messages.Region{{Bytes: bytes, Keys: []*messages.RegionKey{{Provider: "mem", Region: 1}}}}
	d.Kv = kv.Engine{Rank: d.Engine.Rank, RegionBytes: []uint64{bytes}}
	stride := uint64(page) * uint64(mine) * row
	d.Kv.Shards = []kv.Shard{{
		Component: "k", Heads: kv.HeadRange{Low: d.Engine.Rank.TP * mine, High: (d.Engine.Rank.TP + 1) * mine},
		PageTokens: page, PageStride: stride, RowStride: uint64(mine) * row, HeadStride: row,
		Layers: []kv.LayerTensor{{Layer: 0, Pages: 8}, {Layer: 1, Offset: 8 * stride, Pages: 8}},
	}}
	return d
}
