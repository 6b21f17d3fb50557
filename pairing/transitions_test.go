package pairing

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"kvferry/messages"
)

const protocolPage = "../docs/protocol-pairing.md"

// observed notes a change of state.
func (w *world) observed(before, ev, after string) {
	if before != after && w.seen != nil {
		w.seen["| "+before+" | "+ev+" | "+after+" |"] = true
	}
}

// stateOf is the state of a Link as the page has it.
func stateOf(l *Link) string {
	s, _, _ := strings.Cut(l.State(), ",")
	return s
}

// nameOf is the name of an event as the page has it.
func nameOf(ev LinkEvent) string {
	e, ok := ev.(EnvelopeReceived)
	if !ok {
		return strings.TrimPrefix(fmt.Sprintf("%T", ev), "pairing.")
	}
	switch e.Envelope.GetBody().(type) {
	case *messages.Envelope_Hello:
		return "hello"
	case *messages.Envelope_HelloAck:
		return "hello-ack"
	case *messages.Envelope_Ping:
		return "ping"
	case *messages.Envelope_Pong:
		return "pong"
	case *messages.Envelope_Bye:
		return "bye"
	case *messages.Envelope_ByeAck:
		return "bye-ack"
	case *messages.Envelope_NotFit:
		return "not-fit"
	}
	return "body"
}

// nameOfDirectory is the same for a Directory.
func nameOfDirectory(ev DirectoryEvent) string {
	return strings.TrimPrefix(fmt.Sprintf("%T", ev), "pairing.")
}

// statesOf is the state of every pair and engine of a Directory.
func statesOf(d *Directory) map[string]string {
	states := map[string]string{}
	for _, p := range d.Pairs() {
		states["pair "+p.Prefill+"+"+p.Decode] = p.State.String()
	}
	for _, e := range d.Engines() {
		states[fmt.Sprintf("engine %s %s", e.Engine, e.Node)] = e.State.String()
	}
	return states
}

// compareStates notes what a Directory's step changed.
func (w *world) compareStates(before, after map[string]string, ev DirectoryEvent) {
	for name, b := range before {
		kind, _, _ := strings.Cut(name, " ")
		a, ok := after[name]
		if !ok {
			a = "gone"
		}
		if a != b {
			w.seen["| "+kind+" "+b+" | "+nameOfDirectory(ev)+" | "+a+" |"] = true
		}
	}
	for name, a := range after {
		if _, ok := before[name]; !ok {
			kind, _, _ := strings.Cut(name, " ")
			w.seen["| "+kind+" unknown | "+nameOfDirectory(ev)+" | "+a+" |"] = true
		}
	}
}

// TestTransitionsAreThoseOfThePage: the tables of docs/protocol-pairing.md are
// exactly the transitions that all scenarios and 150 worlds of random faults go
// through.
func TestTransitionsAreThoseOfThePage(t *testing.T) {
	seen := map[string]bool{}
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorld()
		w.seen = seen
		playIn(t, w, string(text))
	}
	faults := rapid.Custom(func(t *rapid.T) *trouble {
		w := &trouble{world: newWorld()}
		w.seen = seen
		w.play(t)
		return w
	})
	for seed := range 150 {
		if w := faults.Example(seed); w.bad != "" {
			t.Errorf("seed %d: %s", seed, w.bad)
		}
	}
	var links, pairs, engines []string
	for line := range seen {
		switch {
		case strings.HasPrefix(line, "| pair "):
			pairs = append(pairs, strings.Replace(line, "| pair ", "| ", 1))
		case strings.HasPrefix(line, "| engine "):
			engines = append(engines, strings.Replace(line, "| engine ", "| ", 1))
		default:
			links = append(links, line)
		}
	}
	page, err := os.ReadFile(protocolPage)
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for name, rows := range map[string][]string{"link": links, "pair": pairs, "engine": engines} {
		slices.Sort(rows)
		text = compareTable(t, text, name, rows)
	}
	text = comparePicture(t, text, "link", links)
	if *rewrite {
		if err := os.WriteFile(protocolPage, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// compareTable compares the rows between two marks of the page, or puts them
// there.
func compareTable(t *testing.T, page, name string, rows []string) string {
	begin, end := "<!-- table "+name+" -->\n", "<!-- end "+name+" -->\n"
	i, j := strings.Index(page, begin), strings.Index(page, end)
	if i < 0 || j < i {
		t.Fatalf("%s has no table %q", protocolPage, name)
	}
	i += len(begin)
	head := "| state | event | next |\n|---|---|---|\n"
	want := strings.Split(strings.TrimSpace(strings.TrimPrefix(page[i:j], head)), "\n")
	if !*rewrite {
		for _, r := range rows {
			if !slices.Contains(want, r) {
				t.Errorf("table %s lacks what happens: %s", name, r)
			}
		}
		for _, r := range want {
			if !slices.Contains(rows, r) {
				t.Errorf("table %s has what does not happen: %s", name, r)
			}
		}
	}
	return page[:i] + head + strings.Join(rows, "\n") + "\n" + page[j:]
}

// comparePicture compares the picture between two marks of the page with the rows of a
// table, or puts it there: an arrow for each two states, with all that makes it.
func comparePicture(t *testing.T, page, name string, rows []string) string {
	begin, end := "<!-- picture "+name+" -->\n", "<!-- end picture "+name+" -->\n"
	before, rest, ok := strings.Cut(page, begin)
	got, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no picture %q", protocolPage, name)
	}
	events := map[string][]string{}
	for _, r := range rows { // "| state | event | next |", in order
		f := strings.Split(strings.Trim(r, "| "), " | ")
		arrow := f[0] + " --> " + f[2]
		events[arrow] = append(events[arrow], f[1])
	}
	var b strings.Builder
	b.WriteString("```mermaid\nstateDiagram-v2\n    [*] --> waiting\n")
	for _, arrow := range slices.Sorted(maps.Keys(events)) {
		fmt.Fprintf(&b, "    %s: %s\n", arrow, strings.Join(events[arrow], ", "))
	}
	b.WriteString("    closed --> [*]\n```\n")
	if got != b.String() && !*rewrite {
		t.Errorf("picture %s: got\n%s\nwant\n%s", name, got, b.String())
	}
	return before + begin + b.String() + end + after
}

// play runs random faults and the quiet after them.
func (w *trouble) play(t *rapid.T) {
	w.incarnation = 100
	w.chance = chance(rapid.Uint64().Draw(t, "seed"))
	for _, name := range cast {
		w.incarnation++
		w.start(name, w.incarnation, name+":1")
	}
	for _, a := range cast {
		for _, b := range cast {
			if a != b {
				w.meet(w.nodes[a], w.nodes[b])
			}
		}
		w.attach(a)
	}
	w.run(100 * time.Millisecond)
	for range rapid.IntRange(1, 30).Draw(t, "faults") {
		w.act(t)
		w.run(time.Duration(rapid.IntRange(0, 700).Draw(t, "ms")) * time.Millisecond)
	}
	w.quiet()
}
