package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// The slow model of this file is written from the words of the command's help
// alone: it uses nothing of the packages that make the plan.

type slowComponent struct {
	name             string
	layers           []int
	heads, headBytes int
}

type slowDeployment struct {
	components []slowComponent
	tp, pp, dp int
	cuts       []int // layers of each stage
	page       int
	hnd        bool
}

func (d *slowDeployment) yaml() string {
	var b strings.Builder
	b.WriteString("model:\n  id: slow\n  components:\n")
	for _, c := range d.components {
		var layers []string
		for _, l := range c.layers {
			layers = append(layers, fmt.Sprint(l))
		}
		fmt.Fprintf(&b, "    - {name: %s, kind: paged, layers: %q, heads: %d, head_bytes: %d, dtype: uint8}\n", c.name, strings.Join(layers, ","), c.heads, c.headBytes)
	}
	layout := "nhd"
	if d.hnd {
		layout = "hnd"
	}
	fmt.Fprintf(&b, "parallel: {tp: %d, pp: %d, dp: %d}\npp_layers: %s\npage_tokens: %d\nlayout: %s\n", d.tp, d.pp, d.dp,
		strings.ReplaceAll(fmt.Sprint(d.cuts), " ", ", "), d.page, layout)
	return b.String()
}

// stage is the stage that serves a layer of the layers 0 to n.
func (d *slowDeployment) stage(layer int) int {
	for s, n := range d.cuts {
		if layer -= n; layer < 0 {
			return s
		}
	}
	panic("a layer beyond all stages")
}

// heads are the first head, and how many, that a rank holds.
func (d *slowDeployment) heads(c *slowComponent, tp int) (first, n int) {
	if c.heads >= d.tp {
		return tp * c.heads / d.tp, c.heads / d.tp
	}
	return tp * c.heads / d.tp, 1
}

// offset is where the row of a head and a token of a page is.
func (d *slowDeployment) offset(c *slowComponent, tp, head, page, token int) int {
	first, n := d.heads(c, tp)
	row := token*n + head - first
	if d.hnd {
		row = (head-first)*d.page + token
	}
	return (page*n*d.page + row) * c.headBytes
}

type slowCase struct {
	prefill, decode slowDeployment
	tokens, prefix  int
	source, target  []int
}

func drawSide(t *rapid.T, who string, components []slowComponent, layers int, tps []int) slowDeployment {
	d := slowDeployment{components: components, dp: rapid.IntRange(1, 2).Draw(t, who+" dp")}
	d.tp = rapid.SampledFrom(tps).Draw(t, who+" tp")
	d.pp = rapid.IntRange(1, min(3, layers)).Draw(t, who+" pp")
	left := layers
	for s := range d.pp {
		n := left
		if s < d.pp-1 {
			n = rapid.IntRange(1, left-(d.pp-1-s)).Draw(t, who+" stage")
		}
		d.cuts = append(d.cuts, n)
		left -= n
	}
	d.page = rapid.SampledFrom([]int{1, 2, 3, 4, 8, 16}).Draw(t, who+" page")
	d.hnd = rapid.Bool().Draw(t, who+" hnd")
	return d
}

func drawCase(t *rapid.T) *slowCase {
	layers := rapid.IntRange(1, 4).Draw(t, "layers")
	heads := rapid.SampledFrom([]int{1, 2, 4, 6}).Draw(t, "heads")
	all := make([]int, layers)
	for i := range all {
		all[i] = i
	}
	components := []slowComponent{
		{"k", all, heads, rapid.IntRange(1, 4).Draw(t, "k bytes")},
		{"v", all[rapid.IntRange(0, layers-1).Draw(t, "v from"):], heads, rapid.IntRange(1, 4).Draw(t, "v bytes")},
	}
	tps := map[int][]int{1: {1, 2, 3}, 2: {1, 2, 4, 6}, 4: {1, 2, 4, 8}, 6: {1, 2, 3, 6}}[heads]
	c := &slowCase{
		prefill: drawSide(t, "prefill", components, layers, tps),
		decode:  drawSide(t, "decode", components, layers, tps),
		tokens:  rapid.IntRange(1, 50).Draw(t, "tokens"),
	}
	c.prefix = rapid.IntRange(0, c.tokens).Draw(t, "prefix")
	c.source = drawList(t, "source", (c.tokens+c.prefill.page-1)/c.prefill.page)
	n := 0
	if c.prefix < c.tokens {
		n = (c.tokens-1)/c.decode.page - c.prefix/c.decode.page + 1
	}
	c.target = drawList(t, "target", n)
	return c
}

func drawList(t *rapid.T, who string, n int) []int {
	all := make([]int, n+4)
	for i := range all {
		all[i] = i
	}
	if rapid.Bool().Draw(t, who+" shuffled") {
		all = rapid.Permutation(all).Draw(t, who+" pages")
	}
	return all[:n]
}

func list(pages []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(pages), " ", ","), "[]")
}

// byteOf names a byte of a tensor of a rank.
type byteOf struct {
	tp, pp    int
	component string
	layer, at int
}

