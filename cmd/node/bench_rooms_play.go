package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"
)

// roomsPlay measures rooms: it starts the nodes and tells them, round by round, what
// to do.
type roomsPlay struct {
	*roomsSize
	flags    *benchRoomsFlags
	self     string // executable
	duration time.Duration
	pool     uint64 // of each side, where the limit is measured

	prefill, decode *roomsProcess
	echo            string // where prefill's remoting is
	next            uint64 // room that was not used yet
	cases           []*roomsCase
	rtt             []time.Duration
	limits          []float64 // GB/s
}

// roomsCase is a number of rooms in flight, and what was measured of it, by round.
type roomsCase struct {
	inFlight            int
	rooms, remoting     []roomFigures
	roomCPU, requestCPU []time.Duration // of both nodes, for one
	messages            []roomsMessages
}

const (
	// roomsWarmUp is the part of a measurement that is first done for nothing: maps
	// and pools grow to their size, connections are made, memory is touched.
	roomsWarmUp = 4

	// countRounds is the part of a measurement in which messages are counted: a few
	// thousand rooms are enough.
	countRounds = 4
)

// takes is about how long it all takes, once the nodes have started.
func (p *roomsPlay) takes() time.Duration {
	each := 2 * len(p.flags.inFlight)
	if p.scatter {
		each = len(p.flags.inFlight) + 2
	}
	return time.Duration(each+1) * p.duration * time.Duration(p.flags.rounds)
}

func (p *roomsPlay) run(ctx context.Context) (*roomsResult, error) {
	var err error
	for _, role := range []struct {
		name string
		to   **roomsProcess
	}{{"prefill", &p.prefill}, {"decode", &p.decode}} {
		if *role.to, err = startRoomsProcess(p.self, role.name); err != nil {
			return nil, err
		}
		defer (*role.to).close()
	}
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	if err := p.measure(ctx); err != nil {
		return nil, err
	}
	for _, n := range []*roomsProcess{p.decode, p.prefill} {
		if _, err := n.ask(ctx, &roomsOrder{Do: doStop}); err != nil {
			return nil, err
		}
	}
	return p.result(), nil
}

// start makes the two nodes a cluster.
func (p *roomsPlay) start(ctx context.Context) error {
	o := roomsOrder{
		Do: doStart, Role: "prefill", Cluster: fmt.Sprintf("bench-%d", os.Getpid()), Provider: p.flags.provider,
		Deployment: p.deployment, Pages: p.pages, OpenRooms: p.rooms, Scatter: p.scatter, Messages: p.flags.messages,
	}
	a, err := p.prefill.ask(ctx, &o)
	if err != nil {
		return err
	}
	o.Role, o.Join, p.echo = "decode", a.Gossip, a.Remoting
	if _, err = p.decode.ask(ctx, &o); err != nil {
		return err
	}
	for _, n := range []*roomsProcess{p.prefill, p.decode} {
		if _, err := n.ask(ctx, &roomsOrder{Do: doPair}); err != nil {
			return err
		}
	}
	return nil
}

// measure plays all rounds: every other one from the last case to the first, so that a
// machine that gets slower, or faster, favours none.
func (p *roomsPlay) measure(ctx context.Context) error {
	for _, n := range p.flags.inFlight {
		p.cases = append(p.cases, &roomsCase{inFlight: n})
	}
	order := slices.Clone(p.cases)
	for _, c := range order { // every byte is looked at here, where nothing is measured
		if _, err := p.playRooms(ctx, c, roomsOrder{Duration: p.duration / roomsWarmUp, Check: true}); err != nil {
			return err
		}
		if _, err := p.playEcho(ctx, c.inFlight, p.duration/roomsWarmUp); err != nil {
			return err
		}
	}
	for round := range p.flags.rounds {
		for _, c := range order {
			if err := p.playCase(ctx, c, round == p.flags.rounds-1); err != nil {
				return err
			}
		}
		a, err := p.playEcho(ctx, 1, p.duration)
		if err != nil {
			return err
		}
		p.rtt = append(p.rtt, a.Figures.P50)
		slices.Reverse(order)
	}
	for _, c := range p.cases {
		if p.flags.messages {
			if err := p.countMessages(ctx, c); err != nil {
				return err
			}
		}
		if _, err := p.playRooms(ctx, c, roomsOrder{Check: true}); err != nil {
			return err
		}
	}
	return nil
}

// countMessages plays some rooms and counts who hears what.
func (p *roomsPlay) countMessages(ctx context.Context, c *roomsCase) error {
	r, err := p.playRooms(ctx, c, roomsOrder{Duration: p.duration / countRounds, Count: true})
	if err != nil {
		return err
	}
	for _, side := range []struct {
		name string
		a    *roomsAnswer
	}{{"decode", r.decode}, {"prefill", r.prefill}} {
		for what, n := range side.a.Messages {
			c.messages = append(c.messages, roomsMessages{side.name, what, float64(n) / float64(r.decode.Rooms)})
		}
	}
	slices.SortFunc(c.messages, roomsMessages.compare)
	return nil
}
