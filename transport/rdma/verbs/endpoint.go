package verbs

import (
	"errors"
	"fmt"
	"net"

	"google.golang.org/protobuf/proto"

	"kvferry/transport/rdma/verbs/control"
)

// readEndpoint checks the endpoint of a peer.
func readEndpoint(b []byte) (*control.Endpoint, error) {
	e := &control.Endpoint{}
	if err := proto.Unmarshal(b, e); err != nil {
		return nil, fmt.Errorf("verbs: endpoint: %w", err)
	}
	if _, _, err := net.SplitHostPort(e.GetAddress()); err != nil {
		return nil, fmt.Errorf("verbs: endpoint: address: %w", err)
	}
	if n := len(e.GetRails()); n == 0 || n > cardsMax {
		return nil, fmt.Errorf("verbs: endpoint: it has %d rails, want 1 to %d", n, cardsMax)
	}
	for i, r := range e.GetRails() {
		if err := checkRail(r); err != nil {
			return nil, fmt.Errorf("verbs: endpoint: rail %d: %w", i, err)
		}
	}
	return e, nil
}

func checkRail(r *control.Rail) error {
	switch {
	case len(r.GetGid()) != 16:
		return fmt.Errorf("its GID has %d bytes, want 16", len(r.GetGid()))
	case r.GetLink() != uint32(InfiniBand) && r.GetLink() != uint32(Ethernet):
		return fmt.Errorf("its link is %d, want %d or %d", r.GetLink(), InfiniBand, Ethernet)
	case r.GetType() > uint32(TypeRoCEv2):
		return fmt.Errorf("its GID is of type %d, want at most %d", r.GetType(), TypeRoCEv2)
	}
	return nil
}

// pair is two rails that make a stripe: of the dialer, and of the listener.
type pair struct{ from, to int }

// pairRails says which rails of two nodes make stripes. Of the rails that fit each
// other it is the first with the first, and so on, since fabrics are built by rails; the
// side with fewer uses them more than once. A rail that fits none is not used.
func pairRails(from, to []*control.Rail, queuePairs int) ([]pair, error) {
	var once []pair
	var why error
	done := make([]bool, len(from))
	for i := range from {
		if done[i] {
			continue
		}
		// To fit is to be of one kind, so what fits this one fits all that are like it.
		var a, b []int
		for k := range from {
			if fit(from[i], from[k]) == nil {
				a, done[k] = append(a, k), true
			}
		}
		for k := range to {
			if err := fit(from[i], to[k]); err != nil {
				why = err
			} else {
				b = append(b, k)
			}
		}
		for k := range max(len(a), len(b)) {
			if len(b) > 0 {
				once = append(once, pair{a[k%len(a)], b[k%len(b)]})
			}
		}
	}
	if len(once) == 0 {
		return nil, fmt.Errorf("verbs: no rail of this node fits one of the peer: %w", why)
	}
	var pairs []pair
	for range queuePairs { // of each pair one, then the next: what is over the limit is one less of some
		pairs = append(pairs, once...)
	}
	return pairs[:min(len(pairs), stripesMax)], nil
}

var errLinks = errors.New("one is InfiniBand, the other Ethernet")

// fit says why two rails cannot reach each other.
func fit(a, b *control.Rail) error {
	names := func(err error) error { return fmt.Errorf("%s and %s: %w", a.GetName(), b.GetName(), err) }
	if a.GetLink() != b.GetLink() {
		return names(errLinks)
	}
	if LinkLayer(a.GetLink()) != Ethernet {
		return nil
	}
	x, y := GID{Addr: [16]byte(a.GetGid()), Type: GIDType(a.GetType())}, GID{Addr: [16]byte(b.GetGid()), Type: GIDType(b.GetType())}
	if x.Type != y.Type {
		return names(fmt.Errorf("GIDs are %s and %s: name an index on one side (DEVICE:PORT/GID)", x.Type, y.Type))
	}
	if (x.Family() == IPv4) != (y.Family() == IPv4) {
		return names(fmt.Errorf("GIDs are %s and %s: name an index on one side (DEVICE:PORT/GID)", x.Family(), y.Family()))
	}
	return nil
}
