package sim

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// plantedEnv names the mutant that a process plays.
const plantedEnv = "KVFERRY_MUTANT"

// schemata are sources with all mutants in them: each function that a mutant changes goes
// on in the mutant's, if it is the one that is played.
type schemata struct {
	root    string
	sources map[string]*mutated // by path below root
}

type mutated struct {
	text    string
	packag  string
	at      map[string][]string // by function: what its body begins with
	more    []string            // the mutants' functions
	entries map[string]int      // by function: where its body begins
}

func newSchemata(root string) *schemata {
	return &schemata{root: root, sources: map[string]*mutated{}}
}

// add takes in a mutant, or says why it does not fit the sources.
func (s *schemata) add(m mutant) error {
	changed := map[string]string{}
	for _, e := range m.edits {
		f, err := s.source(e.file)
		if err != nil {
			return err
		}
		text, ok := changed[e.file]
		if !ok {
			text = f.text
		}
		if n := strings.Count(text, e.old); n != 1 {
			return fmt.Errorf("mutant %s: %s has this %d times, want once: the code has moved, so should the mutant:\n%s", m.name, e.file, n, e.old)
		}
		changed[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	for _, file := range slices.Sorted(maps.Keys(changed)) {
		if err := s.sources[file].plant(m.name, file, changed[file]); err != nil {
			return fmt.Errorf("mutant %s: %w", m.name, err)
		}
	}
	return nil
}

func (s *schemata) source(file string) (*mutated, error) {
	if f := s.sources[file]; f != nil {
		return f, nil
	}
	b, err := os.ReadFile(filepath.Join(s.root, file))
	if err != nil {
		return nil, err
	}
	f := &mutated{text: string(b), at: map[string][]string{}, entries: map[string]int{}}
	s.sources[file] = f
	return f, nil
}

// function is one of a file.
type function struct {
	decl             *ast.FuncDecl
	head, name, tail string // its text up to its name, and from behind it
	body             int    // offset in the file
}

// functions are those of a text by receiver and name, and what is around them.
func functions(file, text string) (fs map[string]function, around, packag string, err error) {
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, "", "", err
	}
	fs = map[string]function{}
	last := 0
	offset := func(p token.Pos) int { return set.Position(p).Offset }
	for _, d := range f.Decls {
		d, ok := d.(*ast.FuncDecl)
		if !ok || d.Body == nil {
			continue
		}
		from, to, name := offset(d.Pos()), offset(d.End()), offset(d.Name.Pos())
		if d.Doc != nil {
			from = offset(d.Type.Func)
		}
		key := text[from:name] + d.Name.Name
		fs[key] = function{d, text[from:name], d.Name.Name, text[name+len(d.Name.Name) : to], offset(d.Body.Lbrace) + 1}
		around += text[last:from]
		last = to
	}
	return fs, around + text[last:], f.Name.Name, nil
}

// plant takes the functions of a changed text that differ.
func (f *mutated) plant(mutant, file, text string) error {
	was, around, packag, err := functions(file, f.text)
	if err != nil {
		return err
	}
	is, now, _, err := functions(file, text)
	if err != nil {
		return err
	}
	if around != now {
		return fmt.Errorf("%s is changed outside of functions", file)
	}
	f.packag = packag
	for _, key := range slices.Sorted(maps.Keys(is)) {
		old, new := was[key], is[key]
		if old.tail == new.tail {
			continue
		}
		name := new.name + "Planted_" + strings.ReplaceAll(mutant, "-", "_")
		call, err := callOf(new.decl, name)
		if err != nil {
			return err
		}
		f.entries[key] = old.body
		f.at[key] = append(f.at[key], fmt.Sprintf("if plantedMutant == %q { %s }\n", mutant, call))
		f.more = append(f.more, new.head+name+new.tail)
	}
	return nil
}

// callOf calls a function of another name with the arguments of this one.
func callOf(d *ast.FuncDecl, name string) (string, error) {
	var args []string
	for _, p := range d.Type.Params.List {
		for _, n := range p.Names {
			if n.Name == "_" {
				return "", fmt.Errorf("%s has an argument without a name", d.Name.Name)
			}
			arg := n.Name
			if _, variadic := p.Type.(*ast.Ellipsis); variadic {
				arg += "..."
			}
			args = append(args, arg)
		}
	}
	if d.Recv != nil {
		name = d.Recv.List[0].Names[0].Name + "." + name
	}
	call := name + "(" + strings.Join(args, ", ") + ")"
	if d.Type.Results != nil {
		return "return " + call, nil
	}
	return call + "; return", nil
}

// files are the sources with the mutants, by path below root.
func (s *schemata) files() map[string][]byte {
	out := map[string][]byte{}
	for file, f := range s.sources {
		text := f.text
		keys := slices.SortedFunc(maps.Keys(f.entries), func(a, b string) int { return f.entries[b] - f.entries[a] })
		for _, key := range keys {
			at := f.entries[key]
			text = text[:at] + "\n" + strings.Join(f.at[key], "") + text[at:]
		}
		out[file] = []byte(text + "\n" + strings.Join(f.more, "\n\n") + "\n")
		out[path.Join(path.Dir(file), "planted.go")] = fmt.Appendf(nil, "package %s\n\nimport \"os\"\n\nvar plantedMutant = os.Getenv(%q)\n", f.packag, plantedEnv)
	}
	return out
}
