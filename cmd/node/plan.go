package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"kvferry/kv"
)

// maxPlanTokens bounds what plan writes out: it holds the records of every page
// before it merges them, some 3 GB for 80 layers and this many tokens in pages of
// 16. Contexts end before it.
const maxPlanTokens = 1 << 22

type copyJSON struct {
	Writer    rankJSON `json:"writer"`
	Receiver  rankJSON `json:"receiver"`
	Component string   `json:"component"`
	Layer     int      `json:"layer"`
	record
}

type planFlags struct {
	deploymentFlags
	tokens, prefix int64
	source, target string
	expand         bool
}

func newPlanCommand() *cobra.Command {
	var f planFlags
	c := &cobra.Command{
		Use:   "plan --prefill P --decode D --tokens N",
		Short: "Say which bytes a request copies where",
		Long: `Plan says which bytes of a request of N tokens every prefill rank copies to which
bytes of which decode rank, between one data-parallel rank of each side. A copy is
rows of row_bytes bytes: row i goes from src_offset + i*src_stride of the writer's
tensor to dst_offset + i*dst_stride of the receiver's tensor. Within an engine each
component and layer is one tensor: offsets count from its first row in page 0, and page
p begins p times the bytes of a page behind it.

LIST is pages such as 3,7,10-12: on the prefill side those that hold the tokens 0 to N,
on the decode side those from the one that holds token M to the end; the same in every
rank, of which each takes its part if cp ranks share the pages. By default 0,1,2 and so
on, as always in the pools of windows. State is in slot 0 of both sides.

` + deploymentHelp + `

Exit codes: 0; 1, a file is no deployment, or pages and tokens do not fit together;
2, the deployments cannot work.`,
		Example: `  kvferry plan --model llama-3.1-8b --prefill tp=2 --decode tp=4 --tokens 100
  kvferry plan --prefill p.yaml --decode d.yaml --tokens 4096 --prefix 1024 -o json
  kvferry plan --prefill p.yaml --decode d.yaml --tokens 70 --src-pages 3,7,10-12 --dst-pages 0-4 --expand -o json`,
		Args:         cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	f.add(c)
	c.Flags().Int64Var(&f.tokens, "tokens", 0, "tokens of the request (N), at least 1")
	c.Flags().Int64Var(&f.prefix, "prefix", 0, "tokens that decode has already (M), at most N")
	c.Flags().StringVar(&f.source, "src-pages", "", "pages on the prefill side (LIST)")
	c.Flags().StringVar(&f.target, "dst-pages", "", "pages on the decode side (LIST)")
	c.Flags().BoolVar(&f.expand, "expand", false, "one record for each row")
	return c
}

func (f *planFlags) run(c *cobra.Command) error {
	prefill, decode, err := f.read()
	if err != nil {
		return err
	}
	if f.tokens < 1 || f.tokens > maxPlanTokens {
		return malformed("--tokens is %d, want 1 to %d", f.tokens, maxPlanTokens)
	}
	if f.prefix < 0 || f.prefix > f.tokens {
		return malformed("--prefix is %d, want 0 to the %d of --tokens", f.prefix, f.tokens)
	}
	r := request{prefix: uint64(f.prefix), length: uint64(f.tokens)}
	fit := kv.MatchDeployments(prefill, decode, 1, 1)
	if !fit.Compatible() { // lists of pages are read first: 1 wins over 2
		for _, side := range []struct {
			flag, list string
			page       uint32
			prefix     uint64
		}{{"src-pages", f.source, prefill.PageTokens, 0}, {"dst-pages", f.target, decode.PageTokens, r.prefix}} {
			pages, err := parsePages(side.flag, side.list)
			if err != nil {
				return err
			}
			if _, want := kv.PagesFor(side.page, side.prefix, r.length); c.Flags().Changed(side.flag) && len(pages) != want {
				return wrongCount(side.flag, len(pages), want, side.prefix, r.length, uint64(side.page))
			}
		}
		writeReasons(c.ErrOrStderr(), fit)
		return &exitError{code: exitImpossible}
	}
	var sources, targets uint32
	if r.source, sources, err = f.places(c, "src-pages", f.source, fit.Prefill(), 0, r.length); err != nil {
		return err
	}
	if r.target, targets, err = f.places(c, "dst-pages", f.target, fit.Decode(), r.prefix, r.length); err != nil {
		return err
	}
	r.fit = kv.MatchDeployments(prefill, decode, sources, targets)
	if !r.fit.Compatible() {
		return malformed("pages are too many, or too far apart: %w", r.fit.Reasons()[0])
	}
	w := bufio.NewWriter(c.OutOrStdout())
	if f.output == "json" {
		err = writePlanJSON(w, &r, f.expand)
	} else {
		err = writePlanText(w, &r, f.expand)
	}
	if err != nil {
		return err
	}
	return w.Flush()
}

// places is where each rank of the first DP rank keeps the request: in the pages of
// the list, which are exactly those of the tokens [prefix, length), or in pages 0,
// 1, 2 and so on. pool is the pages that every pool has then.
func (f *planFlags) places(c *cobra.Command, flag, list string, i *kv.Instance, prefix, length uint64) (at map[kv.Rank]*kv.Placement, pool uint32, err error) {
	var pages []uint32
	given := c.Flags().Changed(flag)
	if given {
		if pages, err = parsePages(flag, list); err != nil {
			return nil, 0, err
		}
	}
	pool = 1
	for _, p := range pages {
		pool = max(pool, p+1)
	}
	at = make(map[kv.Rank]*kv.Placement)
	used := 0 // of the list
	for n := range i.Engines {
		r := i.Engines[n].Rank
		if r.DP > 0 {
			break
		}
		place := &kv.Placement{}
		for _, p := range i.Pools(r) {
			first, want := p.Need(prefix, length)
			table := kv.PoolTable{Window: p.Window, PageTable: kv.PageTable{First: first}}
			if given && p.Window == 0 && want > 0 {
				// The list is of the whole request; a rank may keep a part of it.
				skip := int((first - prefix/p.Stripe()*p.Stripe()) / p.Stripe())
				if used = max(used, skip+want); used > len(pages) {
					return nil, 0, wrongList(flag, len(pages), i, prefix, length)
				}
				table.Pages = pages[skip : skip+want]
			} else {
				for k := range want { // none of a rank whose part is before the prefix
					table.Pages = append(table.Pages, uint32(k))
				}
				pool = max(pool, uint32(want))
			}
			place.Tables = append(place.Tables, table)
		}
		at[r] = place
	}
	if given && used < len(pages) {
		return nil, 0, wrongList(flag, len(pages), i, prefix, length)
	}
	return at, pool, nil
}

// wrongCount says that a list of pages is too long or too short.
func wrongCount(flag string, got, want int, prefix, length, page uint64) error {
	return malformed("--%s has %d page%s, want %d for tokens [%d,%d) in pages of %d", flag, got, plural(got), want, prefix, length, page)
}

// wrongList is wrongCount for an instance, all of whose ranks have pages of one size.
func wrongList(flag string, got int, i *kv.Instance, prefix, length uint64) error {
	for n := range i.Engines {
		if p, ok := i.Pool(i.Engines[n].Rank, 0); ok {
			_, want := kv.PagesFor(uint32(p.Stripe()), prefix, length)
			return wrongCount(flag, got, want, prefix, length, p.Stripe())
		}
	}
	return malformed("--%s has %d page%s, and the model keeps no pages of all tokens: those of its windows are 0,1,2 and so on", flag, got, plural(got))
}

// parsePages reads a list of pages, each there once.
func parsePages(flag, list string) ([]uint32, error) {
	if strings.TrimSpace(list) == "" {
		return nil, nil
	}
	ranges, err := parseList(list, maxPage)
	if err != nil {
		return nil, malformed("--%s: %w", flag, err)
	}
	total := uint64(0)
	for _, g := range ranges {
		total += g.last - g.first + 1
	}
	if total > maxPlanTokens {
		return nil, malformed("--%s has %d pages, want at most %d", flag, total, maxPlanTokens)
	}
	pages := make([]uint32, 0, total)
	at := make(map[uint32]int, total)
	for _, g := range ranges {
		for p := g.first; p <= g.last; p++ {
			if other, twice := at[uint32(p)]; twice {
				return nil, malformed("--%s has page %d twice: as number %d and %d of the list", flag, p, other+1, len(pages)+1)
			}
			at[uint32(p)] = len(pages)
			pages = append(pages, uint32(p))
		}
	}
	return pages, nil
}

// maxPage leaves room for a pool that has one page more.
const maxPage = 1<<32 - 2

// writePlanJSON writes one copy a line, as they are made.
func writePlanJSON(w io.Writer, r *request, expand bool) error {
	if _, err := io.WriteString(w, `{"copies":[`); err != nil {
		return err
	}
	separator := "\n"
	err := r.each(func(s sent) error {
		for _, rec := range expanded(s.records, expand) {
			line, err := json.Marshal(copyJSON{rankOf(s.writer), rankOf(s.receiver), s.component, s.layer, rec})
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "%s%s", separator, line); err != nil {
				return err
			}
			separator = ",\n"
		}
		return nil
	})
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, "]}\n")
	return err
}

// writePlanText writes the copies for people: layers that are copied alike once.
func writePlanText(w io.Writer, r *request, expand bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WRITER\tRECEIVER\tCOMPONENT\tLAYERS\tSRC OFFSET\tDST OFFSET\tROWS\tROW BYTES\tSRC STRIDE\tDST STRIDE")
	var bytes, copies uint64
	var last sent
	var layers []int
	flush := func() {
		for _, c := range expanded(last.records, expand) {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", rankOf(last.writer), rankOf(last.receiver), last.component, kv.FormatLayers(layers),
				c.SrcOffset, c.DstOffset, c.Rows, c.RowBytes, c.SrcStride, c.DstStride)
		}
		layers = nil
	}
	err := r.each(func(s sent) error {
		if !s.like(&last) {
			flush()
		}
		last = s
		layers = append(layers, s.layer)
		for _, c := range s.records {
			bytes += c.Rows * c.RowBytes
			if copies++; expand {
				copies += c.Rows - 1
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	flush()
	if err := t.Flush(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\n%d tokens from token %d on: %d bytes in %d copies\n", r.length-r.prefix, r.prefix, bytes, copies)
	return err
}
