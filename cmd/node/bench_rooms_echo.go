package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/messages"
	"kvferry/node/remoting"
)

// The limit of rooms: actors beside those of the node, in the same system, that send
// requests over the same remoting and answer them. All of a pair of nodes goes from
// one actor to one other, so it is one that asks here, too.
const (
	// The names are among those of peers, whom remoting lets in; no peer has them,
	// whose names end in an incarnation.
	echoName  = "kvferry/peers/bench-echo"
	askerName = "kvferry/peers/bench-asker"
)

// echoes is the system, and its remoting.
type echoes struct {
	system *actor.ActorSystem
	remote *remoting.Remote
	asker  *actor.PID
}

// echoRound is one measurement. (loop -> asker)
type echoRound struct {
	peer     string
	inFlight int
	stop     time.Time
	done     chan<- []sample
}

func startEchoes(log *zap.Logger) (*echoes, error) {
	system := remoting.NewSystem(log)
	remote, err := remoting.Start(system, remoting.Config{Bind: "127.0.0.1:0"}, log)
	if err != nil {
		return nil, err
	}
	e := &echoes{system: system, remote: remote}
	answer := actor.PropsFromFunc(func(c actor.Context) {
		if m, ok := c.Message().(*messages.Envelope); ok {
			c.Respond(m)
		}
	})
	if _, err = system.Root.SpawnNamed(answer, echoName); err == nil {
		e.asker, err = system.Root.SpawnNamed(actor.PropsFromProducer(func() actor.Actor { return new(asker) }), askerName)
	}
	if err != nil {
		return nil, errors.Join(err, remote.Close())
	}
	return e, nil
}

// measure sends requests to the peer until d has passed, and waits for all answers.
func (e *echoes) measure(ctx context.Context, peer string, inFlight int, d time.Duration) (*roomsAnswer, error) {
	done := make(chan []sample, 1)
	began := time.Now()
	stop := began.Add(d)
	e.system.Root.Send(e.asker, &echoRound{peer: peer, inFlight: inFlight, stop: stop, done: done})
	select {
	case samples := <-done:
		return &roomsAnswer{Rooms: len(samples), Figures: roomFiguresOf(samples, began, stop)}, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("requests to %s: %w", peer, context.Cause(ctx))
	}
}

// asker keeps requests in flight.
type asker struct {
	round   *echoRound
	target  *actor.PID
	sent    []time.Time // by the number of a request, which is its place here
	open    int
	samples []sample
}

// Receive is called by the actor system.
func (a *asker) Receive(c actor.Context) {
	switch m := c.Message().(type) {
	case *echoRound:
		a.round, a.target, a.samples = m, actor.NewPID(m.peer, echoName), nil
		a.sent, a.open = make([]time.Time, m.inFlight), m.inFlight
		for i := range a.sent {
			a.ask(c, uint64(i), time.Now())
		}
	case *messages.Envelope:
		a.onAnswer(c, m)
	}
}

// ask sends a request as small as what a pair of idle nodes asks each other.
func (a *asker) ask(c actor.Context, number uint64, now time.Time) {
	a.sent[number] = now
	c.Request(a.target, &messages.Envelope{
		Number: number, Body: &messages.Envelope_Ping{Ping: &messages.Ping{Sequence: number}},
	})
}

func (a *asker) onAnswer(c actor.Context, m *messages.Envelope) {
	if m.Number >= uint64(len(a.sent)) {
		return // of a round that was given up
	}
	now := time.Now()
	a.samples = append(a.samples, sample{now, now.Sub(a.sent[m.Number])})
	if now.Before(a.round.stop) {
		a.ask(c, m.Number, now)
		return
	}
	if a.open--; a.open == 0 {
		a.round.done <- a.samples
	}
}
