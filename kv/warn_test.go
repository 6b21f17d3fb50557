package kv

import (
	"strings"
	"testing"
)

// TestWarningsNameWhatCosts: what works and costs is said with both values, what
// costs nothing is not.
func TestWarningsNameWhatCosts(t *testing.T) {
	wide := func(d *Deployment) *Deployment { // rows that are large enough
		d.edit("k", func(c *Component) { c.HeadBytes = 512 })
		d.edit("v", func(c *Component) { c.HeadBytes = 512 })
		return d
	}
	paged := func(d *Deployment, page uint32) *Deployment {
		d.PageTokens = page
		return d
	}
	hnd := func(d *Deployment) *Deployment {
		d.Layout = HND
		return d
	}
	for _, tc := range []struct {
		name            string
		prefill, decode *Deployment
		want            []string
	}{
		{"the same on both sides", wide(attentionOf(4, 8, 2)), wide(attentionOf(4, 8, 2)), nil},
		{"large rows of another tp", wide(attentionOf(4, 8, 2)), wide(attentionOf(4, 8, 4)), nil},
		{"whole pages of small rows", paged(attentionOf(4, 8, 2), 64), paged(attentionOf(4, 8, 2), 64), nil},
		{"small rows", attentionOf(4, 8, 2), attentionOf(4, 8, 4), []string{"rows of `k`, `v` are 8 bytes"}},
		{"heads outside of rows", paged(hnd(attentionOf(4, 8, 2)), 256), paged(hnd(attentionOf(4, 8, 4)), 256), nil},
		{"pages of 16 and 64", paged(wide(attentionOf(4, 8, 2)), 16), paged(wide(attentionOf(4, 8, 2)), 64), nil},
		{"pages of 16 and 24", paged(wide(attentionOf(4, 8, 2)), 16), paged(wide(attentionOf(4, 8, 2)), 24), []string{"pages of 16 tokens on prefill and 24 on decode", "as little as 8 tokens"}},
		{"stages of 7 and 8", wide(attentionOf(15, 8, 2, 7, 8)), wide(attentionOf(15, 8, 2)), nil},
		{"stages of 14 and 2", wide(attentionOf(16, 8, 1, 14, 2)), wide(attentionOf(16, 8, 1)), []string{"prefill rank (dp 0 pp 0 cp 0 tp 0) sends 87 %", "of its 2 ranks is 50 %"}},
		{"all at once", attentionOf(16, 8, 2, 14, 2), paged(attentionOf(16, 8, 4), 6), []string{"pages of 4 tokens", "prefill rank", "rows of `k`, `v`"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := MatchDeployments(tc.prefill, tc.decode, 2, 2)
			got := f.Warnings()
			var text strings.Builder
			for _, r := range got {
				text.WriteString(r.Text + "\n")
				if r.Field == "" || r.Prefill == "" {
					t.Errorf("a warning without a field or a value: %+v", r)
				}
			}
			if len(tc.want) == 0 && len(got) > 0 {
				t.Errorf("warnings are\n%s, want none", text.String())
			}
			for _, part := range tc.want {
				if !strings.Contains(text.String(), part) {
					t.Errorf("warnings are\n%s, want %q", text.String(), part)
				}
			}
			if !f.Compatible() {
				t.Errorf("warnings are no reasons: %v", f.Reasons())
			}
		})
	}
	if w := MatchDeployments(attentionOf(4, 8, 2), attentionOf(3, 8, 2), 2, 2).Warnings(); w != nil {
		t.Errorf("warnings of instances that do not fit: %v", w)
	}
}
