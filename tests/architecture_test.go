package tests

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// mayImport is the architecture: a package, and those of ours that it may use,
// directly or through others. "framework" stands for the actor framework and
// "gossip" for memberlist. A package that is not listed is an error: whoever adds
// one says here where it stands.
var mayImport = map[string]string{
	"kv":                      "",
	"transport/rdma":          "",
	"cluster":                 "gossip",
	"messages":                "kv transport/rdma",
	"pairing":                 "kv transport/rdma messages",
	"transfer":                "kv transport/rdma messages",
	"transport/rdma/mem":      "transport/rdma",
	"transport/rdma/tcp":      "transport/rdma",
	"transport/rdma/memcopy":  "",
	"transport/rdma/shm":      "transport/rdma transport/rdma/memcopy",
	"transport/rdma/verbs":    "transport/rdma transport/rdma/verbs/control",
	"transport/rdma/rdmatest": "transport/rdma",

	"transport/rdma/verbs/control": "",

	"sim":                 "kv transport/rdma messages pairing transfer cluster gossip actors framework",
	"actors":              "kv transport/rdma messages pairing transfer framework",
	"actors/transport":    "kv transport/rdma messages pairing transfer actors framework",
	"actors/peers":        "kv transport/rdma messages pairing transfer actors framework",
	"actors/registry":     "kv transport/rdma messages pairing transfer actors framework",
	"actors/prefill":      "kv transport/rdma messages pairing transfer actors framework",
	"actors/decode":       "kv transport/rdma messages pairing transfer actors framework",
	"node/remoting":       "framework",
	"node":                "*",
	"cmd/node":            "*",
	"cmd/node/bench":      "*",
	"tests":               "*",
	"tests/fabric":        "*",
	"scripts/testsummary": "",
}

// standsFor names what is not ours but decides where a package stands.
var standsFor = map[string]string{
	"github.com/asynkron/protoactor-go": "framework",
	"github.com/hashicorp/memberlist":   "gossip",
}

type goPackage struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	Deps       []string
}

// packages lists ours, as the compiler sees them.
func packages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Deps", "kvferry/...")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var all []goPackage
	for d := json.NewDecoder(out); ; {
		var p goPackage
		if err := d.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestPackagesImportOnlyWhatStandsBelowThem(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, "kvferry/")
		seen[name] = true
		allowed, ok := mayImport[name]
		if !ok {
			t.Errorf("package %s is not in the architecture: say in mayImport what it may use", name)
			continue
		}
		for _, err := range violations(name, allowed, p.Deps) {
			t.Error(err)
		}
	}
	for name := range mayImport {
		if !seen[name] {
			t.Errorf("package %s of the architecture does not exist", name)
		}
	}
}

// violations is what a package depends on and may not.
func violations(name, allowed string, deps []string) []error {
	if allowed == "*" {
		return nil
	}
	var errs []error
	may := strings.Fields(allowed)
	told := map[string]bool{}
	for _, dep := range deps {
		what, ours := strings.CutPrefix(dep, "kvferry/")
		if !ours {
			what = ""
			for path, name := range standsFor {
				if dep == path || strings.HasPrefix(dep, path+"/") {
					what = name
				}
			}
		}
		if what == "" || slices.Contains(may, what) || told[what] {
			continue
		}
		told[what] = true
		errs = append(errs, fmt.Errorf("%s depends on %s (%s), and may only on: %s", name, what, dep, allowed))
	}
	return errs
}

func TestArchitectureTestSeesABadImport(t *testing.T) {
	for _, dep := range []string{"kvferry/actors", "github.com/asynkron/protoactor-go/actor", "kvferry/transport/rdma/mem"} {
		if errs := violations("transfer", mayImport["transfer"], []string{"fmt", "kvferry/kv", dep}); len(errs) != 1 {
			t.Errorf("%s under transfer: %d errors, want 1", dep, len(errs))
		}
	}
}

// pure packages decide: they get time and chance as arguments, and touch nothing.
var pure = []string{"kv", "messages", "pairing", "transfer"}

