package pairing

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"kvferry/kv"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// TestCatalogInParts: a catalog beyond one part comes in parts that keep the
// limit, and is taken when the last one is there, in whatever order they come.
func TestCatalogInParts(t *testing.T) {
	limits := Limits{PartBytes: 1024}
	a, b := messages.Node{Name: "a", Incarnation: 1}, messages.Node{Name: "b", Incarnation: 1}
	from := NewDirectory(DirectoryConfig{Self: a, Limits: limits})
	const engines = 20
	for i := range engines {
		d := Described{
			DP: 1, PP: 1, CP: 1, TP: 1, Role: messages.Role_ROLE_DECODE,
			Engine: messages.Engine{Instance: fmt.Sprintf("i%02d", i), Rank: kv.Rank{}, Incarnation: 1},
		}
		from.Step(epoch, Attach{Description: Describe(small(d, 4, 4, 1<<20))})
	}
	var parts []*messages.Catalog
	for _, e := range from.Step(epoch, LinkUp{Node: b, Address: "b:1", Generation: rdma.Generation{Number: 1}}) {
		if c, ok := e.(SendTo).Body.(*messages.Catalog); ok {
			parts = append(parts, c)
		}
	}
	if len(parts) < 2 {
		t.Fatalf("%d parts, want several", len(parts))
	}
	to := NewDirectory(DirectoryConfig{Self: b, Limits: limits})
	for i := len(parts) - 1; i >= 0; i-- {
		if size := proto.Size(parts[i]); size > limits.PartBytes {
			t.Errorf("part %d has %d bytes, want at most %d", i, size, limits.PartBytes)
		}
		if n := len(to.Engines()); n != 0 {
			t.Fatalf("%d engines are known before part %d came, want 0", n, i)
		}
		to.Step(epoch, CatalogReceived{From: a, Catalog: parts[i]})
	}
	if n := len(to.Engines()); n != engines {
		t.Errorf("%d engines are known, want %d", n, engines)
	}
}

// TestAttachBeyondLimits: an engine that no part or catalog has room for is
// refused when it is attached.
func TestAttachBeyondLimits(t *testing.T) {
	d := NewDirectory(DirectoryConfig{Self: messages.Node{Name: "a", Incarnation: 1}, Limits: Limits{PartBytes: 512, Engines: 1}})
	attach := func(instance string, layers int) error {
		e := Described{
			DP: 1, PP: 1, CP: 1, TP: 1, Role: messages.Role_ROLE_DECODE,
			Engine: messages.Engine{Instance: instance, Incarnation: 1},
		}
		e = small(e, 4, 4, 1<<20)
		for i := 2; i < layers; i++ {
			e.Kv.Shards[0].Layers = append(e.Kv.Shards[0].Layers, kv.LayerTensor{Layer: i, Offset: 1 << 19, Pages: 8})
		}
		for _, ef := range d.Step(epoch, Attach{Description: Describe(e)}) {
			if r, ok := ef.(Refused); ok {
				return r.Err
			}
		}
		return nil
	}
	if err := attach("large", 100); err == nil {
		t.Error("a description beyond one part was attached")
	}
	if err := attach("one", 2); err != nil {
		t.Error(err)
	}
	if err := attach("two", 2); err == nil {
		t.Error("one engine more than the limit was attached")
	}
}
