package tests

import (
	"strings"
	"testing"
	"time"

	"kvferry/node"
)

// However an engine misuses chunks, nothing that it did not call computed is sent: a
// room completes with the right bytes or ends on both sides with one reason, and
// everything comes back.
func TestMisusedChunksNeverSendWhatIsNotComputed(t *testing.T) {
	const tokens = 512
	for name, tc := range map[string]struct {
		chunks func(s *node.Send, compute func())
		want   string // of the reason; "" completes
	}{
		"by layers": {func(s *node.Send, compute func()) { compute(); s.ChunkLayers(tokens, 1); s.Chunk(tokens) }, ""},
		"no layer, before anything is computed": {func(s *node.Send, compute func()) {
			s.ChunkLayers(tokens, 0)
			time.Sleep(time.Second)
			compute()
			s.ChunkLayers(tokens, 1)
			s.Chunk(tokens)
		}, "the layers below 0, want at least 1"},
		"a negative layer": {func(s *node.Send, compute func()) { s.ChunkLayers(tokens, -1); compute(); s.Chunk(tokens) }, "the layers below -1, want at least 1"},
		"layers go down":   {func(s *node.Send, compute func()) { compute(); s.ChunkLayers(tokens, 2); s.ChunkLayers(tokens, 1) }, "layers below 1"},
		"layers twice":     {func(s *node.Send, compute func()) { compute(); s.ChunkLayers(tokens, 1); s.ChunkLayers(tokens, 1) }, "layers below 1"},
		"other tokens amid layers": {func(s *node.Send, compute func()) {
			compute()
			s.ChunkLayers(100, 1)
			s.Chunk(tokens)
		}, "want its other layers first"},
		"no token":       {func(s *node.Send, compute func()) { s.Chunk(0) }, "ends at token 0"},
		"backwards":      {func(s *node.Send, compute func()) { compute(); s.Chunk(100); s.Chunk(50) }, "ends at token 50, want more than 100"},
		"beyond the end": {func(s *node.Send, compute func()) { compute(); s.Chunk(tokens + 1) }, "at most 512"},
		"never the last": {func(s *node.Send, compute func()) { compute(); s.Chunk(tokens - 1) }, "is not done"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				o := newOne(w)
				r, s := o.recv(1, tokens), o.open(1, tokens)
				tc.chunks(s, func() { o.p.fill(1, s.Place(), 0, tokens) })
				got, err := r.Wait(w.ctx(10 * time.Minute))
				if err != nil {
					t.Fatal(err)
				}
				if got.Complete != (tc.want == "") || !strings.Contains(got.Cause, tc.want) {
					t.Errorf("decode's room ended with %+v, want %q", got, tc.want)
				}
				if got.Complete {
					o.d.check(1, r.Place(), 0, tokens)
				}
				if sent, err := s.Wait(w.ctx(10 * time.Minute)); err != nil || sent.Complete != got.Complete {
					t.Errorf("prefill's room ended with %v, %v", sent, err)
				}
				s.Free()
				r.Free()
				time.Sleep(time.Minute)
				if h, _ := o.d.decode.Holding(w.ctx(time.Minute)); h.PagesFree != h.PagesTotal {
					t.Errorf("decode has %d of %d pages", h.PagesFree, h.PagesTotal)
				}
				if h, _ := o.p.prefill.Holding(w.ctx(time.Minute)); h.PagesFree != h.PagesTotal {
					t.Errorf("prefill has %d of %d pages", h.PagesFree, h.PagesTotal)
				}
			})
		})
	}
}
