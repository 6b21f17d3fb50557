package transfer

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kvferry/messages"
)

const protocolDoc = "../docs/protocol.md"

// section is what stands between <!-- name --> and <!-- end --> in the document.
func section(t *testing.T, doc, name string) (before, text, after string) {
	before, rest, ok := strings.Cut(doc, "<!-- "+name+" -->\n")
	text, after, ok2 := strings.Cut(rest, "<!-- end -->")
	if !ok || !ok2 {
		t.Fatalf("%s has no section %s", protocolDoc, name)
	}
	return before + "<!-- " + name + " -->\n", text, "<!-- end -->" + after
}

func transitionTable[S interface {
	~uint8
	fmt.Stringer
}](moves map[[2]S]string) string {
	var keys [][2]S
	for k := range moves {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, func(a, b [2]S) int { return int(a[0])*100 + int(a[1]) - int(b[0])*100 - int(b[1]) })
	var b strings.Builder
	b.WriteString("\n| from | to | when |\n|---|---|---|\n")
	for _, k := range keys {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", k[0], k[1], moves[k])
	}
	return b.String() + "\n"
}

// diagram is the same table as a picture: mermaid, which code hosts draw. What begins
// and ends it are the first state and the last.
func diagram[S interface {
	~uint8
	fmt.Stringer
}](moves map[[2]S]string, states []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n```mermaid\nstateDiagram-v2\n    [*] --> %s\n", states[0])
	for _, from := range states {
		for _, to := range states {
			for m, when := range moves {
				if m[0].String() == from && m[1].String() == to {
					// A semicolon ends a statement of mermaid.
					fmt.Fprintf(&b, "    %s --> %s: %s\n", from, to, strings.ReplaceAll(when, ";", ","))
				}
			}
		}
	}
	fmt.Fprintf(&b, "    %s --> [*]\n```\n\n", states[len(states)-1])
	return b.String()
}

// invariantsOf is the numbered list in the comment of a type.
func invariantsOf(t *testing.T, file, typ string) string {
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	comment, _, ok := strings.Cut(string(src), "type "+typ+" struct")
	at := strings.LastIndex(comment, "\n\n// ")
	if !ok || at < 0 {
		t.Fatalf("%s has no comment of %s", file, typ)
	}
	item := regexp.MustCompile(`^//\s+(\d+)\.\s+(.*)$`)
	var b strings.Builder
	for line := range strings.Lines(comment[at+2:]) {
		line = strings.TrimRight(line, "\n")
		switch m := item.FindStringSubmatch(line); {
		case m != nil:
			fmt.Fprintf(&b, "\n%s. %s", m[1], m[2])
		case strings.HasPrefix(line, "//     ") && b.Len() > 0:
			b.WriteString(" " + strings.TrimSpace(strings.TrimPrefix(line, "//")))
		}
	}
	return b.String() + "\n\n"
}

func limitsTable() string {
	l, _ := Limits{}.Resolve()
	var b strings.Builder
	b.WriteString("\n| limit | default |\n|---|---|\n")
	for _, d := range l.durations() {
		fmt.Fprintf(&b, "| %s | %v |\n", d.name, *d.value)
	}
	for _, c := range l.counts() {
		fmt.Fprintf(&b, "| %s | %d |\n", c.name, *c.value)
	}
	fmt.Fprintf(&b, "| FloorTokens | %d tokens/s |\n| WriteBytes | %d MiB |\n", l.FloorTokens, l.WriteBytes>>20)
	return b.String() + "\n"
}

// docs/protocol.md has the tables, the invariants and the limits of this code;
// -rewrite brings them up to date.
func TestTheDocumentEqualsTheCode(t *testing.T) {
	b, err := os.ReadFile(protocolDoc)
	if err != nil {
		t.Fatal(err)
	}
	doc := string(b)
	for _, s := range []struct{ name, want string }{
		{"sender diagram", diagram(senderMoves, senderStates[:])},
		{"receiver diagram", diagram(receiverMoves, receiverStates[:])},
		{"sender transitions", transitionTable(senderMoves)},
		{"receiver transitions", transitionTable(receiverMoves)},
		{"sender invariants", invariantsOf(t, "sender.go", "Sender")},
		{"receiver invariants", invariantsOf(t, "receiver.go", "Receiver")},
		{"limits", limitsTable()},
	} {
		before, got, after := section(t, doc, s.name)
		if got != s.want && !*rewrite {
			t.Errorf("section %s: got\n%s\nwant\n%s", s.name, got, s.want)
		}
		doc = before + s.want + after
	}
	if *rewrite {
		if err := os.WriteFile(protocolDoc, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, state := range append(senderStates[:], receiverStates[:]...) {
		if !strings.Contains(doc, "\n| "+state+" | ") {
			t.Errorf("%s does not say what state %s is", protocolDoc, state)
		}
	}
}

// The message table has every body that reaches a room, and nothing else.
func TestTheDocumentHasEveryMessage(t *testing.T) {
	b, err := os.ReadFile(protocolDoc)
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := section(t, string(b), "messages")
	var want []string
	fields := (&messages.Room{}).ProtoReflect().Descriptor().Oneofs().ByName("body").Fields()
	for i := range fields.Len() {
		want = append(want, string(fields.Get(i).Message().Name()))
	}
	var got []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(table, -1) {
		got = append(got, m[1])
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// Every transition that is declared is made by some scenario or random room, so
// that none is only on paper; that none is made which is not declared, the
// machines see to themselves.
func TestEveryTransitionIsSeen(t *testing.T) {
	seen := map[string]bool{}
	add := func(w *world) {
		for m := range w.moved {
			seen[m] = true
		}
	}
	files, _ := filepath.Glob("testdata/*.txt")
	for _, f := range files {
		if w := playFile(t, f, false); w != nil {
			add(w)
		}
	}
	for m := range senderMoves {
		if key := "sender " + m[0].String() + " " + m[1].String(); !seen[key] {
			t.Errorf("no scenario makes the transition %s", key)
		}
	}
	for m := range receiverMoves {
		if key := "receiver " + m[0].String() + " " + m[1].String(); !seen[key] {
			t.Errorf("no scenario makes the transition %s", key)
		}
	}
}
