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
	case LinkLayer(r.GetLink()) != InfiniBand && LinkLayer(r.GetLink()) != Ethernet:
		return fmt.Errorf("its link is %d, want %d or %d", r.GetLink(), InfiniBand, Ethernet)
	case r.GetType() > uint32(TypeRoCEv2):
		return fmt.Errorf("its GID is of type %d, want at most %d", r.GetType(), TypeRoCEv2)
	}
	return nil
}

// pair is two rails that make a stripe: of the dialer, and of the listener.
type pair struct{ from, to int }

// pairRails says which rails of two nodes make stripes: the first with the first, and
// so on, since fabrics are built by rails; the side with fewer uses them more than
// once. Where two do not fit, the next that does is taken.
func pairRails(from, to []*control.Rail, queuePairs int) ([]pair, error) {
	var pairs []pair
	var why error
	for i := range max(len(from), len(to)) {
		a := i % len(from)
		for k := range to {
			b := (i + k) % len(to)
			if err := fit(from[a], to[b]); err != nil {
				why = err
				continue
			}
			for range queuePairs {
				pairs = append(pairs, pair{a, b})
			}
			break
		}
	}
	switch {
	case len(pairs) == 0:
		return nil, fmt.Errorf("verbs: no rail of this node fits one of the peer: %w", why)
	case len(pairs) > stripesMax:
		pairs = pairs[:stripesMax]
	}
	return pairs, nil
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
