// Package rdma is the seam to the wire: registered memory, one-sided strided
// writes under grants, arrivals counted at the receiver, and the three ways in
// which bytes stop moving: Revoke, Quiesce and Fence. It knows bytes and opaque
// ids; pages, rooms and engines are other packages' words.
//
// A provider keeps these promises, and the suite in rdmatest checks them:
//
//  1. Every write that Post accepted completes exactly once, with one Outcome.
//  2. No byte lands outside the ranges of a live grant of that peer.
//  3. After Revoked{Closed: true}, no byte lands under that grant any more.
//  4. After Quiesced, no write under that tag reads its source any more, and
//     every one of them has completed. Quiesce never waits for the peer.
//  5. After Fenced, no byte of that session's generation lands or is read any
//     more, the grants it reports open excepted, and every arrival that became
//     visible before was told. Fence never waits for the peer.
//  6. Arrived counts only what is visible in the receiver's memory.
//
// All methods return at once: what takes time is answered by an Event. A
// provider never calls back; one goroutine takes events with Poll.
package rdma

import (
	"context"
	"errors"
	"fmt"
)

type (
	// RegionID names registered memory of one provider. It is never reused
	// while the provider lives. 0 is no region.
	RegionID uint64

	// GrantID names a grant. It is drawn at random by the receiver, so that
	// nobody can write by guessing.
	GrantID [16]byte

	// SessionID names one generation of the connection between two peers. Both
	// sides agree on it before either calls Connect.
	SessionID struct {
		Peer       string // the other side, as the caller names it; opaque here
		Generation Generation
	}

	// Generation is one life of a connection: a number, and a nonce of each
	// side so that a number that was used before is still told apart. Low is
	// the nonce of the side with the smaller name. The same value on both sides.
	Generation struct {
		Number    uint64
		Low, High uint64
	}

	// WriteID is the caller's name for one write, returned in its completion.
	WriteID uint64

	// Tag groups writes that are quiesced together. The caller chooses it.
	Tag uint64
)

func (g GrantID) String() string    { return fmt.Sprintf("%x", g[:]) }
func (g Generation) String() string { return fmt.Sprintf("%d/%x.%x", g.Number, g.Low, g.High) }

// Descriptor is what a peer needs in order to write into a region. Opaque is
// the provider's own (a key, an address); Bytes is the length of the region.
type Descriptor struct {
	Region RegionID
	Bytes  uint64
	Opaque []byte
}

// Run is Count units, the i-th at unit number First + i*Step of its side. A unit
// is whatever a Range or Copy says that one step is: usually a page.
type Run struct {
	First, Count, Step uint32
}

// Range is a strided set of bytes of one region: rows of Bytes bytes, at
//
//	Offset + unit*UnitStride + i*Stride[0] + j*Stride[1],  i < Count[0], j < Count[1]
//
// for every unit of Runs. Counts are at least 1. Rows of one range nest:
// (Count[1]-1)*Stride[1] + Bytes <= Stride[0] where Count[0] > 1, and so on
// outwards, so that membership of an address is arithmetic.
type Range struct {
	Region     RegionID
	Offset     uint64
	UnitStride uint64
	Bytes      uint64
	Count      [2]uint32
	Stride     [2]uint64
	Runs       []Run // shared between ranges: never changed after it is given
}

// Grant is the receiver's permission for one peer to write Ranges.
type Grant struct {
	ID     GrantID
	Peer   string // the only peer that may use it
	Ranges []Range
}

// PairRun is Count pairs of units: the i-th copies source unit
// Source + i*SourceStep to target unit Target + i*TargetStep.
type PairRun struct {
	Source, Target         uint32
	Count                  uint32
	SourceStep, TargetStep uint32
}

// Copy is a strided family of copies of rows of Bytes bytes, from and to
//
//	Offset + unit*UnitStride + i*Stride[0] + j*Stride[1]
//
// of each side, for every pair of units of Runs. Every expanded row must lie
// inside both regions. Post checks the source, by arithmetic on the extremes; how
// long the target's region is, only its owner knows: what leaves it is outside of
// every grant, and is refused there.
type Copy struct {
	Source, Target Place
	Bytes          uint64
	Count          [2]uint32
	Runs           []PairRun // shared between copies: never changed after it is given
}

