package verbs

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

// card is a port that this side uses, open.
type card struct {
	// Fixed by Listen.
	provider *Provider
	index    int
	device   string
	port     int
	nic      nic
	limits   Limits
	ethernet bool
	gone     chan struct{} // closed when nothing listens to its events any more

	// Guarded by provider.mu.
	choice Choice
	down   string // why it carries nothing now; "" when it does
	dead   bool   // for good: the device has failed
}

func (c *card) name() string { return fmt.Sprintf("%s:%d", c.device, c.port) }

// openCards opens the ports that Choose takes.
func (p *Provider) openCards() error {
	devices, err := Devices(p.config.Sysfs)
	if err != nil {
		return err
	}
	chosen, passed, err := Choose(devices, p.config.Devices)
	if err != nil {
		return fmt.Errorf("verbs: %w", err)
	}
	for _, x := range passed {
		p.config.Log(Debug, fmt.Sprintf("%s is not used: %s", x.Name, x.Why))
	}
	switch {
	case len(chosen) == 0 && len(passed) == 0:
		return ErrNoDevice
	case len(chosen) == 0:
		return fmt.Errorf("verbs: no port can be used: %s: %s", passed[0].Name, passed[0].Why)
	case len(chosen) > cardsMax:
		return fmt.Errorf("verbs: %d ports are active, want at most %d: name those to use", len(chosen), cardsMax)
	}
	if p.fabric == nil {
		if p.fabric, err = openFabric(); err != nil {
			return err
		}
	}
	for i, x := range chosen {
		n, err := p.fabric.open(x.Device.Name, x.Port.Number)
		if err != nil {
			return err
		}
		c := &card{
			provider: p, index: i, device: x.Device.Name, port: x.Port.Number, nic: n, limits: n.limits(),
			ethernet: x.Port.Link == Ethernet, choice: x, gone: make(chan struct{}),
		}
		p.cards = append(p.cards, c)
		p.config.Log(Info, fmt.Sprintf("%s is used, MTU %d: %s", c.name(), c.limits.MTU, x.Why))
		if c.limits.MTU < 1024 {
			p.config.Log(Warn, fmt.Sprintf("%s has an MTU of %d: its interface's is too small for one of 1024 or more", c.name(), c.limits.MTU))
		}
		go c.listen()
	}
	return nil
}

// rails describes the cards to peers.
func (p *Provider) rails() (rails []*control.Rail) {
	for _, c := range p.cards {
		rails = append(rails, &control.Rail{
			Name: c.name(), Link: uint32(c.choice.Port.Link), Type: uint32(c.choice.GID.Type), Gid: slices.Clone(c.choice.GID.Addr[:]),
		})
	}
	return rails
}

// listen takes what the device tells, until it is closed.
func (c *card) listen() {
	defer close(c.gone)
	for {
		ev, err := c.nic.next()
		if err != nil {
			c.unheard(err)
			return
		}
		c.on(ev)
	}
}

// unheard: nothing is heard of the device any more. That is as it should be when it is
// being closed.
func (c *card) unheard(err error) {
	p := c.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed && p.listener != nil {
		p.config.Log(Warn, fmt.Sprintf("%s: its events cannot be read any more: what ports and queue pairs tell is not heard: %v", c.name(), err))
	}
}

// on acts on an event of the device. Of a queue that has failed, a device or a port no
// completion may ever come: what is outstanding there ends by this.
func (c *card) on(ev deviceEvent) {
	why := fmt.Errorf("verbs: %s: %s", c.name(), ev.text)
	ours := ev.port == 0 || ev.port == c.port
	var choice *Choice
	var lost error
	if ev.kind == eventPort && ours {
		choice, lost = c.look()
	}
	p := c.provider
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case ev.kind == eventQueue:
		c.strikeLocked(why, func(st *stripe) bool { return st.queue.number() == ev.queue })
	case ev.kind == eventDevice:
		c.down, c.dead = ev.text, true
		c.strikeLocked(why, func(*stripe) bool { return true })
	case ev.kind == eventPortDown && ours:
		c.down = ev.text
		c.strikeLocked(why, func(*stripe) bool { return true })
	case ev.kind == eventPort && ours && lost != nil:
		if c.down == lost.Error() {
			c.lookLaterLocked(ev)
			return // it was told
		}
		c.down = lost.Error()
		c.lookLaterLocked(ev)
		c.strikeLocked(fmt.Errorf("%w: %w", why, lost), func(*stripe) bool { return true })
	case ev.kind == eventPort && ours && !c.dead:
		old := c.choice.GID
		c.down, c.choice = "", *choice
		if old.Index != choice.GID.Index || old.Addr != choice.GID.Addr {
			p.config.Log(Info, fmt.Sprintf("%s has another address: %s", c.name(), choice.Why))
		}
		c.strikeLocked(fmt.Errorf("%w: its address %s is not what it was", why, old), func(st *stripe) bool {
			return st.gid.Index != choice.GID.Index || st.gid.Addr != choice.GID.Addr
		})
	}
	if ev.kind != eventOther && ours {
		p.config.Log(Warn, why.Error())
	}
}

