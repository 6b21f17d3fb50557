package verbs

import "time"

// Every limit of the provider, with its reason.
const (
	// queuePairsDefault is the stripes of a pair of ports: with two, one is being
	// posted to while the other completes.
	queuePairsDefault = 2
	queuePairsMax     = 16

	// stripesMax bounds the live stripes of a session, so the ports of both sides times
	// the queue pairs.
	stripesMax = 256

	// chunkBytesDefault is what one chain moves and one arrival tells: large enough that
	// the record behind it costs nothing, small enough that tags take turns, stripes
	// share the work and a Quiesce waits little.
	chunkBytesDefault = 4 << 20
	chunkBytesMin     = 4 << 10
	chunkBytesMax     = 1 << 30

	// stripeWindow is the bytes on the way of a stripe before nothing more is posted to it.
	// A link of 400 Gb/s with a round trip of 100 us holds 5 MB; what is posted beyond
	// that only makes other tags, a Quiesce and the end of a stripe wait for it.
	stripeWindow = 32 << 20

	// sendsWanted is the requests of a send queue: two chains in flight and room for a
	// third. Devices have less, and get asked for less until they agree; below sendsMin a
	// chain is not worth its record.
	sendsWanted  = 2048
	sendsMin     = 64
	chainDivisor = 3

	// piecesWanted is the pieces of one request, for rows of heads that are gathered.
	// Some devices have 2, and more make every request of the queue larger.
	piecesWanted = 8

	// receivesWanted is how many arrivals may wait at the receiver: a GiB of chunks, or
	// a quarter of the rooms in flight that a small model has. They are topped up when
	// topUpPart of them are used.
	receivesWanted = 256
	topUpPart      = 4

	// recordBytes is a record of an arrival: its bytes, and its number on the stripe.
	recordBytes = 16

	// regionBytesDefault is one registration: below the 3.5 GiB at which some drivers
	// with pages of 4 KiB fail, and a multiple of all huge pages.
	regionBytesDefault = 2 << 30
	regionBytesMin     = 4 << 10

	// windowWritesDefault is how many writes a session accepts before ErrFull. They
	// cost no memory but their own; the bound keeps Quiesce and turns cheap.
	windowWritesDefault = 256

	// slotBits of an immediate name a grant, the rest its life: a million grants at
	// once, and a slot is free for 4,096 grants before a late arrival could be taken for
	// one of the next.
	slotBits = 20
	lifeBits = 32 - slotBits

	// timeoutDefault and retriesDefault are when a packet without an answer is given up
	// by the device: 4.096 us << 14 = 67 ms, seven times, so some half of a second by the
	// formula and up to 4 s on cards. It rides out a switch that reboots a port.
	// 7 retries would be for ever on some devices.
	timeoutDefault = 14
	timeoutMax     = 20
	retriesDefault = 6
	retriesMost    = 6

	// rnrRetries is for a receiver without a receive, which credits rule out; it covers
	// a receiver that is not ready yet, for a few milliseconds.
	rnrRetries = 6

	// stallTimeoutDefault is this side's own deadline of the oldest chain: whatever the
	// device does, after it the stripe is given up. Above what retries take.
	stallTimeoutDefault = 6 * time.Second

	// goneTimeoutDefault is how long a lost stripe waits for the peer to say that its
	// end is destroyed, before the session is lost: a message and a destroy. The same for
	// arrivals that the peer counts on and the device does not tell of.
	goneTimeoutDefault = 3 * time.Second

	// drainTimeout is how long a queue pair in error may take to flush: microseconds,
	// unless the device is dead and completes nothing any more.
	drainTimeout = 2 * time.Second

	// destroyTimeoutDefault is how long a fence waits for destroys. What takes longer is
	// reported as open, and closes by itself.
	destroyTimeoutDefault = 5 * time.Second

	// dialTimeoutDefault rides out one lost SYN and its retry (1 s, then 2 s).
	dialTimeoutDefault = 5 * time.Second

	// handshakeTimeoutDefault is how long one side waits for the other's Connect and
	// for the queue pairs: both follow the same message, so seconds are a peer in trouble.
	handshakeTimeoutDefault = 10 * time.Second

	// redialFirst and redialMost are the pauses of a dialer whose peer has not called
	// Connect yet.
	redialFirst = 5 * time.Millisecond
	redialMost  = 500 * time.Millisecond

	// restoreFirst and restoreMost are the pauses before a stripe that was lost is
	// offered again, with jitter: a link that flaps must not cost a handshake a second.
	restoreFirst = 1 * time.Second
	restoreMost  = 30 * time.Second

	// userTimeoutDefault is how long what the channel sent may stay unacknowledged.
	userTimeoutDefault = 10 * time.Second
	keepAlive          = 5 * time.Second
	keepAliveProbes    = 3

	// frameMost bounds a message of the channel: a grant with a million runs.
	frameMost = 16 << 20

	// queuedMost bounds what waits to be written to a peer that does not read. It has
	// room for every grant of a pool in pages.
	queuedMost = 64 << 20

	// nameMax bounds the names in a hello: a node's name and incarnation are 64 and 20
	// characters.
	nameMax = 512

	// handshakesMax bounds connections that have not said hello. More are closed.
	handshakesMax = 1024

	// acceptPause is how long the listener rests when the process has no file
	// descriptor left.
	acceptPause = 50 * time.Millisecond

	// lookAgain is when a port is looked at again of which the kernel's files say less than
	// its event.
	lookAgain = 1 * time.Second

	// wakeEvery is how long a stripe sleeps that nothing wakes: an interrupt that is lost
	// costs that much, and not the room.
	wakeEvery = 1 * time.Second

	// watchEvery is how often the deadlines of chains are looked at.
	watchEvery = 250 * time.Millisecond

	// spinDefault is how long a stripe that was busy polls before it sleeps: about what
	// an interrupt costs.
	spinDefault = 20 * time.Microsecond
)