// needed is every byte that has to arrive, and the bytes that it may come from.
func (c *slowCase) needed() map[byteOf]map[byteOf]bool {
	out := make(map[byteOf]map[byteOf]bool)
	for i := range c.decode.components {
		k := &c.decode.components[i]
		for _, layer := range k.layers {
			for tp := range c.decode.tp {
				first, n := c.decode.heads(k, tp)
				for head := first; head < first+n; head++ {
					for token := c.prefix; token < c.tokens; token++ {
						page := c.target[token/c.decode.page-c.prefix/c.decode.page]
						to := c.decode.offset(k, tp, head, page, token%c.decode.page)
						for b := range k.headBytes {
							sources := make(map[byteOf]bool)
							for w := range c.prefill.tp {
								if lo, n := c.prefill.heads(k, w); lo <= head && head < lo+n {
									from := c.prefill.offset(k, w, head, c.source[token/c.prefill.page], token%c.prefill.page)
									sources[byteOf{w, c.prefill.stage(layer), k.name, layer, from + b}] = true
								}
							}
							out[byteOf{tp, c.decode.stage(layer), k.name, layer, to + b}] = sources
						}
					}
				}
			}
		}
	}
	return out
}

type planAnswer struct {
	Copies []struct {
		Writer, Receiver struct{ TP, PP int }
		Component        string
		Layer            int
		Src              int `json:"src_offset"`
		Dst              int `json:"dst_offset"`
		N                int `json:"rows"`
		Bytes            int `json:"row_bytes"`
		SrcStep          int `json:"src_stride"`
		DstStep          int `json:"dst_stride"`
	} `json:"copies"`
}

// TestPlanCoversEveryNeededByteOnce compares the command's answer with the slow
// model, byte by byte, expanded and not.
func TestPlanCoversEveryNeededByteOnce(t *testing.T) {
	dir := t.TempDir()
	p, d := filepath.Join(dir, "p.yaml"), filepath.Join(dir, "d.yaml")
	rapid.Check(t, func(t *rapid.T) {
		c := drawCase(t)
		for path, side := range map[string]*slowDeployment{p: &c.prefill, d: &c.decode} {
			if err := os.WriteFile(path, []byte(side.yaml()), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		needed := c.needed()
		for _, expand := range []bool{false, true} {
			args := []string{"plan", "--prefill", p, "--decode", d, "--tokens", fmt.Sprint(c.tokens), "--prefix", fmt.Sprint(c.prefix),
				"--src-pages", list(c.source), "--dst-pages", list(c.target), fmt.Sprintf("--expand=%v", expand), "-o", "json"}
			code, stdout, stderr := kvferry(args...)
			if code != 0 {
				t.Fatalf("%v: exit code %d: %s", args, code, stderr)
			}
			var answer planAnswer
			if err := json.Unmarshal([]byte(stdout), &answer); err != nil {
				t.Fatal(err)
			}
			c.compare(t, needed, &answer, expand)
		}
	})
}

func (c *slowCase) compare(t *rapid.T, needed map[byteOf]map[byteOf]bool, answer *planAnswer, expand bool) {
	written := make(map[byteOf]bool)
	for _, r := range answer.Copies {
		if expand && r.N != 1 || r.N < 1 || r.N == 1 && (r.SrcStep != 0 || r.DstStep != 0) {
			t.Fatalf("expand %v: %+v", expand, r)
		}
		for row := range r.N {
			for b := range r.Bytes {
				to := byteOf{r.Receiver.TP, r.Receiver.PP, r.Component, r.Layer, r.Dst + row*r.DstStep + b}
				from := byteOf{r.Writer.TP, r.Writer.PP, r.Component, r.Layer, r.Src + row*r.SrcStep + b}
				if !needed[to][from] {
					t.Fatalf("expand %v: byte %+v comes from %+v, want from one of %v: %+v", expand, to, from, needed[to], r)
				}
				if written[to] {
					t.Fatalf("expand %v: byte %+v is written twice: %+v", expand, to, r)
				}
				written[to] = true
			}
		}
	}
	if len(written) != len(needed) {
		t.Fatalf("expand %v: %d bytes are written, want %d", expand, len(written), len(needed))
	}
	c.compareCount(t, answer, expand)
}

// compareCount: equal page sizes, tokens before heads on both sides: one record
// for each writer, receiver, component, layer and run of pages.
func (c *slowCase) compareCount(t *rapid.T, answer *planAnswer, expand bool) {
	if expand || c.prefill.hnd || c.decode.hnd || c.prefill.page != c.decode.page {
		return
	}
	runs := 0
	for i := range c.target {
		s := c.source[i+c.prefix/c.prefill.page:]
		if i == 0 || c.target[i] != c.target[i-1]+1 || s[0] != c.source[i-1+c.prefix/c.prefill.page]+1 {
			runs++
		}
	}
	tensors := make(map[string]int)
	for _, r := range answer.Copies {
		tensors[fmt.Sprint(r.Writer, r.Receiver, r.Component, r.Layer)]++
	}
	for name, n := range tensors {
		if n != runs {
			t.Fatalf("%s has %d records, want one for each of %d runs of pages", name, n, runs)
		}
	}
}
