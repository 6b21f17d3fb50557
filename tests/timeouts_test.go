package tests

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"kvferry/actors"
	"kvferry/cluster"
	"kvferry/node"
	"kvferry/node/remoting"
	"kvferry/pairing"
	"kvferry/transfer"
	"kvferry/transport/rdma/shm"
	"kvferry/transport/rdma/tcp"
	"kvferry/transport/rdma/verbs"
)

const timeoutsPage = "../docs/timeouts.md"

// timed are the packages whose times are those of a node.
var timed = []string{
	"actors", "actors/decode", "actors/peers", "actors/prefill", "actors/registry", "actors/transport", "cluster", "kv", "messages", "node",
	"node/remoting", "pairing", "transfer", "transport/rdma", "transport/rdma/memcopy", "transport/rdma/shm", "transport/rdma/tcp", "transport/rdma/verbs",
}

// nameless are the files that may have a unit of time outside of a constant, and why.
var nameless = map[string]string{
	"actors/limits.go":                "Resolve: the defaults, which this test takes from it",
	"cluster/config.go":               "Resolve: the same",
	"pairing/limits.go":               "Resolve: the same",
	"transfer/limits.go":              "Resolve: the same, and what bounds them",
	"transfer/wire.go":                "milliseconds on the wire",
	"transfer/receiver_open.go":       "milliseconds on the wire",
	"transport/rdma/shm/config.go":    "what bounds a setting",
	"transport/rdma/tcp/config.go":    "what bounds a setting",
	"transport/rdma/verbs/config.go":  "what bounds a setting",
	"transport/rdma/verbs/channel.go": "milliseconds of a socket option",
}

// settings are the structs that have times, with the defaults where a function of the
// package says them; else each has a constant, of the name of the field and Default.
func settings(t *testing.T) map[string]any {
	rooms, err := transfer.Limits{}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	timing, err := cluster.Timing{}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	engine, err := actors.EngineLimits{}.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"transfer.Limits": rooms, "pairing.Limits": pairing.Limits{}.Resolve(), "cluster.Timing": timing, "actors.EngineLimits": engine,
		"tcp.Config": tcp.Config{}, "shm.Config": shm.Config{}, "verbs.Config": verbs.Config{}, "remoting.Config": remoting.Config{},
	}
}

// bespoke are times that a caller gives with one call, or that a struct of another name
// takes on, and that have no default of their own.
var bespoke = []string{"node.SendRequest.Wait", "node.ReceiveRequest.Wait"}

// fieldsOf are the fields of a struct that are times, those of structs of ours in it
// included, by package, type and name.
func fieldsOf(of reflect.Type, seen map[reflect.Type]bool, found func(of reflect.Type, f reflect.StructField)) {
	if of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
		of = of.Elem()
	}
	if of.Kind() != reflect.Struct || seen[of] || !strings.HasPrefix(of.PkgPath(), "kvferry/") {
		return
	}
	seen[of] = true
	for i := range of.NumField() {
		f := of.Field(i)
		if f.Type == reflect.TypeFor[time.Duration]() && f.IsExported() {
			found(of, f)
		}
		fieldsOf(f.Type, seen, found)
	}
}

// constantsOf are the package's constants of time, and where a file has a unit of time
// outside of one.
func constantsOf(t *testing.T, dir string) (constants map[string]time.Duration, outside []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	constants = map[string]time.Duration{}
	set := token.NewFileSet()
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".pb.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				for range unitsIn(d) {
					outside = append(outside, filepath.ToSlash(strings.TrimPrefix(name, "../")))
				}
				continue
			}
			for _, spec := range g.Specs {
				v := spec.(*ast.ValueSpec)
				for i, e := range v.Values {
					if unitsIn(e) != nil {
						constants[v.Names[i].Name] = valueOf(t, v.Names[i].Name, e)
					}
				}
			}
		}
	}
	return constants, slices.Compact(outside)
}

var units = map[string]time.Duration{
	"Nanosecond": time.Nanosecond, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond,
	"Second": time.Second, "Minute": time.Minute, "Hour": time.Hour,
}

// unitOf is the unit of time that an expression is, 0 if it is none.
func unitOf(n ast.Node) time.Duration {
	s, ok := n.(*ast.SelectorExpr)
	if !ok {
		return 0
	}
	if x, ok := s.X.(*ast.Ident); !ok || x.Name != "time" {
		return 0
	}
	return units[s.Sel.Name]
}

func unitsIn(n ast.Node) (found []ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		if unitOf(n) != 0 {
			found = append(found, n)
		}
		return true
	})
	return found
}

// valueOf is what a constant is: a unit, or a number of them.
func valueOf(t *testing.T, name string, e ast.Expr) time.Duration {
	t.Helper()
	if u := unitOf(e); u != 0 {
		return u
	}
	if b, ok := e.(*ast.BinaryExpr); ok && b.Op == token.MUL {
		if n, ok := b.X.(*ast.BasicLit); ok {
			if v, err := strconv.Atoi(n.Value); err == nil && unitOf(b.Y) != 0 {
				return time.Duration(v) * unitOf(b.Y)
			}
		}
	}
	t.Fatalf("constant %s: this test reads a unit, or a number of them", name)
	return 0
}

