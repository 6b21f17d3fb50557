package actors

import (
	"slices"
	"testing"

	"github.com/asynkron/protoactor-go/actor"
)

type recorder struct{ got []any }

func (r *recorder) InvokeSystemMessage(m any)           { r.got = append(r.got, m) }
func (r *recorder) InvokeUserMessage(m any)             { r.got = append(r.got, m) }
func (r *recorder) EscalateFailure(reason, message any) {}

// A message that comes while an actor is being spawned waits for its start: the
// runtime's own mailbox panics in the sender, and never runs again.
func TestMessagesBeforeTheStartWaitForIt(t *testing.T) {
	m, r := newMailbox(), &recorder{}
	m.PostUserMessage(1)
	m.PostUserMessage(2)
	m.RegisterHandlers(r, actor.NewSynchronizedDispatcher(10))
	m.PostSystemMessage("started")
	m.Start()
	m.PostUserMessage(3)
	if want := []any{"started", 1, 2, 3}; !slices.Equal(r.got, want) {
		t.Errorf("got %v, want %v", r.got, want)
	}
}
