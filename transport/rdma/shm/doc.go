// Package shm is a one-sided write between processes of one host: the sending process
// has the receiver's pool mapped, and copies into it. No byte goes through the kernel,
// and the receiver does nothing for it but count what has arrived.
//
// # What is shared
//
// A session is a Unix socket in an abstract namespace. Over it each side hands the
// other, as descriptors:
//
//   - its table of grants, which the other maps read-only and which is sealed so that
//     nobody can map it otherwise: which grants are in force, and what they say;
//   - its board, which the other writes: the slot of its copier, and what arrived;
//   - the regions that those grants name, each before the first grant that names it.
//
// After that grants, arrivals and refusals cross in shared memory alone. A grant is in
// force when its entry is written, which is before Grant returns, and it is found by
// its id; no message is under way for a write to overtake. Nothing on the board can
// fill up, so a sender never waits for a receiver to read: the counts of one entry are
// added up until the receiver takes them. It sleeps on a futex meanwhile.
//
// Each session has one copier. One thread reaches most of the bandwidth of the memory;
// tags take turns of some MiB, and rows go in chunks of some hundred KiB (limits.go).
//
// # What stops
//
// An entry holds a word that never comes back: its number and its life. Before each
// chunk the copier
//
//	stores the word in its slot, then loads the entry
//
// and copies only if the entry still holds the word; after the chunk it clears the
// slot. Revoke and Fence
//
//	clear the entry, then load the slot
//
// and wait only if the slot holds the word. Each of these is an operation of
// sync/atomic, and those are sequentially consistent, also between processes: on amd64
// the store is an XCHG, a full barrier; on arm64 it is an STLR, which a later LDAR does
// not pass. So there is one order of the four. If the copier's load comes after the
// clearing, it does not copy. If it comes before, so does its store, and the load of
// the slot sees it, or sees that the chunk is over. Nothing is copied before the load:
// it acquires. Nothing is copied after the slot is cleared: that releases, and where a
// chunk went past the caches a store fence comes first, since no other operation orders
// those stores.
//
// An arrival is counted while the slot still stands, after the last byte and the fence.
// So whoever finds the slot clear finds the arrival as well; and who finds the arrival
// finds the bytes.
//
// A copy takes microseconds, and so does the wait. But the peer's process may be stopped
// inside of one (SIGSTOP, a debugger, a frozen cgroup). Then Revoke answers open after
// CopyTimeout, and Fence lists that one grant; all others close. It stays open until
// the slot is clear or the process has ended, which a pidfd tells: then no thread of it
// runs any more. Once its session was fenced that moment is told, by one more Revoked;
// from then on no Fence of any generation of that peer lists the grant, the next Revoke
// is answered closed, and its region can be deregistered.
//
// A fence of this side waits for its own copier, hence for a chunk at most; what was not
// finished is unknown if any of it was copied, although nothing is on its way. Quiesce
// lets what has begun land, which takes no peer.
//
// # Who is trusted
//
// Both processes run as the same user, which each side checks; such processes could
// attach to each other as debuggers where the system allows that. The grants bound what
// an honest sender writes: it checks every row. A hostile or broken peer could
//
//   - write anything anywhere into the regions that it was handed, at any time, also
//     after its grants were closed and its session fenced, for as long as it has them
//     mapped; only regions that were granted to it are ever handed over;
//   - read them, and the table with the grants of its own session;
//   - tell of arrivals that did not happen, and keep its own grants open by a word left
//     in the slot;
//   - wake this side for nothing, and so cost processor time; take memory of the board,
//     1 MiB, and of its table of grants, 1 GiB, which the kernel counts for whoever
//     touches it first.
//
// It cannot make this process crash, read or write elsewhere, wait without end, or leak
// descriptors: what it hands over is checked for its seals and length, what it wrote is
// copied before it is checked, and nothing that it could fill or block is written to.
// Who shares a pool with whom it does not trust that far uses tcp.
//
// Pages of a pool that are touched first by a peer's copy are counted for the peer's
// cgroup. Regions are mapped so that huge pages can be used, and get them, where the
// kernel has MADV_COLLAPSE, for what of them is in use when they are first handed over.
//
// # When it cannot work
//
// Processes of different hosts, network namespaces or users cannot share memory this
// way, nor can those between which the kernel passes no descriptors or gives no pidfd.
// Connect finds out within moments: Disconnected then carries an *UnreachableError with
// the reason, and the node uses tcp. A peer that merely is not there, or does not answer,
// is another error.
//
// # Locks
//
// Provider.mu guards everything of the provider and its sessions; it is held for no
// copy and no wait. It may be held when a socket is sent to, which does not wait. An
// outbound's lock is for messages that come in, and is taken alone.
package shm
