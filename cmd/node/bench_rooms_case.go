package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"kvferry/cmd/node/bench"
)

// playCase measures a case once, and its limit.
func (p *roomsPlay) playCase(ctx context.Context, c *roomsCase, last bool) error {
	o := roomsOrder{Duration: p.duration}
	if last && p.flags.profile != "" {
		o.Profile = filepath.Join(p.flags.profile, fmt.Sprintf("rooms-%d", c.inFlight))
	}
	r, err := p.playRooms(ctx, c, o)
	if err != nil {
		return err
	}
	c.rooms = append(c.rooms, r.decode.Figures)
	c.roomCPU = append(c.roomCPU, (r.decode.CPU+r.prefill.CPU)/time.Duration(r.decode.Rooms))
	if p.scatter {
		return p.playLimit(ctx)
	}
	return p.playRemoting(ctx, c)
}

// playRemoting measures the limit of a case once.
func (p *roomsPlay) playRemoting(ctx context.Context, c *roomsCase) error {
	before, err := p.usage(ctx)
	if err != nil {
		return err
	}
	a, err := p.playEcho(ctx, c.inFlight, p.duration)
	if err != nil {
		return err
	}
	after, err := p.usage(ctx)
	c.remoting = append(c.remoting, a.Figures)
	c.requestCPU = append(c.requestCPU, (after-before)/time.Duration(a.Rooms))
	return err
}

// usage is the processor time of both nodes.
func (p *roomsPlay) usage(ctx context.Context) (time.Duration, error) {
	sum := time.Duration(0)
	for _, n := range []*roomsProcess{p.prefill, p.decode} {
		a, err := n.ask(ctx, &roomsOrder{Do: doUsage})
		if err != nil {
			return 0, err
		}
		sum += a.CPU
	}
	return sum, nil
}

// roundAnswers is what both sides say of a round.
type roundAnswers struct{ prefill, decode *roomsAnswer }

// playRooms moves rooms for a while.
func (p *roomsPlay) playRooms(ctx context.Context, c *roomsCase, o roomsOrder) (roundAnswers, error) {
	o.Do, o.First, o.Tokens, o.InFlight = doRooms, p.next, p.tokens, c.inFlight
	send, profile := o, o.Profile
	if profile != "" {
		send.Profile, o.Profile = profile+"-prefill", profile+"-decode"
	}
	p.prefill.tell(&send)
	p.decode.tell(&o)
	var r roundAnswers
	var err error
	select {
	case a := <-p.decode.answers:
		r.decode, err = p.decode.take(a)
	case a := <-p.prefill.answers: // before it was told to end
		if _, err = p.prefill.take(a); err == nil {
			err = errors.New("prefill ended its loop by itself")
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		return r, err
	}
	r.prefill, err = p.prefill.ask(ctx, &roomsOrder{Do: doUntil, Until: r.decode.Next})
	if err == nil {
		p.next = max(r.prefill.Next, r.decode.Next)
	}
	return r, err
}

func (p *roomsPlay) playEcho(ctx context.Context, inFlight int, d time.Duration) (*roomsAnswer, error) {
	return p.decode.ask(ctx, &roomsOrder{Do: doEcho, Peer: p.echo, InFlight: inFlight, Duration: d})
}

// playLimit is what the provider reaches by itself, with blocks of the same size.
func (p *roomsPlay) playLimit(ctx context.Context) error {
	got, err := bench.MeasureTransport(ctx, bench.TransportConfig{
		Config: bench.Config{
			Connections: benchConnections, Pool: p.pool, Duration: p.duration, Rounds: 1, Peer: []string{p.self, "bench", "peer"},
		},
		Provider: p.flags.provider, Blocks: []uint64{p.block}, Rows: bench.Scattered,
	})
	if err != nil {
		return fmt.Errorf("the limit: %w", err)
	}
	p.limits = append(p.limits, got[0].GBPerS)
	return nil
}
