// Package verbs is for real RDMA, InfiniBand and RoCE, through libibverbs: reliable
// connections, one-sided writes. The library is loaded at run time: one binary runs where
// there is none, and says so.
//
// # Devices
//
// Which ports and addresses of a host are used, and why, is a pure function of what
// sysfs has, so that it is tested on hosts that nobody here has seen.
//
// # Sessions
//
// A session has a channel, a TCP connection that proves with the nonces of its generation
// that it belongs there, and stripes, which are queue pairs between the ports of both
// sides. A write is cut into chunks; a free stripe takes the next chunk of the next tag
// and posts it as one chain. The last request of a chain is a WRITE_WITH_IMM of a record:
// the immediate names grant and life, the record has the bytes and its number. Receives
// are posted before the peer may send, and credits by the channel say how many.
//
// A stripe that fails is destroyed by both ends, each says so, and only then what was
// unknown on it goes by another. Where the last stripe goes, the session does.
//
// # What stops
//
// A peer is trusted with the key of a region while it is valid: honest senders check each
// write against its grant, which the receiver tells by the channel, and refuse it in the
// receiver's name. So Revoke leaves a grant open that the peer may be writing under, asks
// the peer to end its writes, and closes the grant when it has and all that it counts on
// was counted. Fence needs nobody: every queue pair is put in error, drained and
// destroyed. A device that does not destroy one in time keeps the grants of that peer
// open, and the sources of what it may still read, until it does.
//
// The lock of a provider guards everything but the queue pairs. No call of the library
// that may take long is made under it: a device that hangs costs its sessions.
//
// All cgo and all unsafe of verbs is in this folder. Without cgo the package builds,
// and Listen says that it did.
package verbs