// Place is one side of a Copy.
type Place struct {
	Region     RegionID
	Offset     uint64
	UnitStride uint64
	Stride     [2]uint64
}

// Rows is how many rows of Bytes bytes the copy expands to.
func (c *Copy) Rows() uint64 {
	n := uint64(0)
	for _, r := range c.Runs {
		n += uint64(r.Count)
	}
	return n * uint64(c.Count[0]) * uint64(c.Count[1])
}

// Write is one unit of completion: copies to one session under one grant.
type Write struct {
	ID     WriteID
	Tag    Tag
	Grant  GrantID
	Copies []Copy
}

// Bytes is the payload of the write.
func (w *Write) Bytes() uint64 {
	n := uint64(0)
	for i := range w.Copies {
		n += w.Copies[i].Rows() * w.Copies[i].Bytes
	}
	return n
}

// Outcome is how a write ended. The zero value is none of them.
type Outcome uint8

const (
	// NotPosted: no byte left; the write may be posted again.
	NotPosted Outcome = iota + 1
	// Landed: every byte is in the receiver's memory.
	Landed
	// Refused: the receiver said that nothing more of it lands. Final: it is
	// never posted again and needs no fence.
	Refused
	// Unknown: some bytes may have landed and more may land, until the
	// generation that carried it is fenced by the receiver.
	Unknown
)

func (o Outcome) String() string {
	switch o {
	case NotPosted:
		return "not posted"
	case Landed:
		return "landed"
	case Refused:
		return "refused"
	case Unknown:
		return "unknown"
	}
	return fmt.Sprintf("outcome %d", uint8(o))
}

// Event is something that a provider tells. One of the types below.
type Event interface{ event() }

type (
	// Connected: the session carries writes from now on.
	Connected struct{ Session SessionID }

	// Disconnected: the session is gone by itself, or could not be made. Its
	// writes have completed (the unsure ones as Unknown). It still has to be
	// fenced.
	Disconnected struct {
		Session SessionID
		Err     error
	}

	// Completed ends a write. Arrivals, of one that landed, is how many arrivals the
	// receiver is to count for it at least, by stripe. Of an unknown one it is those
	// that are known to have landed: the receiver counts them beside those of the
	// writes that landed whole, and one that was lost there must not be made up for by
	// one of these. Others have none.
	//
	// A stripe is in order: of what this side does not know to have landed, nothing is
	// counted before what it knows, and where an arrival is lost, so are all behind it.
	Completed struct {
		Session  SessionID
		ID       WriteID
		Tag      Tag
		Outcome  Outcome
		Err      error // why, when not Landed
		Bytes    uint64
		Arrivals []Arrival
	}

	// Arrived: writes under the grant are visible in this side's memory. Count
	// and Bytes are what came since the last Arrived of the same grant,
	// generation and stripe.
	Arrived struct {
		Grant      GrantID
		Generation Generation
		Arrival
		Bytes uint64
	}

	// Revoked answers Revoke. Closed: nothing under this id lands any more.
	// Otherwise only a fence of the peer's session closes it, or the end of what
	// held it open: a provider that learns of that tells Revoked once more, Closed,
	// unasked. All arrivals that were visible came before this event.
	Revoked struct {
		Grant  GrantID
		Closed bool
	}

	// Quiesced answers Quiesce, after the completion of every write of the tag.
	// Unknown lists the sessions on which one of them was unknown, ever: until this
	// side fenced the session, a second Quiesce lists it again.
	Quiesced struct {
		Tag     Tag
		Unknown []SessionID
	}

	// Fenced answers Fence, after the arrivals that completed before it and the
	// completions of its writes; those that a device which does not let go may still read
	// complete when it does. Open lists the grants of that peer under which
	// the generation may still land something, with the reason.
	Fenced struct {
		Session SessionID
		Open    []OpenGrant
	}

	// Stale counts what a peer sent that was refused: frames for a revoked or
	// unknown grant, ranges outside a grant, malformed frames. For metrics: Reason
	// is one of few constant texts of the provider.
	Stale struct {
		Peer   string
		Reason string
	}
)

// Arrival is a number of arrivals on one stripe (connection, queue pair).
type Arrival struct {
	Stripe uint32
	Count  uint64
}

