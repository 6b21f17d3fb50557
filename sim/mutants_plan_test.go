package sim

// planMutants are faults of the plan (kv), and of what an engine's actor keeps (actors).
var planMutants = []mutant{
	{
		name: "border-page-early", rule: "§4.1: a page that the border of a chunk cuts is copied whole, and not again",
		edits: []edit{{"kv/plan.go", "r := t.rows.within(c.From/q, c.To/q)", "up := func(n uint64) uint64 { return min(p.Length, (n+3)/4*4) }\n\t\tr := t.rows.within(up(c.From)/q, up(c.To)/q)"}},
	},
	{
		name: "border-page-twice", rule: "§4.1: a page that the border of a chunk cuts is copied whole, and again when it is finished",
		edits: []edit{{"kv/plan.go", "r := t.rows.within(c.From/q, c.To/q)", "r := t.rows.within(c.From/q, min(p.Length, (c.To+3)/4*4)/q)"}},
	},
	{
		name: "row-before-finished", rule: "§4.1: a row of several tokens is copied before all are computed",
		edits: []edit{{"kv/plan.go", "r := t.rows.within(c.From/q, c.To/q)", "r := t.rows.within((c.From+q-1)/q, (c.To+q-1)/q)"}},
	},
	{
		name: "pages-granted-whole", rule: "§3.3: a grant covers whole pages, with its sibling's heads",
		edits: []edit{{"kv/plan.go", "r := rowsOf(count, uint32(box.Heads.High-box.Heads.Low), box.RowBytes, m.target, m.target)\n\t\t\tfor _, t := range m.tensors {\n\t\t\t\tout = append(out, Range{", "r := rowsOf(count, uint32(box.Heads.High-box.Heads.Low), box.RowBytes, m.target, m.target)\n\t\t\tr = pattern{bytes: m.target.page, count: [2]uint32{1, 1}}\n\t\t\tfor _, t := range m.tensors {\n\t\t\t\tout = append(out, Range{"}},
	},
	{
		name: "sibling-written", rule: "§3.3: a writer writes the heads of its sibling",
		edits: []edit{{"kv/plan.go", "Target: Place{t.target.region, t.target.offset + uint64(g.target)*m.target.row, m.target.page, r.target},", "Target: Place{t.target.region, t.target.offset - uint64(box.Heads.Low)*m.target.head + uint64(g.target)*m.target.row, m.target.page, r.target},"}},
	},
	{
		name: "meta-not-written", rule: "§4.2: the metadata row does not go with the last chunk",
		edits: []edit{{"kv/plan.go", "if c.Last && !c.More && p.sendsMeta() {", "if c.Last && c.More && p.sendsMeta() {"}},
	},
	{
		name: "meta-first", rule: "§4.2: the metadata row goes with each chunk",
		edits: []edit{{"kv/plan.go", "if c.Last && !c.More && p.sendsMeta() {", "if !c.More && p.sendsMeta() {"}},
	},
	{
		name: "meta-by-two", rule: "§4.3: every writer of the last stage writes the metadata row",
		edits: []edit{{"kv/pair.go", "p.Meta = f.metaWriter(r, n, writers) == w\n\treturn p, nil", "p.Meta = w >= (r.PrefillDP+1)*f.prefill.perDP()-f.prefill.CP*f.prefill.TP\n\treturn p, nil"}},
	},
	{
		name: "meta-by-first-stage", rule: "§4.3: the metadata row is written by a rank of the first stage",
		edits: []edit{{"kv/route.go", "hi := (r.PrefillDP + 1) * f.prefill.perDP()\n\tvar could", "hi := r.PrefillDP*f.prefill.perDP() + last\n\tvar could"}},
	},
	{
		name: "prefix-written", rule: "§3.3: what decode has cached is written too",
		edits: []edit{{"kv/pools.go", "\tslo, shi := source.keeps(rowTokens, 0, length)\n\ttlo, thi := target.keeps(rowTokens, prefix, length)", "\tslo, shi := source.keeps(rowTokens, 0, length)\n\ttlo, thi := target.keeps(rowTokens, prefix, length)\n\ttlo = max(tlo, 1) - 1"}},
	},
	{
		name: "last-row-forgotten", rule: "§5.1: the last row of a request is not in the plan",
		edits: []edit{{"kv/pools.go", "\tlo, hi := max(slo, tlo), min(shi, thi)\n", "\tlo, hi := max(slo, tlo), min(shi, thi)\n\thi = max(lo+1, hi) - 1\n"}},
	},
	{
		name: "digest-of-less", rule: "§3.3: the digest has no destination ranges",
		edits: []edit{{"kv/digest.go", "\te.ranges(targets)\n\treturn", "\treturn"}},
	},
	{
		name: "record-replaced", rule: "§5.3: a later outcome replaces the one that is recorded",
		edits: []edit{{"actors/records.go", "\tif _, ok := r.by[id]; ok {\n\t\treturn\n\t}\n", "\tif old, ok := r.by[id]; ok {\n\t\told.outcome = o\n\t\tr.by[id] = old\n\t\treturn\n\t}\n"}},
	},
	{
		name: "record-short", rule: "§5.3: an outcome is kept for less than a voter waits",
		edits: []edit{{"actors/records.go", "now.Sub(r.by[s.order[0]].at) >= r.keep {", "now.Sub(r.by[s.order[0]].at) >= r.keep/600 {"}},
	},
	{
		name: "newest-attempt-forgotten", rule: "§1.5: nobody remembers that a later attempt has ended",
		edits: []edit{{"actors/records.go", "\tif last, ok := r.last[id.Room]; !ok || last < id.Attempt {", "\tif last, ok := r.last[id.Room]; !ok && last > id.Attempt {"}},
	},
	{
		name: "records-of-one-peer", rule: "§6.5: a peer with many rooms pushes out the records of others",
		edits: []edit{{"actors/records.go", "if most == nil || len(s.order) > len(most.order) {", "if most == nil {"}},
	},
	{
		name: "pages-twice", rule: "§6.3: pages that are taken are given to the next room too",
		edits: []edit{{"actors/pool.go", "\te.first, e.count = e.first+n, e.count-n\n", "\te.first, e.count = e.first+n-1, e.count-n+1\n"}},
	},
	{
		name: "pages-lost", rule: "§10: not every page comes back",
		edits: []edit{{"actors/pools.go", "\tp.rows.Give([]uint32{at.MetaRow})\n}", "\tp.rows.Give([]uint32{at.MetaRow})\n\tif at.MetaRow == 1 {\n\t\tp.pages[0].free.Take(1)\n\t}\n}"}},
	},
	{
		name: "waiting-without-limit", rule: "§7: a caller waits for pages without a limit",
		edits: []edit{{"actors/waiting.go", "\tfor _, e := range w.entries {\n\t\tif now.Before(e.until) {\n\t\t\tkept", "\tfor _, e := range w.entries {\n\t\tif now.Before(e.until) || len(kept) >= 0 {\n\t\t\tkept"}},
	},
	{
		name: "overtaken", rule: "§3.4: a caller that waits for pages is overtaken by those that came later",
		edits: []edit{{"actors/waiting.go", "\tfor _, e := range w.entries {\n\t\tif may(e.value) {\n\t\t\treturn e.value, true", "\tfor i := range w.entries {\n\t\te := w.entries[len(w.entries)-1-i]\n\t\tif may(e.value) {\n\t\t\treturn e.value, true"}},
	},
}
