package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// start starts the nodes, the first before the others, which join it; gives each
// its engine; and waits until the instances are paired.
func (p *play) start(ctx context.Context) error {
	why := fmt.Errorf("the cluster did not start within %v", startWait)
	ctx, cancel := context.WithTimeoutCause(ctx, startWait, why)
	defer cancel()
	began := p.now()
	for _, note := range p.notes {
		fmt.Fprintln(p.say, "scaled:", note)
	}
	first := p.nodes[:1]
	for _, group := range [][]*demoNode{first, p.nodes[1:]} {
		for _, n := range group {
			if err := n.launch(p.launcher, first[0].address, p.hear, p.done); err != nil {
				return err
			}
		}
		if err := p.await(ctx, group, eventReady); err != nil {
			return err
		}
	}
	for _, n := range p.nodes {
		c := &driveCommand{Op: opAttach, Role: n.role, Instance: n.instanceName(), Rank: n.rank, Wait: remaining(ctx, startWait)}
		if c.Deployment, c.Pages = p.prefill, p.prefillPages; n.role == "decode" {
			c.Deployment, c.Pages = p.decode, p.decodePages
		}
		n.tell(c)
	}
	if err := p.await(ctx, p.nodes, eventAttached); err != nil {
		return err
	}
	var prefill, decode []string
	for _, n := range p.nodes {
		if name := n.instanceName(); n.role == "prefill" && !slices.Contains(prefill, name) {
			prefill = append(prefill, name)
		} else if n.role == "decode" && !slices.Contains(decode, name) {
			decode = append(decode, name)
		}
	}
	for _, n := range p.nodes {
		peers := decode
		if n.role == "decode" {
			peers = prefill
		}
		n.tell(&driveCommand{Op: opPair, Peers: peers, Wait: remaining(ctx, startWait)})
	}
	if err := p.await(ctx, p.nodes, eventPaired); err != nil {
		return err
	}
	fmt.Fprintf(p.say, "cluster: %d nodes in %.1f s:", len(p.nodes), p.now().Sub(began).Seconds())
	for _, n := range p.nodes {
		fmt.Fprintf(p.say, " %s (pid %d)", n.name, n.pid)
	}
	fmt.Fprintln(p.say)
	return nil
}

// await waits until nodes have got as far as an event of the start.
func (p *play) await(ctx context.Context, nodes []*demoNode, event string) error {
	for {
		missing := slices.IndexFunc(nodes, func(n *demoNode) bool { return n.reached != event })
		if missing < 0 {
			return nil
		}
		select {
		case h := <-p.hear:
			if h.event == nil {
				h.node.ended, h.node.endError = true, h.err
				return fmt.Errorf("start: %s", h.node.death())
			}
			switch h.event.Event {
			case eventFailed:
				return fmt.Errorf("start %s: %s", h.node.name, h.event.Error)
			case eventReady:
				h.node.address = h.event.Address
			}
			h.node.reached = h.event.Event
		case <-ctx.Done():
			return fmt.Errorf("%w: %s is not %s", context.Cause(ctx), nodes[missing].name, event)
		}
	}
}

// stop lets the nodes look at their memory a last time, and waits for their end.
func (p *play) stop() error {
	for _, n := range p.nodes {
		n.tell(&driveCommand{Op: opStop})
	}
	timer := time.NewTimer(finishWait)
	defer timer.Stop()
	for {
		missing := slices.IndexFunc(p.nodes, func(n *demoNode) bool { return !n.ended })
		if missing < 0 {
			return p.ends()
		}
		select {
		case h := <-p.hear:
			p.onLast(h)
		case <-timer.C:
			return fmt.Errorf("%s did not stop within %v", p.nodes[missing].name, finishWait)
		}
	}
}

// onLast takes an event of a node that was asked to stop.
func (p *play) onLast(h heard) {
	n := h.node
	if h.event == nil {
		n.ended, n.endError = true, h.err
		return
	}
	switch h.event.Event {
	case eventStopped:
		n.stopped = true
		if h.event.WrongBytes > 0 {
			p.result.WrongBytes += h.event.WrongBytes
			p.result.fail(0, fmt.Sprintf("%s: %d bytes were written outside of all rooms, the first: %s", n.name, h.event.WrongBytes, h.event.FirstWrong))
		}
	case eventFailed:
		n.lastWord = h.event.Error
	}
}

// ends says which nodes did not end in order.
func (p *play) ends() error {
	for _, n := range p.nodes {
		if !n.stopped || n.endError != nil {
			return fmt.Errorf("%s", n.death())
		}
	}
	return nil
}

// end reaps every process, whatever happened: they are asked by the end of their
// input, and killed after a while.
func (p *play) end() {
	if p.progress != nil {
		fmt.Fprint(p.progress, "\r\x1b[K")
	}
	alive := 0
	for _, n := range p.nodes {
		if n.process == nil {
			continue
		}
		n.close()
		if !n.ended {
			alive++
		}
	}
	grace := time.NewTimer(2 * time.Second)
	defer grace.Stop()
	for alive > 0 {
		select {
		case h := <-p.hear:
			if h.event == nil {
				h.node.ended = true
				alive--
			}
		case <-grace.C:
			for _, n := range p.nodes {
				if n.process != nil && !n.ended {
					n.process.kill() // its end is heard: nothing survives this
				}
			}
		}
	}
	close(p.done)
}