// OpenGrant is a grant that a fence could not close.
type OpenGrant struct {
	Grant  GrantID
	Reason string
}

func (Connected) event()    {}
func (Disconnected) event() {}
func (Completed) event()    {}
func (Arrived) event()      {}
func (Revoked) event()      {}
func (Quiesced) event()     {}
func (Fenced) event()       {}
func (Stale) event()        {}

// Connection is what Connect needs. The two sides call it with the same
// session, and exactly one of them dials.
type Connection struct {
	Session  SessionID
	Self     string // this side's name, as the peer's SessionID.Peer has it
	Dial     bool
	Endpoint []byte // the peer's Endpoint()
}

// Provider moves bytes. From an accepted Post until the write's completion, the
// source belongs to the provider; from Grant until Revoked{Closed}, or a Revoked
// that left it open and then Fenced of the peer's session, the granted ranges
// belong to the peer. A fence alone ends a generation, not a grant: what was
// unknown is posted again, under the same grant, with the next generation.
type Provider interface {
	// Name is "mem", "tcp", ...
	Name() string

	// Endpoint is what a peer needs in order to dial; opaque to everybody else.
	Endpoint() []byte

	// Register makes memory reachable. The memory stays mapped until Deregister
	// returned. ErrDeviceMemory: it is a dma-buf, and this provider moves bytes of
	// this process only.
	Register(m *Memory) (Descriptor, error)

	// Deregister ends a region. ErrBusy while a grant, a write or a copy still
	// refers to it.
	Deregister(id RegionID) error

	// Connect starts a session; Connected or Disconnected tells how it went. Another
	// generation of the same peer must have been fenced: else ErrFenceFirst. One
	// that was fenced, or is older than one that was, is ErrFenced; one that is
	// there is ErrExists.
	Connect(c Connection) error

	// Grant installs a grant. It is in force when Grant returns, so the message
	// that carries its id may leave. Errors: a range outside its region
	// (*RangeError), an id in use (ErrExists).
	Grant(g Grant) error

	// Revoke closes a grant as far as it can; answered by Revoked. A grant that
	// is not known is answered closed.
	Revoke(id GrantID)

	// Post gives writes to a connected session. It takes all of them or, with an
	// error, none: ErrFull (post again after a completion of that session),
	// ErrNotConnected, *RangeError (a bad copy, a write without copies, or more
	// writes than the window ever takes). It keeps ws until their completions.
	Post(s SessionID, ws []*Write) error

	// Quiesce ends every write under the tag: those not begun are NotPosted,
	// those on the way are landed, refused or unknown by what is known now.
	// Answered by Quiesced.
	Quiesce(tag Tag)

	// Fence ends a session, known or not, for good; answered by Fenced. Every older
	// generation of that peer is over with it.
	Fence(s SessionID)

	// Poll fills evs with the events at hand, waiting until there is at least
	// one or ctx is done. One goroutine calls it. After Close it returns what is
	// left, then ErrClosed.
	Poll(ctx context.Context, evs []Event) (int, error)

	// Close fences everything and frees what the provider holds.
	Close() error
}

var (
	ErrFull         = errors.New("rdma: window is full")
	ErrNotConnected = errors.New("rdma: session is not connected")
	ErrFenceFirst   = errors.New("rdma: an older generation of this peer is not fenced")
	ErrExists       = errors.New("rdma: id is in use")
	ErrFenced       = errors.New("rdma: session was fenced")
	ErrBusy         = errors.New("rdma: region is in use")
	ErrClosed       = errors.New("rdma: provider is closed")
	// ErrDeviceMemory: the provider reaches memory of this process only.
	ErrDeviceMemory = errors.New("rdma: memory is of a device")
)

// RangeError is a range or copy that leaves its region or is malformed.
type RangeError struct {
	Field  string // which one, e.g. "copies[3].target"
	Region RegionID
	Got    uint64 // first byte past the end, or the bad value
	Want   uint64 // the length of the region, or the limit
	Text   string // what is wrong
}

func (e *RangeError) Error() string {
	return fmt.Sprintf("rdma: %s of region %d: %s: got %d, want at most %d", e.Field, e.Region, e.Text, e.Got, e.Want)
}