// impure is what a pure package may not import, and why.
var impure = map[string]string{
	"sync":                   "a pure package has one caller",
	"sync/atomic":            "a pure package has one caller",
	"os":                     "it would depend on more than its arguments",
	"net":                    "it would act",
	"net/http":               "it would act",
	"math/rand":              "chance is an argument",
	"math/rand/v2":           "chance is an argument",
	"crypto/rand":            "chance is an argument",
	"log":                    "it would act",
	"log/slog":               "it would act",
	"context":                "it would wait",
	"go.uber.org/zap":        "it would act",
	"github.com/google/uuid": "chance is an argument",
}

func TestPurePackagesArePure(t *testing.T) {
	for _, name := range pure {
		files, err := filepath.Glob(filepath.Join("..", name, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", name, len(files), err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") || strings.HasSuffix(file, ".pb.go") {
				continue
			}
			src, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, err := range impurities(file, string(src)) {
				t.Error(err)
			}
		}
	}
}

// impurities is where a file reads a clock, starts a goroutine or imports what
// acts.
func impurities(file, src string) []error {
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, src, 0)
	if err != nil {
		return []error{err}
	}
	var errs []error
	for _, i := range parsed.Imports {
		if why, bad := impure[strings.Trim(i.Path.Value, `"`)]; bad {
			errs = append(errs, fmt.Errorf("%s imports %s: %s", set.Position(i.Pos()), i.Path.Value, why))
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			errs = append(errs, fmt.Errorf("%s starts a goroutine in a pure package", set.Position(n.Pos())))
		case *ast.SelectorExpr:
			if isClock(n) {
				errs = append(errs, fmt.Errorf("%s reads time.%s: time is an argument", set.Position(n.Pos()), n.Sel.Name))
			}
		}
		return true
	})
	return errs
}

func isClock(n *ast.SelectorExpr) bool {
	pkg, ok := n.X.(*ast.Ident)
	return ok && pkg.Name == "time" &&
		slices.Contains([]string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "Tick", "NewTimer", "NewTicker"}, n.Sel.Name)
}

func TestPurityTestSeesWhatItIsFor(t *testing.T) {
	for _, src := range []string{
		"package p\nimport \"time\"\nvar _ = time.Now()",
		"package p\nimport \"time\"\nfunc f() { time.Sleep(1) }",
		"package p\nimport \"sync\"\nvar _ sync.Mutex",
		"package p\nfunc f() { go f() }",
		"package p\nimport \"math/rand/v2\"\nvar _ = rand.Int()",
	} {
		if errs := impurities("planted.go", src); len(errs) != 1 {
			t.Errorf("%q: %d errors, want 1: %v", src, len(errs), errs)
		}
	}
	if errs := impurities("fine.go", "package p\nimport \"time\"\nfunc f(now time.Time) time.Time { return now.Add(time.Second) }"); len(errs) > 0 {
		t.Errorf("a pure file: %v", errs)
	}
}

// mayReadClock is where time comes from. Everybody else gets it as an argument or
// from a Clock.
var mayReadClock = []string{"cmd/", "cluster/", "transport/", "node/", "tests/", "actors/env.go"}

func TestOnlyTheEdgesReadTheClock(t *testing.T) {
	root := ".."
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel := strings.TrimPrefix(filepath.ToSlash(path), root+"/")
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
			slices.ContainsFunc(mayReadClock, func(at string) bool { return strings.HasPrefix(rel, at) }) {
			return err
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && isClock(s) {
				t.Errorf("%s reads time.%s: only %v may", set.Position(n.Pos()), s.Sel.Name, mayReadClock)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The top level is what the project says it is: no common, utils, types or pkg.
func TestTopLevelHoldsOnlyItsRooms(t *testing.T) {
	want := []string{"actors", "cluster", "cmd", "docs", "kv", "messages", "node", "pairing", "proto", "scripts", "sim", "tests", "transfer", "transport"}
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && !slices.Contains(want, e.Name()) {
			t.Errorf("top level has %s/, want only %v", e.Name(), want)
		}
	}
}
