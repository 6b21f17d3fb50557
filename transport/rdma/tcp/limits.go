package tcp

import "time"

// Every limit of the provider, with its reason.
const (
	// connectionsDefault is what fills both directions of loopback and of fast
	// networks: with the runtime's poller one connection reaches two thirds of four.
	connectionsDefault = 4
	connectionsMax     = 64

	// frameBytesDefault is the payload of a frame: large enough that header, ack and
	// wake-ups cost nothing (1 MiB loses 15 %), small enough that tags take turns and
	// a Quiesce pads little. A peer may send frames of frameBytesMax, whatever this
	// side's own are.
	frameBytesDefault = 4 << 20
	frameBytesMin     = 4 << 10
	frameBytesMax     = 64 << 20

	// windowBytesDefault is two frames: one on its way while the other is
	// acknowledged. More was not faster.
	windowBytesDefault = 2 * frameBytesDefault

	// windowFrames bounds the frames of one connection that wait for their ack when
	// they are small.
	windowFrames = 64

	// windowWritesDefault is how many writes a session accepts before ErrFull. They
	// cost no memory but their own; the bound keeps Quiesce and turns cheap.
	windowWritesDefault = 256

	// A header lists pieces (patterns) and runs. Rows are what they expand to: the
	// iovecs of both sides, of 16 bytes each. Rows of 512 bytes fill a frame.
	piecesMax = 512
	runsMax   = 4096
	rowsMax   = 8192
	bodyMax   = bodyBytes + piecesMax*pieceBytes + runsMax*runBytes

	// sliverBytes: a frame with less room left is closed rather than filled with a
	// part of a unit, which costs a pattern of its own on both sides.
	sliverBytes = 64 << 10

	// iovecsMax is what one readv or writev takes (UIO_MAXIOV).
	iovecsMax = 1024

	// sampleEvery is of how many frames of a connection one has a sum, the first
	// included, where the policy is to sample: a link that flips bits shows within a
	// hundred MiB, for less than a hundredth of the rate.
	sampleEvery = 16

	// discardBytes is the buffer for payload that is refused, and of the zeros that
	// pad an abandoned frame: the size of a socket read that still pays.
	discardBytes = 64 << 10

	// acksMax bounds the acks that wait for a peer which sends frames and does not
	// read: four windows of small frames.
	acksMax = 4 * windowFrames

	// nameMax bounds the names in a hello: a node's name and incarnation are 64 and
	// 20 characters.
	nameMax = 512

	// handshakesMax bounds connections without a session: those that have not said
	// hello, and those whose Connect has not come. More are closed.
	handshakesMax = 1024

	// dialTimeoutDefault rides out one lost SYN and its retry (1 s, then 2 s).
	dialTimeoutDefault = 5 * time.Second

	// handshakeTimeoutDefault is how long one side waits for the other's Connect:
	// both follow the same message, so seconds are a peer in trouble.
	handshakeTimeoutDefault = 10 * time.Second

	// userTimeoutDefault is how long what was sent may stay unacknowledged by the
	// peer's kernel, a receive window of 0 included, before the session is lost.
	userTimeoutDefault = 20 * time.Second

	// keepAliveDefault finds a peer's host that is gone while nothing is sent: after
	// three probes without an answer.
	keepAliveDefault = 5 * time.Second
	keepAliveProbes  = 3

	// acceptPause is how long the listener rests when the process has no file
	// descriptor left.
	acceptPause = 50 * time.Millisecond
)

// A connection's window holds a frame of the largest default, or it would never
// send: if this does not compile, change a constant above.
const _ uint = windowBytesDefault - frameBytesDefault
