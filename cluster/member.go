// Package cluster says who is there: the members by incarnation, as a pure value
// (View), and the adapter over gossip that feeds it (Gossip). It knows no actor
// and no message; it tells what changed by calling one func.
//
// That gossip calls a node dead is a reason to end its rooms. It is not a fence:
// the node may still write.
package cluster

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Member is one process life of a node, and how it is reached.
type Member struct {
	// Name is the node's, the same over restarts. See CheckName.
	Name string
	// Incarnation is this process life of it.
	Incarnation uint64
	// Address is where its actors are reached, host:port.
	Address string
	// Gossip is where its gossip is reached, ip:port.
	Gossip string
	// Label is the cluster that it belongs to.
	Label string
	// VersionMin and VersionMax are the protocol versions that it speaks.
	VersionMin, VersionMax uint32
}

// String is the form in logs: name#incarnation.
func (m Member) String() string { return fmt.Sprintf("%s#%x", m.Name, m.Incarnation) }

// Speaks says whether the two have a protocol version in common.
func (m Member) Speaks(with Member) bool {
	return m.VersionMin <= with.VersionMax && with.VersionMin <= m.VersionMax
}

// Event is what a Gossip or a View tells: Up or Down. For one incarnation they
// alternate, beginning with Up; after a partition the same incarnation may come
// Up again. A Down of what is replaced comes before the Up that replaces it.
type Event interface{ event() }

// Up is a member that is there.
type Up struct{ Member Member }

// Down is a member that was Up and is not any more.
type Down struct {
	Member Member
	Reason Reason
}

func (Up) event()   {}
func (Down) event() {}

// Reason is why a member is Down.
type Reason uint8

const (
	// Dead: it does not answer, to us or to those that we hear.
	Dead Reason = iota + 1
	// Left: it said goodbye. A goodbye that got lost reads as Dead.
	Left
	// Replaced: another incarnation is at its address, or the same one moved.
	Replaced
)

// String is the reason in one word.
func (r Reason) String() string {
	switch r {
	case Dead:
		return "dead"
	case Left:
		return "left"
	case Replaced:
		return "replaced"
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// NameMax is how long a name or a label may be, in bytes.
const NameMax = 64

// CheckName says why name cannot be a node's name or a label; what is the field,
// for the error. It is 1 to NameMax of [A-Za-z0-9._-].
func CheckName(what, name string) error {
	if name == "" || len(name) > NameMax {
		return fmt.Errorf("%s: got %d bytes, want 1 to %d", what, len(name), NameMax)
	}
	for i := range len(name) {
		c := name[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !letter && strings.IndexByte("._-", c) < 0 {
			return fmt.Errorf("%s: got %q, want only letters, digits, '.', '_' and '-'", what, name)
		}
	}
	return nil
}

// addressMax is the longest address: a DNS name of 253 bytes, a colon, a port
// would be more, but must fit its one byte of length.
const addressMax = 255

// checkAddress says why address is not one that a peer can dial.
func checkAddress(what, address string) error {
	if len(address) > addressMax {
		return fmt.Errorf("%s: got %d bytes, want at most %d", what, len(address), addressMax)
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s: got %q, want host:port", what, address)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("%s: got port %q, want 1 to 65535", what, port)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%s: got host %q, want one that peers can dial", what, host)
	}
	for i := range len(host) {
		if c := host[i]; c <= ' ' || c > '~' || c == '/' {
			return fmt.Errorf("%s: got host %q, want a DNS name or an IP address", what, host)
		}
	}
	return nil
}
