package shm

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
)

// An UnreachableError says that two processes cannot share memory, whatever they
// try: a node that gets it goes on with another provider. Disconnected carries it,
// within moments of Connect.
type UnreachableError struct {
	Reason string // one of the constants below
	Err    error  // the detail
}

// Reasons of an UnreachableError.
const (
	OtherHost      = "the peer is on another host, or this one was started again"
	OtherNamespace = "the peer is in another network namespace"
	OtherUser      = "the peer runs as another user"
	NoProcess      = "the end of the peer's process cannot be watched"
	NoMemory       = "memory cannot be handed over"
	BadEndpoint    = "the peer's endpoint is not one of shared memory"
)

func (e *UnreachableError) Error() string { return fmt.Sprintf("shm: %s: %v", e.Reason, e.Err) }
func (e *UnreachableError) Unwrap() error { return e.Err }

// endpoint is where a provider listens, and from where it can be reached: text of
// four words. Abstract sockets are of one network namespace.
type endpoint struct {
	boot    string // the kernel's boot id
	network string // the network namespace, e.g. net:[4026531833]
	socket  string // an abstract name, drawn at random
}

const endpointScheme = "shm1"

// newEndpoint draws a name.
func newEndpoint() (endpoint, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return endpoint{}, fmt.Errorf("shm: which host this is: %w", err)
	}
	network, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return endpoint{}, fmt.Errorf("shm: which network namespace this is: %w", err)
	}
	var name [16]byte
	_, _ = rand.Read(name[:]) // it never fails
	return endpoint{strings.TrimSpace(string(boot)), network, "@kvferry-" + hex.EncodeToString(name[:])}, nil
}

func (e *endpoint) encode() []byte {
	return []byte(strings.Join([]string{endpointScheme, e.boot, e.network, e.socket}, " "))
}

// reach parses a peer's endpoint, and refuses one that cannot be reached from e.
func (e *endpoint) reach(raw []byte) (peer endpoint, err error) {
	words := strings.Split(string(raw), " ")
	if len(words) != 4 || words[0] != endpointScheme || !strings.HasPrefix(words[3], "@") || len(words[3]) > 100 {
		return peer, &UnreachableError{BadEndpoint, fmt.Errorf("got %.200q", raw)}
	}
	peer = endpoint{words[1], words[2], words[3]}
	switch {
	case peer.boot != e.boot:
		return peer, &UnreachableError{OtherHost, fmt.Errorf("its boot id is %.64q, this one's %q", peer.boot, e.boot)}
	case peer.network != e.network:
		return peer, &UnreachableError{OtherNamespace, fmt.Errorf("its is %.64q, this one's %q", peer.network, e.network)}
	}
	return peer, nil
}
