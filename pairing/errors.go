package pairing

import (
	"fmt"

	"kvferry/messages"
)

// Conflict refuses an engine whose attachment is known already, with other
// descriptors.
type Conflict struct {
	Engine messages.Engine
	Field  string // the first that differs, e.g. "shards[1].page_tokens"
	Got    string // of the newcomer
	Want   string // of what is known
}

func (e *Conflict) Error() string {
	return fmt.Sprintf("engine %s is attached already with another %s: got %s, want %s: a changed engine needs a new incarnation",
		e.Engine, e.Field, e.Got, e.Want)
}

// Occupied refuses an engine whose place another incarnation holds, which is
// alive.
type Occupied struct {
	Engine  messages.Engine
	Holder  messages.Engine
	Node    messages.Node // where the holder is
	Address string        // of that node; "" when it is this one
}

func (e *Occupied) Error() string {
	at := e.Address
	if at == "" {
		at = "this node"
	}
	return fmt.Sprintf("engine %s: its place is held by %s on node %s (%s), which answers: stop that one first",
		e.Engine, e.Holder, e.Node, at)
}

// FieldError is a value of a description that is out of its bounds.
type FieldError struct {
	Field string // e.g. "shards[1].layers[3].region"
	Got   string
	Want  string
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("description: %s is %s, want %s", e.Field, e.Got, e.Want)
}
