package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var self = Member{Name: "self", Incarnation: 5, Address: "10.0.0.1:1", Gossip: "10.0.0.1:2", VersionMin: 1, VersionMax: 1}

// place is a member at a host that is named by one letter.
func place(name string, incarnation uint64, host string) Member {
	return Member{
		Name: name, Incarnation: incarnation, VersionMin: 1, VersionMax: 1,
		Address: host + ":1", Gossip: host + ":2",
	}
}

// play runs a scenario: each line is a command, and what is told stands under it,
// indented. Commands:
//
//	alive NAME INCARNATION HOST   gossip holds it alive
//	dead NAME INCARNATION         gossip holds it dead
//	left NAME INCARNATION         gossip saw it leave
//	members                       who is there
//	held                          who is held back
//
// Lines that begin with # tell the story.
func play(t *testing.T, text string) string {
	t.Helper()
	v := NewView(self)
	var b strings.Builder
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		if strings.HasPrefix(line, "\t") {
			continue // an answer
		}
		fmt.Fprintln(&b, line)
		w := strings.Fields(line)
		if len(w) == 0 || w[0] == "#" {
			continue
		}
		var events []Event
		switch w[0] {
		case "alive":
			v, events = v.Step(Alive{place(w[1], parse(t, w[2]), w[3])})
		case "dead":
			v, events = v.Step(Gone{w[1], parse(t, w[2]), Dead})
		case "left":
			v, events = v.Step(Gone{w[1], parse(t, w[2]), Left})
		case "members":
			fmt.Fprintf(&b, "\t%v\n", v.Members())
		case "held":
			fmt.Fprintf(&b, "\t%v\n", v.Held())
		default:
			t.Fatalf("unknown command %q", line)
		}
		for _, event := range events {
			switch e := event.(type) {
			case Up:
				fmt.Fprintf(&b, "\tup %s at %s\n", e.Member, e.Member.Address)
			case Down:
				fmt.Fprintf(&b, "\tdown %s %s\n", e.Member, e.Reason)
			}
		}
	}
	return b.String()
}

func parse(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("got %d scenarios, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got := play(t, string(text)); got != string(text) {
				t.Errorf("got\n%s\nwant\n%s", got, text)
			}
		})
	}
}

// drawMember draws from few names, incarnations and hosts, so that they clash.
func drawMember(t *rapid.T) Member {
	m := place(rapid.SampledFrom([]string{"a", "b", "c", "self"}).Draw(t, "name"),
		rapid.Uint64Range(1, 6).Draw(t, "incarnation"),
		rapid.SampledFrom([]string{"h1", "h2", "h3", "10.0.0.1"}).Draw(t, "host"))
	if rapid.IntRange(0, 5).Draw(t, "gossip elsewhere") == 0 {
		m.Gossip = rapid.SampledFrom([]string{"h1:2", "h2:2", "h4:2"}).Draw(t, "gossip")
	}
	return m
}

func TestViewKeepsItsRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := NewView(self)
		alive := map[memberKey]Member{} // the obvious model: what gossip holds alive
		up := map[memberKey]Member{}    // as told
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			m := drawMember(t)
			var c Change = Alive{m}
			if rapid.Bool().Draw(t, "gone") {
				c = Gone{m.Name, m.Incarnation, Dead}
				delete(alive, key(m))
			} else if key(m) != key(self) {
				alive[key(m)] = m
			}
			before := fmt.Sprint(v)
			next, events := v.Step(c)
			if fmt.Sprint(v) != before {
				t.Fatal("the old view changed")
			}
			v = next
			checkTold(t, up, c, events)
			checkView(t, v, alive, up)
		}
		// Gossip settles: of all that clash one is alive. Then all of them are up.
		for k := range alive {
			for _, other := range []memberKey{k} {
				if m, ok := alive[other]; ok && clash(m, self) {
					delete(alive, other)
					v, _ = v.Step(Gone{k.name, k.incarnation, Dead})
				}
			}
		}
		for k, m := range alive {
			for k2, m2 := range alive {
				if k != k2 && clash(m, m2) {
					delete(alive, k2)
					v, _ = v.Step(Gone{k2.name, k2.incarnation, Dead})
				}
			}
		}
		if got := len(v.Members()) - 1; got != len(alive) || len(v.Held()) != 0 {
			t.Fatalf("got %v and held %v, want all of %v", v.Members(), v.Held(), alive)
		}
	})
}

// checkTold plays the events over what was told before.
func checkTold(t *rapid.T, up map[memberKey]Member, c Change, events []Event) {
	for _, event := range events {
		switch e := event.(type) {
		case Up:
			if _, twice := up[key(e.Member)]; twice {
				t.Fatalf("up twice: %s", e.Member)
			}
			for _, other := range up {
				if clash(other, e.Member) {
					t.Fatalf("up %s while %s is", e.Member, other)
				}
			}
			up[key(e.Member)] = e.Member
		case Down:
			if up[key(e.Member)] != e.Member {
				t.Fatalf("down, and was not up: %s", e.Member)
			}
			g, gone := c.(Gone)
			if own := gone && key(e.Member) == (memberKey{g.Name, g.Incarnation}); own != (e.Reason == Dead) {
				t.Fatalf("down %s %s after %+v", e.Member, e.Reason, c)
			}
			if e.Reason == Replaced && !slices.ContainsFunc(events, func(other Event) bool {
				u, ok := other.(Up)
				return ok && samePlace(u.Member, e.Member) && u.Member.Incarnation > e.Member.Incarnation
			}) && (gone || c.(Alive).Member.Name != e.Member.Name || c.(Alive).Member.Incarnation != e.Member.Incarnation) {
				t.Fatalf("down %s replaced by nobody of %v", e.Member, events)
			}
			delete(up, key(e.Member))
		}
	}
}

// checkView compares the view with what was told and what gossip holds alive.
func checkView(t *rapid.T, v View, alive, up map[memberKey]Member) {
	members := slices.DeleteFunc(v.Members(), func(m Member) bool { return m == self })
	if len(members) != len(up) {
		t.Fatalf("members %v, told %v", members, up)
	}
	for _, m := range members {
		if up[key(m)] != m || alive[key(m)] != m {
			t.Fatalf("member %v is not what was told or is not alive", m)
		}
	}
	if len(members)+len(v.Held()) != len(alive) {
		t.Fatalf("members %v and held %v, want %v", members, v.Held(), alive)
	}
	for _, held := range v.Held() {
		if len(v.Against(held)) == 0 {
			t.Fatalf("%v is held and clashes with nobody", held)
		}
	}
	// Rule 2: nobody is held by lower incarnations at the same place alone.
	for _, held := range v.Held() {
		if !slices.ContainsFunc(v.Against(held), func(m Member) bool {
			return m == self || !samePlace(m, held) || m.Incarnation >= held.Incarnation
		}) {
			t.Fatalf("%v is held by %v", held, v.Against(held))
		}
	}
}
