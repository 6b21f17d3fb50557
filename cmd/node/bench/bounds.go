package bench

import "time"

// Every bound of the measuring, with its reason.
const (
	// BatchBytes is one write where nothing else is asked: several frames of a provider,
	// so that what a write costs by itself does not count. More was not faster.
	BatchBytes = 8 << 20

	// BlockMin and BlockMax bound the rows: below is no KV cache, above is no page.
	BlockMin = 64
	BlockMax = 64 << 20

	// PoolMax bounds a pool. Several times the last-level cache is enough to be cold.
	PoolMax = 64 << 30

	// unitsMax bounds the blocks of a pool: each has a number of 4 bytes in some lists.
	unitsMax = 1 << 28

	// writesMin is how many writes a pool has room for, so that one is on its way
	// while others are being made.
	writesMin = 4

	// windowBytes and windowWrites bound what is posted and not complete: what the
	// raw loop has on its way with 4 connections, and the writes that providers take.
	windowBytes  = 64 << 20
	windowWrites = 256

	// loopWindow is the frames of one connection of the raw loop that wait for their
	// acks: one on its way while the other is acknowledged.
	loopWindow = 2

	// pageBytes is a page of the receiver in a strided layout, half of which is
	// written: 64 tokens of 1 KiB, 16 of 4 KiB.
	pageBytes = 64 << 10

	// sampleBytes is what is checked after each measurement of a provider: some
	// milliseconds of work.
	sampleBytes = 8 << 20

	// chunkRows is how many rows a loop lists before it copies them: the list stays
	// in the first-level cache.
	chunkRows = 256

	// iovecsMax is what one readv or writev takes (UIO_MAXIOV).
	iovecsMax = 1024

	// hugeBytes is a huge page, on amd64 and on arm64 with pages of 4 KiB.
	hugeBytes = 2 << 20

	// patience is how long the other side may take to answer, or to hear of what has
	// landed: filling a pool of some GiB takes seconds.
	patience = 60 * time.Second

	// farewell is how long the other process may take to end when it was told to.
	farewell = 5 * time.Second
)
