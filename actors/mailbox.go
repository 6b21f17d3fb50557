package actors

import (
	"sync"

	"github.com/asynkron/protoactor-go/actor"
)

// newMailbox is the runtime's mailbox, safe from the first moment. The runtime
// makes a named actor known before its mailbox has a dispatcher: a message that
// comes in between panics in its sender, and the mailbox never runs again.
func newMailbox() actor.Mailbox { return &mailbox{Mailbox: actor.Unbounded()()} }

// mailbox keeps user messages until the runtime has started it.
type mailbox struct {
	actor.Mailbox

	mu      sync.Mutex
	started bool
	early   []any
}

// PostUserMessage is called by any goroutine.
func (m *mailbox) PostUserMessage(message any) {
	m.mu.Lock()
	if !m.started {
		m.early = append(m.early, message)
		m.mu.Unlock()
		return
	}
	m.mu.Unlock()
	m.Mailbox.PostUserMessage(message)
}

// Start is called by the runtime once the actor can take messages; it has been
// told that it is started by then.
func (m *mailbox) Start() {
	m.Mailbox.Start()
	m.mu.Lock()
	for len(m.early) > 0 { // before those that come from now on
		early := m.early
		m.early = nil
		m.mu.Unlock()
		for _, message := range early { // this may run the actor, which may send to itself
			m.Mailbox.PostUserMessage(message)
		}
		m.mu.Lock()
	}
	m.started = true
	m.mu.Unlock()
}
