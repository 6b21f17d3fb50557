package verbs

import (
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"kvferry/transport/rdma/verbs/control"
)

func rail(name string, link LinkLayer, kind GIDType, address string) *control.Rail {
	a := netip.MustParseAddr(address).As16()
	return &control.Rail{Name: name, Link: uint32(link), Type: uint32(kind), Gid: a[:]}
}

// kindsOfRails is one rail of each kind that fits no other kind.
var kindsOfRails = []*control.Rail{
	rail("ib", InfiniBand, TypeIB, "fe80::1"),
	rail("v1-ipv6", Ethernet, TypeRoCEv1, "fe80::1"),
	rail("v1-ipv4", Ethernet, TypeRoCEv1, "10.0.0.1"),
	rail("v2-ipv6", Ethernet, TypeRoCEv2, "2001:db8::1"),
	rail("v2-ipv4", Ethernet, TypeRoCEv2, "10.0.0.1"),
}

func TestReadEndpoint(t *testing.T) {
	good := func() *control.Endpoint {
		return &control.Endpoint{Address: "10.0.0.1:7000", Rails: []*control.Rail{rail("a:1", InfiniBand, TypeIB, "fe80::1"), rail("b:1", Ethernet, TypeRoCEv2, "10.0.0.1")}}
	}
	raw := func(change func(e *control.Endpoint)) []byte {
		e := good()
		change(e)
		b, err := proto.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	if e, err := readEndpoint(raw(func(*control.Endpoint) {})); err != nil || !proto.Equal(e, good()) {
		t.Errorf("got %v, error %v", e, err)
	}
	for want, b := range map[string][]byte{
		"verbs: endpoint: proto:":                                         {0xff},
		"verbs: endpoint: address: ":                                      raw(func(e *control.Endpoint) { e.Address = "10.0.0.1" }),
		"missing port in address":                                         nil,
		"verbs: endpoint: it has 0 rails, want 1 to 63":                   raw(func(e *control.Endpoint) { e.Rails = nil }),
		"verbs: endpoint: it has 64 rails, want 1 to 63":                  raw(func(e *control.Endpoint) { e.Rails = make([]*control.Rail, 64) }),
		"verbs: endpoint: rail 1: its GID has 0 bytes, want 16":           raw(func(e *control.Endpoint) { e.Rails[1].Gid = nil }),
		"verbs: endpoint: rail 0: its GID has 15 bytes, want 16":          raw(func(e *control.Endpoint) { e.Rails[0].Gid = e.Rails[0].Gid[1:] }),
		"verbs: endpoint: rail 0: its GID has 17 bytes, want 16":          raw(func(e *control.Endpoint) { e.Rails[0].Gid = append(e.Rails[0].Gid, 1) }),
		"verbs: endpoint: rail 1: its link is 0, want 1 or 2":             raw(func(e *control.Endpoint) { e.Rails[1].Link = 0 }),
		"verbs: endpoint: rail 1: its link is 3, want 1 or 2":             raw(func(e *control.Endpoint) { e.Rails[1].Link = 3 }),
		"verbs: endpoint: rail 1: its link is 258, want 1 or 2":           raw(func(e *control.Endpoint) { e.Rails[1].Link = 258 }),
		"verbs: endpoint: rail 1: its GID is of type 3, want at most 2":   raw(func(e *control.Endpoint) { e.Rails[1].Type = 3 }),
		"verbs: endpoint: rail 1: its GID is of type 257, want at most 2": raw(func(e *control.Endpoint) { e.Rails[1].Type = 257 }),
	} {
		if e, err := readEndpoint(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, error %v; want %q", e, err, want)
		}
	}
}

func TestRailsThatFit(t *testing.T) {
	errors := map[[2]string]string{
		{"ib", "v2-ipv4"}:      "ib and v2-ipv4: one is InfiniBand, the other Ethernet",
		{"v1-ipv4", "v2-ipv4"}: "v1-ipv4 and v2-ipv4: GIDs are RoCE v1 and RoCE v2: name an index on one side (DEVICE:PORT/GID)",
		{"v2-ipv6", "v2-ipv4"}: "v2-ipv6 and v2-ipv4: GIDs are IPv6 and IPv4: name an index on one side (DEVICE:PORT/GID)",
		{"v1-ipv6", "v1-ipv4"}: "v1-ipv6 and v1-ipv4: GIDs are link-local IPv6 and IPv4: name an index on one side (DEVICE:PORT/GID)",
	}
	for i, a := range kindsOfRails {
		for k, b := range kindsOfRails {
			err := fit(a, b)
			if (err == nil) != (i == k) {
				t.Errorf("%s and %s: got error %v", a.Name, b.Name, err)
			}
			want := errors[[2]string{a.Name, b.Name}]
			if want != "" && (err == nil || err.Error() != want) {
				t.Errorf("got error %v, want %s", err, want)
			}
			if pairs, e := pairRails([]*control.Rail{a}, []*control.Rail{b}, 1); err != nil && (e == nil || e.Error() != "verbs: no rail of this node fits one of the peer: "+err.Error()) {
				t.Errorf("got %v, error %v", pairs, e)
			}
		}
	}
	for name, pair := range map[string][2]*control.Rail{
		"link-local with global":             {rail("", Ethernet, TypeRoCEv2, "fe80::1"), rail("", Ethernet, TypeRoCEv2, "2001:db8::1")},
		"InfiniBand of two subnets' GIDs":    {rail("", InfiniBand, TypeIB, "fe80::1"), rail("", InfiniBand, TypeIB, "fec0::1")},
		"InfiniBand whose GID reads as IPv4": {rail("", InfiniBand, TypeIB, "::ffff:1.2.3.4"), rail("", InfiniBand, TypeIB, "fe80::1")},
	} {
		if err := fit(pair[0], pair[1]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Rails by number: the kind of each is a letter.
func railsOf(kinds string) (rails []*control.Rail) {
	for _, k := range kinds {
		rails = append(rails, kindsOfRails[k-'a'])
	}
	return rails
}

func TestPairRails(t *testing.T) {
	for _, c := range []struct {
		from, to   string
		queuePairs int
		want       []pair
	}{
		{"a", "a", 1, []pair{{0, 0}}},
		{"e", "e", 2, []pair{{0, 0}, {0, 0}}},
		{"ee", "ee", 2, []pair{{0, 0}, {1, 1}, {0, 0}, {1, 1}}},
		{"ee", "eeee", 1, []pair{{0, 0}, {1, 1}, {0, 2}, {1, 3}}},
		{"eee", "e", 1, []pair{{0, 0}, {1, 0}, {2, 0}}},
		{"eee", "ee", 1, []pair{{0, 0}, {1, 1}, {2, 0}}},
		{"ae", "ea", 1, []pair{{0, 1}, {1, 0}}},
		{"ae", "aaee", 1, []pair{{0, 0}, {0, 1}, {1, 2}, {1, 3}}},
		{"cde", "eb", 1, []pair{{2, 0}}},
	} {
		got, err := pairRails(railsOf(c.from), railsOf(c.to), c.queuePairs)
		if err != nil || len(got) != len(c.want) {
			t.Errorf("%s and %s: got %v, error %v; want %v", c.from, c.to, got, err, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s and %s: got %v, want %v", c.from, c.to, got, c.want)
				break
			}
		}
	}
}

// Every rail that fits one of the other side is used; those of a kind carry the same
// number of stripes, but for one; and so it stays where there are more than stripesMax.
func TestRailsAreUsedEvenly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kinds := rapid.StringOfN(rapid.SampledFrom([]rune("aabcde")), 1, cardsMax, -1)
		from, to := kinds.Draw(t, "from"), kinds.Draw(t, "to")
		queuePairs := rapid.IntRange(1, queuePairsMax).Draw(t, "queue pairs")
		pairs, err := pairRails(railsOf(from), railsOf(to), queuePairs)
		total := 0
		for _, k := range "abcde" {
			a, b := strings.Count(from, string(k)), strings.Count(to, string(k))
			if a > 0 && b > 0 {
				total += max(a, b) * queuePairs
			}
		}
		if len(pairs) != min(total, stripesMax) || (err == nil) != (total > 0) {
			t.Fatalf("%d stripes, error %v; want %d", len(pairs), err, total)
		}
		uses := [2][]int{make([]int, len(from)), make([]int, len(to))}
		each := map[pair]int{}
		for _, p := range pairs {
			if from[p.from] != to[p.to] {
				t.Fatalf("%v is %c with %c", p, from[p.from], to[p.to])
			}
			uses[0][p.from]++
			uses[1][p.to]++
			each[p]++
		}
		low, high := 1<<30, 0
		for _, n := range each {
			low, high = min(low, n), max(high, n)
		}
		if err == nil && (high-low > 1 || high > queuePairs) {
			t.Fatalf("pairs are used %d to %d times: %v", low, high, pairs)
		}
		for side, kinds := range []string{from, to} {
			other := []string{to, from}[side]
			for _, k := range "abcde" {
				low, high := 1<<30, 0
				for i := range kinds {
					if rune(kinds[i]) == k {
						low, high = min(low, uses[side][i]), max(high, uses[side][i])
					}
				}
				fits := strings.ContainsRune(other, k)
				switch {
				case high == 0 && low == 1<<30: // there is none
				case fits != (low > 0) || !fits && high > 0:
					t.Fatalf("rails of kind %c are used %d to %d times; the other side has %q", k, low, high, other)
				case total <= stripesMax && high-low > queuePairs:
					t.Fatalf("rails of kind %c are used %d to %d times", k, low, high)
				}
			}
		}
	})
}
