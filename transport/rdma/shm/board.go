package shm

import (
	"fmt"
	"math/bits"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The board is memory that the sender writes and the receiver reads: the slot, and
// what has arrived. Nothing on it can fill up, so a sender never waits for a
// receiver to read.
//
//	0     slot: the word of the grant under which the copier copies, or 0
//	64    bell: 32 bits, the futex of the receiver
//	128   refused writes, a word for each refusal
//	4096  changed, 64 entries to a bit; then the entries, a bit each
//	...   arrived, by entry: bytes, then writes
//
// Counts are added by the sender and taken by the receiver.
const (
	boardSlot    = 0
	boardBell    = 64
	boardRefused = 128
	boardGroups  = 4096
	boardChanged = boardGroups + entries/64/8
	boardArrived = boardChanged + entries/8
	boardBytes   = boardArrived + entries*16
)

// refusal is why a sender refused a write of its own.
type refusal uint32

const (
	refusedUnknown refusal = iota
	refusedOutside
	refusedRevoked
	refusedBroken
	refusals
)

func (r refusal) Error() string {
	switch r {
	case refusedUnknown:
		return "shm: the grant is not known"
	case refusedOutside:
		return "shm: rows outside of the grant"
	case refusedRevoked:
		return "shm: the grant was revoked"
	case refusedBroken:
		return "shm: the grant cannot be read, or names a region that was not handed over"
	}
	return fmt.Sprintf("shm: refusal %d", uint32(r))
}

// States of the bell. The sender rings it, the receiver looks and sleeps.
const (
	bellQuiet uint32 = iota
	bellRung
	bellAsleep
)

// board is one side's mapping of it. Its receiver takes under the provider's lock;
// one copier writes.
type board struct{ *mapping }

func newBoard() (board, *os.File, error) {
	m, f, err := newShared("board", boardBytes, false)
	if err != nil {
		return board{}, nil, &UnreachableError{NoMemory, err}
	}
	return board{m}, f, nil
}

func openBoard(fd int) (board, error) {
	m, err := openShared(fd, boardBytes, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return board{}, fmt.Errorf("the board: %w", err)
	}
	return board{m}, nil
}

func (b board) slot() *atomic.Uint64              { return b.at(boardSlot) }
func (b board) refused(r refusal) *atomic.Uint64  { return b.at(boardRefused + uint64(r)*8) }
func (b board) groups(i uint32) *atomic.Uint64    { return b.at(boardGroups + uint64(i)*8) }
func (b board) changed(i uint32) *atomic.Uint64   { return b.at(boardChanged + uint64(i)*8) }
func (b board) bytesOf(e uint32) *atomic.Uint64   { return b.at(boardArrived + uint64(e)*16) }
func (b board) arrivedOf(e uint32) *atomic.Uint64 { return b.at(boardArrived + uint64(e)*16 + 8) }

// arrive counts a write whose bytes are all in memory.
func (b board) arrive(entry uint32, bytes uint64) {
	b.bytesOf(entry).Add(bytes) // first: who sees the write sees its bytes
	b.arrivedOf(entry).Add(1)
	b.changed(entry / 64).Or(1 << (entry % 64))
	b.groups(entry / 64 / 64).Or(1 << (entry / 64 % 64))
}

// refuse counts a write that was refused.
func (b board) refuse(r refusal) { b.refused(r).Add(1) }

// ring wakes the receiver, if it sleeps. It never waits.
func (b board) ring() {
	bell := b.at32(boardBell)
	if bell.Swap(bellRung) == bellAsleep {
		futex(bell, futexWake, 1)
	}
}

// sleep waits until the bell was rung since the last call, and reports false once
// ended does. What was counted before the bell is seen by who looks after it. A peer
// that scribbles on the bell only wakes this side for nothing, or late.
func (b board) sleep(ended func() bool) bool {
	bell := b.at32(boardBell)
	for !ended() {
		switch state := bell.Load(); state {
		case bellQuiet:
			bell.CompareAndSwap(bellQuiet, bellAsleep)
		case bellAsleep:
			futex(bell, futexWait, bellAsleep)
		default:
			if bell.CompareAndSwap(state, bellQuiet) {
				return true
			}
		}
	}
	return false
}

// Operations of futex(2), from linux/futex.h. Not private: both processes use it.
const (
	futexWait = 0
	futexWake = 1
)

// futex waits for bellPause at most. An error is a wake-up too early.
func futex(at *atomic.Uint32, op uintptr, value uint32) {
	pause := unix.NsecToTimespec(bellPause.Nanoseconds())
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(at)), op, uintptr(value), uintptr(unsafe.Pointer(&pause)), 0, 0)
}

// take takes what arrived under one entry. Where it is the last look, forget
// follows.
func (b board) take(entry uint32) (writes, bytes uint64) {
	if writes = b.arrivedOf(entry).Swap(0); writes == 0 {
		return 0, 0
	}
	return writes, b.bytesOf(entry).Swap(0)
}

// forget drops bytes of which the write was never counted: its process died between
// the two.
func (b board) forget(entry uint32) { b.bytesOf(entry).Store(0) }

// eachChanged calls f with the entries that may have arrivals, once each.
func (b board) eachChanged(f func(entry uint32)) {
	for g := uint32(0); g < entries/64/64; g++ {
		if b.groups(g).Load() == 0 {
			continue
		}
		for group := b.groups(g).Swap(0); group != 0; group &= group - 1 {
			i := g*64 + uint32(bits.TrailingZeros64(group))
			for set := b.changed(i).Swap(0); set != 0; set &= set - 1 {
				f(i*64 + uint32(bits.TrailingZeros64(set)))
			}
		}
	}
}
