package cluster

import (
	"bytes"
	"strings"
	"sync"

	"github.com/hashicorp/memberlist"
)

// note is what a callback of memberlist heard, copied.
type note struct {
	kind   noteKind
	name   string // gossip name
	gossip string // address
	meta   []byte
}

type noteKind uint8

const (
	noteAlive noteKind = iota
	noteGone
	noteGoodbye
)

// inbox takes notes from memberlist's callbacks, which hold its lock, to the
// goroutine that tells. It never blocks the one that puts.
type inbox struct {
	wake chan struct{} // holds one
	mu   struct {
		sync.Mutex
		notes  []note
		closed bool
	}
}

func newInbox() *inbox { return &inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) put(n note) {
	b.mu.Lock()
	if !b.mu.closed {
		b.mu.notes = append(b.mu.notes, n)
	}
	b.mu.Unlock()
	b.ring()
}

func (b *inbox) ring() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// take waits for notes; not ok means closed, and what was left is dropped.
func (b *inbox) take() ([]note, bool) {
	for range b.wake {
		b.mu.Lock()
		notes, closed := b.mu.notes, b.mu.closed
		b.mu.notes = nil
		b.mu.Unlock()
		if closed {
			return nil, false
		}
		if len(notes) > 0 {
			return notes, true
		}
	}
	return nil, false
}

func (b *inbox) close() {
	b.mu.Lock()
	b.mu.closed = true
	b.mu.Unlock()
	b.ring()
}

// goodbye starts the message of a node that leaves; its gossip name follows.
// memberlist itself tells its callbacks only that a node is gone.
const goodbye = "\x01bye "

// delegate is what memberlist calls, under its lock: it copies and puts.
type delegate struct {
	meta  []byte
	inbox *inbox
}

var (
	_ memberlist.Delegate      = delegate{}
	_ memberlist.EventDelegate = delegate{}
)

// NodeMeta is this node's metadata, at most MetaMax bytes.
func (d delegate) NodeMeta(int) []byte { return d.meta }

// NotifyMsg hears a goodbye.
func (d delegate) NotifyMsg(b []byte) {
	if name, ok := strings.CutPrefix(string(b), goodbye); ok {
		d.inbox.put(note{kind: noteGoodbye, name: name})
	}
}

// GetBroadcasts has nothing to say.
func (d delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState is empty: everything is in the metadata.
func (d delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState ignores what others add.
func (d delegate) MergeRemoteState([]byte, bool) {}

// NotifyJoin hears of a node that is alive.
func (d delegate) NotifyJoin(n *memberlist.Node) { d.put(noteAlive, n) }

// NotifyUpdate hears of a node whose metadata changed.
func (d delegate) NotifyUpdate(n *memberlist.Node) { d.put(noteAlive, n) }

// NotifyLeave hears of a node that is dead or left.
func (d delegate) NotifyLeave(n *memberlist.Node) { d.put(noteGone, n) }

func (d delegate) put(kind noteKind, n *memberlist.Node) {
	d.inbox.put(note{kind: kind, name: n.Name, gossip: n.Address(), meta: bytes.Clone(n.Meta)})
}
