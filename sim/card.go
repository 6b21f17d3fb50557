package sim

import (
	"errors"
	"fmt"
	"kvferry/messages"
	"kvferry/transport/rdma"
	"time"
)

// cardKind is how a network card places bytes, and so what a revoke can do.
type cardKind uint8

const (
	checked cardKind = iota // the receiver places them: a revoke closes at once (tcp)
	remote                  // the sender's card does: a revoke asks the peer, or a fence closes (verbs)
	stuck                   // a process stopped inside a copy keeps a grant open, whatever is fenced (shm)
	cardKinds
)

func (k cardKind) String() string { return [...]string{"checked", "remote", "stuck"}[k] }

var errDown = errors.New("no connection")

const (
	cardWindow  = 3                      // writes of a session that are taken
	cardStripes = 2                      // that a write is spread over
	cardRetry   = 300 * time.Millisecond // until a packet that nobody answers is given up
	cardDial    = 2 * time.Second        // until a session is made
)

// card is the provider of a process, and the hardware below it, which goes on when the
// process is stopped.
type card struct {
	p        *process
	w        *world
	sessions []*session
	leaked   []*session // that a planted fault has not fenced
	grants   map[rdma.GrantID]*grant
	tags     map[*room]*tag
}

func newCard(p *process) *card {
	return &card{p: p, w: p.w, grants: map[rdma.GrantID]*grant{}, tags: map[*room]*tag{}}
}

// life is the process of a node's incarnation, dead ones included.
func (w *world) life(n messages.Node) *process {
	for _, p := range w.lives {
		if p.id == n {
			return p
		}
	}
	panic(fmt.Sprintf("sim: no node %s", n))
}

// die is the end of the process: the memory is nobody's, and its peers notice.
func (c *card) die() {
	for _, s := range c.sessions {
		s.over = true
		s.hint()
	}
}