// lookLaterLocked looks at a port again that an event calls active and the kernel's files
// do not, yet: another event may not come.
func (c *card) lookLaterLocked(ev deviceEvent) {
	p := c.provider
	if p.closed {
		return
	}
	p.running.Go(func() {
		select {
		case <-time.After(lookAgain):
			c.on(ev)
		case <-p.stop.Done():
		}
	})
}

// look chooses the address of the port anew.
func (c *card) look() (*Choice, error) {
	devices, err := Devices(c.provider.config.Sysfs)
	if err != nil {
		return nil, err
	}
	pick := Pick{Device: c.device, Port: c.port, GID: -1}
	for _, x := range c.provider.config.Devices {
		if x.Device == c.device && (x.Port == 0 || x.Port == c.port) {
			pick.GID = x.GID
		}
	}
	chosen, _, err := Choose(devices, []Pick{pick})
	if err != nil {
		return nil, err
	}
	return &chosen[0], nil
}

// strikeLocked loses the stripes of a card that are such.
func (c *card) strikeLocked(why error, such func(*stripe) bool) {
	for _, s := range c.provider.sessions { // each loses its own
		for _, st := range s.stripes {
			if st.card == c && such(st) {
				st.strikeLocked(why)
			}
		}
	}
}

// nearest is the cards that are nearest to memory, as a set.
func (p *Provider) nearest(m *rdma.Memory) (uint64, error) {
	n := m.Near()
	set := uint64(0)
	if len(n.Devices) > 0 {
		for _, name := range n.Devices {
			found := false
			for _, c := range p.cards {
				if name == c.device || name == c.name() {
					set |= 1 << c.index
					found = true
				}
			}
			if !found {
				var have []string
				for _, c := range p.cards {
					have = append(have, c.name())
				}
				return 0, fmt.Errorf("verbs: memory %q is to be near %q, which is not used here; used are %s", m.Name(), name, strings.Join(have, ", "))
			}
		}
		return set, nil
	}
	if n.PCI == "" && n.NUMA == nil {
		return p.allCards(), nil
	}
	place := Place{NUMA: -1}
	if n.PCI != "" {
		place.Path, place.NUMA = PCIPath(p.config.Sysfs, n.PCI), PCINode(p.config.Sysfs, n.PCI)
		if place.Path == "" {
			return 0, fmt.Errorf("verbs: memory %q is to be near %q, which is not the address of a PCI device here", m.Name(), n.PCI)
		}
	}
	if n.NUMA != nil {
		place.NUMA = *n.NUMA
	}
	choices := make([]Choice, len(p.cards))
	p.mu.Lock()
	for i, c := range p.cards {
		choices[i] = c.choice
	}
	p.mu.Unlock()
	near, why := Near(choices, place)
	var names []string
	for _, x := range near {
		names = append(names, x.Name())
		for _, c := range p.cards {
			if c.name() == x.Name() {
				set |= 1 << c.index
			}
		}
	}
	p.config.Log(Info, fmt.Sprintf("memory %q uses %s: %s", m.Name(), strings.Join(names, ", "), why))
	return set, nil
}

// allCards is the set of all.
func (p *Provider) allCards() uint64 { return 1<<len(p.cards) - 1 }

// cardsMax is what a set of cards holds, with one bit over.
const cardsMax = 63
