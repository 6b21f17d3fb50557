package rdma

import (
	"fmt"
	"slices"
)

// Fences remembers the generations of each peer that are over for good. Its user
// locks it. The zero value is not ready: use NewFences.
type Fences struct {
	peers map[string]*fenced
}

// fenced is the highest number that was fenced, and which of that number were:
// two sides that forgot what was before may use a number twice.
type fenced struct {
	number uint64
	exact  []Generation
}

// NewFences knows of none.
func NewFences() *Fences { return &Fences{peers: map[string]*fenced{}} }

// End marks a session as fenced.
func (f *Fences) End(s SessionID) {
	x := f.peers[s.Peer]
	switch {
	case x == nil || s.Generation.Number > x.number:
		f.peers[s.Peer] = &fenced{s.Generation.Number, []Generation{s.Generation}}
	case s.Generation.Number == x.number && !slices.Contains(x.exact, s.Generation):
		x.exact = append(x.exact, s.Generation)
	}
}

// Ended reports whether a session is over: it was fenced, or a later one was.
func (f *Fences) Ended(s SessionID) bool {
	x := f.peers[s.Peer]
	return x != nil && (s.Generation.Number < x.number || slices.Contains(x.exact, s.Generation))
}

// Admit is what Connect answers for a session when live is the one that the peer
// has now, if it has one: nil, ErrExists, ErrFenceFirst or ErrFenced.
func (f *Fences) Admit(s SessionID, live *SessionID) error {
	switch {
	case f.Ended(s):
		return fmt.Errorf("%w: %s generation %s", ErrFenced, s.Peer, s.Generation)
	case live == nil:
		return nil
	case *live == s:
		return fmt.Errorf("%w: session with %s generation %s", ErrExists, s.Peer, s.Generation)
	}
	return fmt.Errorf("%w: %s generation %s is there, asked for %s", ErrFenceFirst, s.Peer, live.Generation, s.Generation)
}

// EndedSuch is Ended for a session of which only the number and a proof of the rest is
// known: such answers whether a generation is the one that was proved.
func (f *Fences) EndedSuch(peer string, number uint64, such func(Generation) bool) bool {
	x := f.peers[peer]
	return x != nil && (number < x.number || number == x.number && slices.ContainsFunc(x.exact, such))
}
