package shm

import "time"

// Every limit of the provider, with its reason.
const (
	// chunkBytes and chunkRows bound what is copied between storing the slot and
	// clearing it, which is what a Revoke or Fence of the peer waits for: 10 us of
	// large rows, some 50 us of small ones, and a few hundred where every page is
	// touched for the first time. Storing, looking and clearing cost 0.1 us.
	chunkBytes = 256 << 10
	chunkRows  = 256

	// turnBytes is how much of one write is copied before the next tag has its turn:
	// a fraction of a millisecond, and the provider's lock is taken that seldom.
	turnBytes = 4 << 20

	// streamBytesMin is the write from which on non-temporal stores pay: less than
	// that stays in the second-level cache, where the reader may still find it.
	streamBytesMin = 1 << 20

	// entries is how many grants a table has room for. A grant's place is found by
	// its id, and a table that is at most half full has short searches.
	entries   = 1 << 16
	grantsMax = entries / 2 // to one peer: 1,024 rooms of 32 receivers

	// arenaBytes is the room for what grants say. It is address space: memory is
	// taken where a grant was written. A grant of one page of 80 layers takes 10 KiB,
	// one of 128 Ki pages in no order 1.5 MiB.
	arenaBytes = 1 << 30

	// describedMax bounds what all grants to one peer say, so that a new table has room
	// for them whatever the order.
	describedMax = arenaBytes / 2

	// descriptionMax bounds what one grant says: over a million runs.
	descriptionMax = 16 << 20

	// regionsMax bounds the regions that a peer hands over in one session: each is a
	// mapping of this process, which has 65,530 by default.
	regionsMax = 4096

	// messageRegions is how many regions one message hands over. The kernel takes 253
	// descriptors, and a socket's buffer some 200 messages.
	messageRegions = 64

	// messageBytes holds any message.
	messageBytes = 2048

	// nameMax bounds the names in a hello: a node's name and incarnation are 64 and
	// 20 characters.
	nameMax = 512

	// windowWritesDefault is how many writes a session accepts before ErrFull. They
	// cost no memory but their own; the bound keeps Quiesce and turns cheap.
	windowWritesDefault = 256

	// handshakesMax bounds connections without a session: those that have not said
	// hello, and those whose Connect has not come. More are closed. Each has two
	// descriptors here.
	handshakesMax = 256

	// handshakeTimeoutDefault is how long one side waits for the other's Connect:
	// both follow the same message, so seconds are a peer in trouble.
	handshakeTimeoutDefault = 10 * time.Second

	// copyTimeoutDefault is how long Revoke and Fence wait for a copy that has begun
	// before they call the grant open. A copy takes microseconds; a busy machine may
	// keep a thread from its core for tens of milliseconds. Too short costs a fence
	// of the session, too long delays only what a stopped process delays anyway.
	copyTimeoutDefault = time.Second

	// Waiting for a copy begins with copyPauseMin between looks, and doubles.
	copyPauseMin = 20 * time.Microsecond
	copyPauseMax = time.Millisecond

	// stoppedPause is the time between looks at a process that was stopped inside a
	// copy: its pages wait, nobody else does.
	stoppedPause = 20 * time.Millisecond

	// bellPause is how long the receiver sleeps at most. It is woken by the bell; this
	// is for a peer that scribbles on it while the session ends.
	bellPause = time.Second

	// refusedMax bounds the Stale events that one look at the refusals makes: the
	// count is the peer's, and may be nonsense.
	refusedMax = 1024

	// collapseRest is how long the collapsing of huge pages rests, as a multiple of how
	// long it worked: it copies a whole pool, and has a tenth of a core for that. It
	// makes rows of some KiB up to a tenth faster, so nobody may wait for it.
	collapseRest = 9

	// acceptPause is how long the listener rests when the process has no file
	// descriptor left.
	acceptPause = 50 * time.Millisecond

	// knownMin is how many grants the copier remembers before it looks which of them
	// are over.
	knownMin = 64
)

// A chunk fits into a turn, and a message into its buffer: if this does not compile,
// change a constant above.
const (
	_ uint = turnBytes - chunkBytes
	_ uint = messageBytes - helloBytes - 2*nameMax
	_ uint = messageBytes - headBytes - messageRegions*regionBytes
)
