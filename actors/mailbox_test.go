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

// runner answers each message to itself, until nothing is left of it.
type runner struct {
	recorder
	m actor.Mailbox
}

func (r *runner) InvokeUserMessage(m any) {
	r.got = append(r.got, m)
	if n := m.(int); n > 0 {
		r.m.PostUserMessage(n - 1)
	}
}

// An actor that runs in the goroutine of who sends may send to itself while what came
// before its start is handed to it.
func TestMessagesOfAnActorToItselfBeforeTheStart(t *testing.T) {
	m := newMailbox()
	r := &runner{m: m}
	m.PostUserMessage(2)
	m.PostUserMessage(0)
	m.RegisterHandlers(r, actor.NewSynchronizedDispatcher(10))
	m.Start()
	if want := []any{2, 0, 1, 0}; !slices.Equal(r.got, want) {
		t.Errorf("got %v, want %v", r.got, want)
	}
	m.PostUserMessage(0)
	if len(r.got) != 5 {
		t.Errorf("got %v: the mailbox does not run any more", r.got)
	}
}
