package cluster

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
)

// lostMax bounds how many dead members' addresses are remembered.
const lostMax = 1024

// joinsMax is how many addresses are tried at once.
const joinsMax = 8

// apply takes one note into the view, and says what is to be told.
func (g *Gossip) apply(n note) []Event {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch n.kind {
	case noteAlive:
		return g.applyAliveLocked(n)
	case noteGone:
		return g.applyGoneLocked(n)
	case noteGoodbye:
		if _, known := g.mu.alive[n.name]; known {
			g.mu.left[n.name] = struct{}{}
		}
		return nil
	}
	panic(fmt.Sprintf("cluster: unknown note %d", n.kind))
}

func (g *Gossip) applyAliveLocked(n note) []Event {
	g.mu.alive[n.name] = n.gossip
	delete(g.mu.lost, n.gossip)
	delete(g.mu.left, n.name)
	m, err := g.admit(n)
	if err != nil {
		g.log.Warn("not a member of this cluster", zap.String("gossip name", n.name),
			zap.String("gossip", n.gossip), zap.Error(err))
		return nil
	}
	events := g.stepLocked(Alive{m})
	if slices.Contains(g.mu.view.Held(), m) {
		g.log.Warn("held back: it clashes with who is there, until gossip calls one of them dead",
			zap.Stringer("member", m), zap.String("actors", m.Address), zap.String("gossip", m.Gossip),
			zap.Stringers("with", g.mu.view.Against(m)))
	}
	return events
}

func (g *Gossip) applyGoneLocked(n note) []Event {
	delete(g.mu.alive, n.name)
	reason := Dead
	if _, said := g.mu.left[n.name]; said {
		delete(g.mu.left, n.name)
		reason = Left
	} else if len(g.mu.lost) < lostMax {
		g.mu.lost[n.gossip] = time.Now()
	}
	m, err := g.admit(n)
	if err != nil {
		return nil // never was a member, and that was said
	}
	return g.stepLocked(Gone{m.Name, m.Incarnation, reason})
}

func (g *Gossip) stepLocked(c Change) []Event {
	next, events := g.mu.view.Step(c)
	g.mu.view = next
	for _, event := range events {
		switch e := event.(type) {
		case Up:
			g.log.Info("member up", zap.Stringer("member", e.Member),
				zap.String("actors", e.Member.Address), zap.String("gossip", e.Member.Gossip))
		case Down:
			g.log.Info("member down", zap.Stringer("member", e.Member), zap.Stringer("reason", e.Reason))
		}
	}
	return events
}

// admit is the member that a note is about, or why it is none of this cluster.
func (g *Gossip) admit(n note) (Member, error) {
	m, err := parseMeta(n.meta)
	if err != nil {
		return Member{}, err
	}
	m.Gossip = n.gossip
	switch {
	case gossipName(m) != n.name:
		return Member{}, fmt.Errorf("gossip name: got %q, want %q", n.name, gossipName(m))
	case m.Label != g.self.Label:
		return Member{}, fmt.Errorf("label: got %q, want %q", m.Label, g.self.Label)
	case !m.Speaks(g.self):
		return Member{}, fmt.Errorf("protocol versions: got %d to %d, want one of %d to %d",
			m.VersionMin, m.VersionMax, g.self.VersionMin, g.self.VersionMax)
	}
	return m, nil
}

// rejoin tries seeds and lost members, now and then again and again: after a
// partition that lasted, memberlist does not find the others by itself.
func (g *Gossip) rejoin(ctx context.Context) {
	tick := time.NewTicker(g.config.Timing.Rejoin)
	defer tick.Stop()
	alone := false // as logged
	for {
		targets := g.targets(ctx)
		joined := g.join(ctx, targets)
		switch now := len(targets) > 0 && joined == 0 && len(g.list.Members()) == 1; {
		case now && !alone && ctx.Err() == nil:
			g.log.Warn("no seed answers yet; trying on", zap.Strings("tried", targets),
				zap.Duration("every", g.config.Timing.Rejoin))
			alone = true
		case !now:
			alone = false
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// join tries each address, a few at once, and says how many answered.
func (g *Gossip) join(ctx context.Context, targets []string) int {
	var wg sync.WaitGroup
	var mu sync.Mutex
	joined := 0
	turns := make(chan struct{}, joinsMax)
	for _, address := range targets {
		select {
		case <-ctx.Done():
			wg.Wait()
			return joined
		case turns <- struct{}{}:
		}
		wg.Go(func() {
			defer func() { <-turns }()
			n, err := g.list.Join([]string{address})
			if err != nil {
				g.log.Debug("no answer", zap.String("gossip", address), zap.Error(err))
			}
			mu.Lock()
			joined += n
			mu.Unlock()
		})
	}
	wg.Wait()
	return joined
}

// targets is whom to join: seeds and lost members that gossip does not hold alive,
// in order.
func (g *Gossip) targets(ctx context.Context) []string {
	found := map[string]struct{}{}
	for _, seed := range g.config.Seeds {
		for _, address := range g.lookup(ctx, seed) {
			found[address] = struct{}{}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for address, since := range g.mu.lost {
		if time.Since(since) > g.config.Timing.Forget {
			delete(g.mu.lost, address)
			continue
		}
		found[address] = struct{}{}
	}
	for _, address := range g.mu.alive {
		delete(found, address)
	}
	delete(found, g.self.Gossip)
	return slices.Sorted(maps.Keys(found))
}

// lookup is a seed as ip:port, all of them where a name has several.
func (g *Gossip) lookup(ctx context.Context, seed string) []string {
	host, port, _ := net.SplitHostPort(seed) // checked by resolve
	if ip := net.ParseIP(host); ip != nil {
		return []string{net.JoinHostPort(ip.String(), port)}
	}
	addresses, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		g.log.Debug("seed has no address", zap.String("seed", seed), zap.Error(err))
		return nil
	}
	all := make([]string, len(addresses))
	for i, a := range addresses {
		all[i] = net.JoinHostPort(a.Unmap().String(), port)
	}
	return all
}
