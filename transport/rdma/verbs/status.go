package verbs

import "fmt"

// Status is how a work request ended, as the library numbers it.
type Status uint32

// The statuses that are told apart by more than whose fault they are.
const (
	statusSuccess   Status = 0
	statusQueuePair Status = 2 // local queue pair operation error
	statusFlushed   Status = 5
)

// Blame is whose fault a completion with an error is, and so what helps.
type Blame uint8

const (
	// NoBlame: it succeeded.
	NoBlame Blame = iota
	// Flushed: another request of the queue pair failed before it. Where that one never
	// comes, the link was lost: some kernels flush all when a port goes down.
	Flushed
	// Mine: this side's memory or request is wrong. It is a bug; nothing is tried again.
	Mine
	// Peer: the other side refused it, such as a key that is no more.
	Peer
	// Path: nothing came back. Another path, or a new connection, may do.
	Path
)

func (b Blame) String() string {
	return [...]string{"nobody", "a request before it", "this side", "the peer", "the path"}[b]
}

// statuses is the names and the blame of each status, by number.
var statuses = [...]struct {
	name  string
	blame Blame
}{
	{"success", NoBlame},
	{"local length error", Mine},
	{"local queue pair operation error", Mine},
	{"local EE context operation error", Mine},
	{"local protection error", Mine},
	{"flushed", Flushed},
	{"memory window bind error", Mine},
	{"bad response", Peer},
	{"local access error", Mine},
	{"remote invalid request", Peer},
	{"remote access error", Peer},
	{"remote operation error", Peer},
	{"transport retries exceeded", Path},
	{"receiver-not-ready retries exceeded", Path},
	{"local RDD violation", Mine},
	{"remote invalid read request", Peer},
	{"remote aborted", Peer},
	{"invalid EE context number", Mine},
	{"invalid EE context state", Mine},
	{"fatal error", Path},
	{"response timeout", Path},
	{"general error", Path},
	{"tag matching error", Mine},
	{"tag matching rendezvous incomplete", Mine},
}

func (s Status) String() string {
	if int(s) >= len(statuses) {
		return fmt.Sprintf("status %d", uint32(s))
	}
	return statuses[s].name
}

// Blame is whose fault it is. What nobody knows is taken for the path's: a new
// connection is the least that helps.
func (s Status) Blame() Blame {
	if int(s) >= len(statuses) {
		return Path
	}
	return statuses[s].blame
}

// everywhere reports whether any other stripe would do as badly. A local queue pair
// operation error that is of this program fails on the others, too, and soon there is
// none; but soft-RoCE says the same of a packet that cannot leave when a link goes.
func (s Status) everywhere() bool {
	b := s.Blame()
	return (b == Mine || b == Peer) && s != statusQueuePair
}

// completion is a work request that ended. Of one that failed only ID, Status, QP and
// Vendor say anything.
type completion struct {
	ID     uint64
	Status Status
	QP     uint32
	Vendor uint32
	Imm    uint32
	HasImm bool // it is the arrival of a write of the peer
}

// advice is what may help, for people.
func (s Status) advice() string {
	if s == statusQueuePair {
		return ": is the link of this port up? Else it is a fault of this program, or memory that went away"
	}
	switch s.Blame() {
	case Path:
		return ": is the peer alive, does its address answer from this one's port, is the traffic class lossless?"
	case Peer:
		return ": its memory or its queue pair is not what it had told of; the next connection asks again"
	case Mine:
		return ": it is a fault of this program, or memory that went away"
	case Flushed:
		return ", and that one never came: the link was lost"
	}
	return ""
}
