package transfer

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected output of the scenario files")

// TestScenarios plays testdata/*.txt. A file tells one story: its first lines, with #, say
// which; then blocks of commands, a line ----, and what the machines did.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scenario files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) { playFile(t, file, *rewrite) })
	}
}

// playFile plays a file and returns its world.
func playFile(t *testing.T, file string, rewrite bool) *world {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	p := &player{t: t}
	for _, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		if strings.HasPrefix(block, "#") {
			out.WriteString(block + "\n\n")
			continue
		}
		commands, want, _ := strings.Cut(block+"\n", "----\n")
		for line := range strings.Lines(commands) {
			p.play(strings.Fields(strings.TrimSpace(line)))
		}
		got := p.output()
		if !rewrite && got != want {
			t.Fatalf("%s\ngot:\n%s\nwant:\n%s", commands, got, want)
		}
		out.WriteString(commands + "----\n" + got + "\n")
	}
	if rewrite {
		if err := os.WriteFile(file, []byte(strings.TrimSpace(out.String())+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return p.w
}

// player carries out the commands of a scenario.
type player struct {
	t *testing.T
	w *world
}

// output is what happened since it was last asked.
func (p *player) output() string {
	var b strings.Builder
	for _, line := range p.w.trace {
		b.WriteString(line + "\n")
	}
	p.w.trace = nil
	return b.String()
}

func (p *player) play(args []string) {
	if len(args) == 0 {
		return
	}
	if p.w == nil && args[0] != "world" {
		p.w = newWorld(p.t, setting{prefillTP: 1, prefillPP: 1, decodeTP: 1, decodePP: 1, length: 8})
	}
	switch args[0] {
	case "world":
		p.world(args[1:])
		return
	case "forge":
		p.forge(args[1])
	case "deliver", "drop", "dup", "only":
		p.network(args[0], args[1:])
	case "land", "lose", "refuse", "unpost", "haunt", "arrive":
		p.transport(args[0], args[1:])
	case "fence", "down", "renew", "suspect", "trust", "stick", "unstick", "close":
		p.link(args[0], args[1:])
	case "tick":
		p.w.tick(p.duration(args[1]))
	case "messages":
		p.w.log("%d messages", p.w.messages)
	case "net":
		for _, m := range p.w.net {
			p.w.log("on the way: m%d %s>%s %s", m.n, m.from.name, m.to.name, describeBody(m.body))
		}
	case "end":
		p.w.checkEnd()
		p.w.log("all has ended")
	default:
		p.engine(args)
	}
	p.w.settle()
}

func (p *player) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

func (p *player) number(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// world makes the world: prefill=TPxPP decode=TPxPP length=N prefix=N prefix.d1=N,
// limits by name, and flags.
func (p *player) world(args []string) {
	s := setting{prefillTP: 1, prefillPP: 1, decodeTP: 1, decodePP: 1, length: 8, prefix: map[string]uint64{}}
	for _, arg := range args {
		key, value, _ := strings.Cut(arg, "=")
		switch {
		case key == "prefill":
			fmt.Sscanf(value, "%dx%d", &s.prefillTP, &s.prefillPP)
		case key == "decode":
			fmt.Sscanf(value, "%dx%d", &s.decodeTP, &s.decodePP)
		case key == "length":
			s.length = p.number(value)
		case strings.HasPrefix(key, "prefix"):
			s.prefix[strings.TrimPrefix(strings.TrimPrefix(key, "prefix"), ".")] = p.number(value)
		case key == "grantruns":
			s.limits.GrantRuns = int(p.number(value))
		case key == "window":
			s.limits.Window = int(p.number(value))
		case key == "writebytes":
			s.limits.WriteBytes = p.number(value)
		case key == "chunks":
			s.limits.Chunks = int(p.number(value))
		case key == "verbs":
			s.verbs = true
		case key == "unpaired":
			s.held = true
		case key == "badmeta":
			s.badMeta = true
		case key == "dp":
			s.dp = int(p.number(value))
		case key == "scattered":
			s.scattered = true
		case key == "hybrid":
			s.hybrid = true
		case key == "nometa":
			s.noMeta = true
		default:
			p.t.Fatalf("world: %q", arg)
		}
	}
	p.w = newWorld(p.t, s)
}

// engines are those that a word names: p0, all, prefill or decode.
func (p *player) engines(word string) []*engine {
	var out []*engine
	for _, e := range p.w.engines {
		if word == "all" || word == e.name || word == "prefill" && e.prefill || word == "decode" && !e.prefill {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		p.t.Fatalf("no engine %q", word)
	}
	return out
}

// engine carries out a command to engines: open, receive, pair, chunk, abort, lose-engine.
func (p *player) engine(args []string) {
	for _, e := range p.engines(args[1]) {
		switch args[0] {
		case "open":
			e.send(p.wait(args[2:]))
		case "receive":
			e.receive(p.wait(args[2:]))
		case "pair":
			e.pair()
		case "unpair":
			e.step(Unpaired{Instance: "d"})
		case "chunk":
			c := Chunk{From: p.number(args[2]), To: p.number(args[3]), Source: e.sourcePages(), Last: slices.Contains(args, "last")}
			for _, arg := range args[4:] {
				if layers, ok := strings.CutPrefix(arg, "layers="); ok {
					c.Layers = int(p.number(layers))
				}
			}
			e.step(c)
		case "abort":
			cause := &messages.Cause{Kind: messages.CauseKind_CAUSE_ABORTED, Text: "the caller of " + e.name + " gave up", Origin: e.name}
			if slices.Contains(args, "superseded") {
				cause = &messages.Cause{Kind: messages.CauseKind_CAUSE_SUPERSEDED, Text: "attempt 2 began", Origin: e.name}
			}
			e.step(Abort{Cause: cause})
		case "hold":
			e.holds = true
		case "free": // its node answers what it held
			e.holds = false
			for _, ev := range e.held {
				p.w.later(e, ev)
			}
			e.held = nil
		case "die":
			p.w.die(e)
		case "roster": // the engine's instance pairs with another roster
			other := *p.w.pairing
			p.w.pairing = &other
			other.DecodeRoster = messages.RosterHash{9}
		default:
			p.t.Fatalf("command %q", args)
		}
	}
}

func (p *player) wait(args []string) time.Duration {
	if len(args) == 0 {
		return 0
	}
	return p.duration(args[0])
}

// packets selects messages on the way: all, mN, a kind ("Grant"), or from>to.
func (p *player) packets(words []string) []*packet {
	var out []*packet
	for _, m := range p.w.net {
		kind, _, _ := strings.Cut(describeBody(m.body), " ")
		matches := func(word string) bool {
			return word == "all" || word == fmt.Sprintf("m%d", m.n) || word == strings.TrimSuffix(kind, ",") || word == m.from.name+">"+m.to.name
		}
		if len(words) == 0 || !slices.ContainsFunc(words, func(word string) bool { return !matches(word) }) {
			out = append(out, m)
		}
	}
	return out
}

func (p *player) network(command string, words []string) {
	switch command {
	case "deliver": // and, of all, what comes of it
		for {
			list := p.packets(words)
			if len(list) == 0 {
				return
			}
			p.w.deliver(list[0])
			if len(words) > 0 && words[0] != "all" && len(p.packets(words)) == 0 {
				return
			}
		}
	case "only":
		if list := p.packets(words); len(list) > 0 {
			p.w.deliver(list[0])
		}
	case "drop":
		for _, m := range p.packets(words) {
			p.w.net = slices.DeleteFunc(p.w.net, func(q *packet) bool { return q == m })
			p.w.log("m%d: %s>%s %s: lost", m.n, m.from.name, m.to.name, describeBody(m.body))
		}
	case "dup": // a copy with a number of its own, as a resend is
		for _, m := range p.packets(words) {
			p.w.transmit(m.from, m.to, m.body)
		}
	}
}

// forge changes the digest of every grant on the way, or the bytes of every done:
// what a peer with another plan would send.
func (p *player) forge(what string) {
	for _, m := range p.w.net {
		switch b := m.body.(type) {
		case *messages.Grant:
			if what == "digest" {
				c := proto.Clone(b).(*messages.Grant)
				c.Digest[0] ^= 1
				m.body = c
			}
		case *messages.Done:
			if what == "bytes" {
				c := proto.Clone(b).(*messages.Done)
				c.Bytes++
				m.body = c
			}
		}
	}
}

// transport carries out land, lose, refuse, unpost WRITER [RECEIVER] [withhold],
// haunt and arrive.
func (p *player) transport(command string, args []string) {
	pick := func(list []*flight) []*flight {
		return slices.DeleteFunc(slices.Clone(list), func(f *flight) bool {
			return len(args) > 0 && args[0] != "all" && f.link.prefill.name != args[0] ||
				len(args) > 1 && strings.HasPrefix(args[1], "d") && f.link.decode.name != args[1]
		})
	}
	if slices.Contains(args, "one") {
		whole := pick
		pick = func(list []*flight) []*flight { return whole(list)[:1] }
	}
	switch command {
	case "land":
		for {
			list := pick(p.w.flights)
			for _, f := range list {
				p.w.land(f, slices.Contains(args, "withhold"))
				p.w.settle()
			}
			if len(pick2(pick, p.w.flights)) == 0 || slices.Contains(args, "one") {
				return
			}
		}
	case "lose":
		for _, f := range pick(p.w.flights) {
			p.w.lose(f)
		}
	case "refuse":
		for _, f := range pick(p.w.flights) {
			p.w.unflight(f)
			p.w.complete(f, rdma.Refused)
		}
	case "unpost":
		for _, f := range pick(p.w.flights) {
			p.w.unflight(f)
			p.w.complete(f, rdma.NotPosted)
		}
	case "haunt":
		for _, f := range pick(p.w.ghosts) {
			p.w.log("what is left of w%d of %s lands: %t", f.post.Write, f.link.prefill.name, p.w.mayLand(f))
			p.w.haunt(f)
		}
	case "arrive":
		for _, e := range p.engines(args[0]) {
			p.w.tellWithheld(e, func(withheld) bool { return true })
		}
	}
}

func pick2(pick func([]*flight) []*flight, list []*flight) []*flight {
	if len(list) == 0 {
		return nil
	}
	return pick(list)
}

// link carries out fence, down, renew, suspect and trust WRITER RECEIVER, and
// stick and unstick, by which a fence cannot or can close that pair's grants; close is
// unstick where the provider tells of it.
func (p *player) link(command string, args []string) {
	a, b := p.w.named(args[0]), p.w.named(args[1])
	if a.prefill == b.prefill { // siblings have no data connection, and can be suspect
		p.w.later(a, Suspect{Engines: []messages.Engine{b.id}, Suspect: command == "suspect"})
		p.w.later(b, Suspect{Engines: []messages.Engine{a.id}, Suspect: command == "suspect"})
		return
	}
	l := p.w.link(a, b)
	switch command {
	case "fence":
		p.w.fence(l, slices.Contains(args, "lost"), !slices.Contains(args, "only"))
	case "down":
		l.up = false
	case "renew":
		p.w.renew(l)
	case "suspect", "trust":
		p.w.suspect(l, command == "suspect")
	case "stick", "unstick", "close":
		for _, g := range p.w.grants {
			if g.owner != l.decode || g.writer != l.prefill {
				continue
			}
			if g.stuck = command == "stick"; command == "close" {
				p.w.closeLate(g)
			}
		}
	}
}
