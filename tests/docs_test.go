package tests

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"kvferry/actors"
	"kvferry/cluster"
	"kvferry/node"
	"kvferry/pairing"
	"kvferry/transfer"
	"kvferry/transport/rdma/shm"
	"kvferry/transport/rdma/tcp"
	"kvferry/transport/rdma/verbs"
)

// Every test and scenario that a page of docs names is there.
func TestDocsNameTestsThatExist(t *testing.T) {
	tests, scenarios := map[string]bool{}, map[string]bool{}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2:
			return filepath.SkipDir
		case strings.HasSuffix(path, ".txt") && strings.Contains(path, "testdata"):
			scenarios[d.Name()] = true
		case strings.HasSuffix(path, "_test.go"):
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range function.FindAllSubmatch(src, -1) {
				tests[string(m[1])] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	named := 0
	for _, page := range append(pages, "../README.md", "../ARCHITECTURE.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(text), -1) {
			if named++; !tests[m] {
				t.Errorf("%s names %s, which is no test", page, m)
			}
		}
		for _, m := range regexp.MustCompile("`([\\w-]+\\.txt)`").FindAllStringSubmatch(string(text), -1) {
			if named++; !scenarios[m[1]] {
				t.Errorf("%s names %s, which is no scenario", page, m[1])
			}
		}
	}
	if named < 100 {
		t.Errorf("only %d names were found", named)
	}
}

// Where a page says "`Wait` (30 s)", that is the default of a limit of this name.
func TestDocsHaveTheDefaultsOfLimits(t *testing.T) {
	defaults := map[string][]time.Duration{}
	resolved := settings(t)
	for _, of := range []any{transfer.Limits{}, pairing.Limits{}, cluster.Timing{}, actors.EngineLimits{}, tcp.Config{}, shm.Config{}, verbs.Config{}, node.Config{}} {
		fieldsOf(reflect.TypeOf(of), map[reflect.Type]bool{}, func(of reflect.Type, f reflect.StructField) {
			if s, ok := resolved[of.String()]; ok {
				if v := reflect.ValueOf(s).FieldByIndex(f.Index).Interface().(time.Duration); v != 0 {
					defaults[f.Name] = append(defaults[f.Name], v)
				}
			}
		})
	}
	for name, v := range onPage(t) { // those whose default is a constant
		if _, field, ok := strings.Cut(name, ".Config."); ok {
			defaults[field] = append(defaults[field], v)
		}
	}
	pages, _ := filepath.Glob("../docs/*.md")
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("`(\\w+)` \\((\\d+) (ms|s|min)\\)").FindAllStringSubmatch(string(text), -1) {
			found++
			says, err := time.ParseDuration(m[2] + strings.TrimSuffix(m[3], "in"))
			ok := err == nil
			if ok {
				ok = false
				for _, v := range defaults[m[1]] {
					ok = ok || v == says
				}
			}
			if !ok {
				t.Errorf("%s says %s, and the default of %s is %v", page, m[0], m[1], defaults[m[1]])
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d figures were found", found)
	}
}