// inCode are all times of a node, by the name that the page gives them.
func inCode(t *testing.T) map[string]time.Duration {
	all := map[string]time.Duration{}
	constants := map[string]map[string]time.Duration{} // by name of the package
	for _, dir := range timed {
		short := filepath.Base(dir)
		found, outside := constantsOf(t, dir)
		constants[short] = found
		for name, v := range found {
			all[short+"."+name] = v
		}
		for _, file := range outside {
			if nameless[file] == "" {
				t.Errorf("%s has a time without a name: make it a constant, and say in %s what it is", file, timeoutsPage)
			}
		}
	}
	for _, file := range []string{"run.go", "drive.go"} {
		found, _ := constantsOf(t, "cmd/node")
		src, err := os.ReadFile("../cmd/node/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for name, v := range found {
			if regexp.MustCompile(`(?m)^\s*(const )?` + name + ` = `).Match(src) {
				all["kvferry run: "+name] = v
			}
		}
	}
	resolved := settings(t)
	seen := map[reflect.Type]bool{}
	for _, root := range []any{node.Config{}, node.EngineConfig{}, node.SendRequest{}, node.ReceiveRequest{}, tcp.Config{}, shm.Config{}, remoting.Config{}} {
		fieldsOf(reflect.TypeOf(root), seen, func(of reflect.Type, f reflect.StructField) {
			name := of.String() + "." + f.Name
			if slices.Contains(bespoke, name) {
				return
			}
			s, ok := resolved[of.String()]
			if !ok {
				t.Errorf("%s is a time, and this test does not know its default", name)
				return
			}
			v := reflect.ValueOf(s).FieldByIndex(f.Index).Interface().(time.Duration)
			if v == 0 {
				short, _, _ := strings.Cut(of.String(), ".")
				constant := strings.ToLower(f.Name[:1]) + f.Name[1:] + "Default"
				if v, ok = constants[short][constant]; !ok {
					t.Errorf("%s has no default: want a constant %s", name, constant)
				}
				delete(all, short+"."+constant) // the setting has the row
			}
			all[name] = v
		})
	}
	return all
}

// onPage is the table of the page.
func onPage(t *testing.T) map[string]time.Duration {
	t.Helper()
	page, err := os.ReadFile(timeoutsPage)
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "<!-- times -->")
	table, _, ok2 := strings.Cut(table, "<!-- end -->")
	if !ok || !ok2 {
		t.Fatalf("%s has no table between its marks", timeoutsPage)
	}
	all := map[string]time.Duration{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\| ([^|]+) \\|$").FindAllStringSubmatch(table, -1) {
		d, err := time.ParseDuration(strings.ReplaceAll(row[2], " ", ""))
		if err != nil {
			t.Errorf("%s: %s: %v", timeoutsPage, row[1], err)
		}
		if _, twice := all[row[1]]; twice {
			t.Errorf("%s has %s twice", timeoutsPage, row[1])
		}
		for i, what := range []string{"what it bounds", "what happens", "how it is set"} {
			if len(strings.TrimSpace(row[3+i])) < 2 {
				t.Errorf("%s does not say of %s %s", timeoutsPage, row[1], what)
			}
		}
		all[row[1]] = d
	}
	if rows := strings.Count(table, "\n| `"); rows != len(all) {
		t.Errorf("%s has %d rows, of which %d can be read", timeoutsPage, rows, len(all))
	}
	return all
}

// Every time of a node is finite, is on the page, and is there as it is in the code. None
// is 300 s: what waits that long and says nothing is what people found in others.
func TestEveryTimeoutIsFiniteAndOnThePage(t *testing.T) {
	code, page := inCode(t), onPage(t)
	if len(code) < 60 {
		t.Errorf("only %d times were found in the code", len(code))
	}
	for name, v := range code {
		switch got, ok := page[name]; {
		case v <= 0 || v > 24*time.Hour:
			t.Errorf("%s is %v, want more than 0 and at most a day", name, v)
		case v == 300*time.Second:
			t.Errorf("%s is %v", name, v)
		case !ok:
			t.Errorf("%s is %v, and %s does not have it", name, v, timeoutsPage)
		case got != v:
			t.Errorf("%s is %v, and %s says %v", name, v, timeoutsPage, got)
		}
	}
	for name := range page {
		if _, ok := code[name]; !ok {
			t.Errorf("%s has %s, which is not in the code", timeoutsPage, name)
		}
	}
}

// The test above sees what it is to see.
func TestTimesAreFound(t *testing.T) {
	dir := filepath.Join("..", "tests", "testdata", "times")
	constants, outside := constantsOf(t, strings.TrimPrefix(filepath.ToSlash(dir), "../"))
	if want := map[string]time.Duration{"patience": 3 * time.Second, "rest": time.Minute}; fmt.Sprint(constants) != fmt.Sprint(want) {
		t.Errorf("constants are %v, want %v", constants, want)
	}
	if len(outside) != 1 {
		t.Errorf("files with a time without a name: %v, want one", outside)
	}
}
