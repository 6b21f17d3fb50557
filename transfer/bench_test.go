package transfer

import (
	"testing"
	"time"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// BenchmarkRoom is what the two machines of a room cost: a prompt of 128k tokens
// in 16 chunks, 80 layers of k and v, pages of 16 tokens.
func BenchmarkRoom(b *testing.B) {
	const tokens, page = 128 << 10, 16
	var layers []int
	for l := range 80 {
		layers = append(layers, l)
	}
	model := kv.Model{ID: "m", Components: []kv.Component{
		{Name: "k", Kind: kv.Paged, Layers: layers, Heads: 8, HeadBytes: 256, DType: kv.BF16},
		{Name: "v", Kind: kv.Paged, Layers: layers, Heads: 8, HeadBytes: 256, DType: kv.BF16},
	}}
	d := kv.Deployment{Model: model, TP: 1, PP: 1, DP: 1, PageTokens: page, Layout: kv.NHD, MetaRows: 1, MetaRowBytes: 64}
	fit := kv.MatchDeployments(&d, &d, tokens/page, tokens/page)
	if !fit.Compatible() {
		b.Fatal(fit.Reasons())
	}
	p, r := messages.Engine{Instance: "p", Incarnation: 1}, messages.Engine{Instance: "d", Incarnation: 2}
	pairing := &messages.Pairing{Fit: fit, Prefill: "p", Decode: "d",
		PrefillEngine: []messages.Member{{Engine: p, Kv: &fit.Prefill().Engines[0]}},
		DecodeEngine:  []messages.Member{{Engine: r, Kv: &fit.Decode().Engines[0]}},
	}
	limits, _ := Limits{}.Resolve()
	pages := kv.AllTokens(kv.PageTable{Pages: pageList(tokens / page)}, 0)
	id := messages.RoomID{Room: 1}
	b.ReportAllocs()
	for b.Loop() {
		now := time.Unix(1, 0)
		s, _ := NewSender(now, SenderConfig{Self: p, Room: id, Limits: limits, Announced: true})
		v, _, err := NewReceiver(now, ReceiverConfig{Self: r, Room: id, Limits: limits, Prefill: "p", Length: tokens, At: pages,
			NewGrantID: func() rdma.GrantID { return rdma.GrantID{1} }})
		if err != nil {
			b.Fatal(err)
		}
		machines := map[messages.Engine]Machine{p: s, r: v}
		type step struct {
			to messages.Engine
			ev Event
		}
		queue := []step{{p, Paired{pairing}}, {r, Paired{pairing}}}
		for from := uint64(0); from < tokens; from += tokens / 16 {
			queue = append(queue, step{p, Chunk{From: from, To: from + tokens/16, Source: pages, Last: from+tokens/16 == tokens}})
		}
		for len(queue) > 0 {
			next := queue[0]
			queue = queue[1:]
			for _, effect := range machines[next.to].Step(now, next.ev) {
				switch e := effect.(type) {
				case Send:
					queue = append(queue, step{e.To, Received{From: next.to, Body: e.Body}})
				case InstallGrant:
					queue = append(queue, step{r, GrantInstalled{Grant: e.Grant}})
				case Revoke:
					queue = append(queue, step{r, Revoked{Grant: e.Grant, Closed: true}})
				case ReadMeta:
					queue = append(queue, step{r, MetaRead{Room: id}})
				case Post:
					arrival := rdma.Arrival{Count: 1}
					queue = append(queue, step{r, Arrived{Grant: e.Grant, Generation: rdma.Generation{Number: 1}, Arrival: arrival, Bytes: e.Bytes}},
						step{p, Written{Write: e.Write, Generation: rdma.Generation{Number: 1}, Outcome: rdma.Landed, Arrivals: []rdma.Arrival{arrival}}})
				}
			}
		}
		if s.State() != "closed" || v.State() != "closed" {
			b.Fatalf("the room ended as %s and %s", s.State(), v.State())
		}
	}
}
