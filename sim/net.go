package sim

import (
	"time"

	"kvferry/messages"
)

// plane is one of the three networks between hosts, which are cut each by itself.
type plane uint8

const (
	control plane = iota // the actors' messages
	data                 // the network card's packets
	gossip
	planes
)

func (p plane) String() string { return [...]string{"control", "data", "gossip"}[p] }

// cuts say which way between two hosts carries nothing.
type cuts [planes]map[[2]int]bool

func (w *world) isCut(p plane, from, to *host) bool {
	return w.plan.cut[p][[2]int{from.index, to.index}]
}

// setCut cuts or heals one way.
func (w *world) setCut(p plane, from, to *host, cut bool) {
	if w.plan.cut[p] == nil {
		w.plan.cut[p] = map[[2]int]bool{}
	}
	if w.plan.cut[p][[2]int{from.index, to.index}] == cut {
		return
	}
	w.plan.cut[p][[2]int{from.index, to.index}] = cut
	w.reconsider()
}

// latency is how long a message takes.
func (w *world) latency() time.Duration {
	d := 50*time.Microsecond + time.Duration(w.rng.Int64N(int64(200*time.Microsecond)))
	if !w.calm && w.chance(8) == 0 {
		d += time.Duration(w.rng.Int64N(int64(w.plan.slowest)))
	}
	return d
}

// transmit gives an envelope to the network: it may be lost, come late, or twice.
func (w *world) transmit(from *process, address string, e *messages.Envelope) {
	to := w.hostAt(address)
	if w.isCut(control, from.host, to) {
		w.covered.add(coverCutMessage)
		return
	}
	times := 1
	if !w.calm {
		switch n := w.chance(1000); {
		case n < w.plan.loss:
			w.covered.add(coverLostMessage)
			return
		case n < w.plan.loss+w.plan.twice:
			w.covered.add(coverTwice)
			times = 2
		}
	}
	arrive := func() {
		if p := w.at[address]; p != nil {
			p.do(func() { p.arrive(e) })
		}
	}
	for range times {
		w.after(w.latency(), arrive)
	}
	if !w.calm && w.plan.old > 0 && w.chance(1000) < w.plan.old {
		w.covered.add(coverOld)
		w.after(w.between(300*time.Millisecond, 6*time.Second), arrive)
	}
}

func (w *world) hostAt(address string) *host {
	for _, h := range w.hosts {
		if h.address == address {
			return h
		}
	}
	panic("sim: no host at " + address)
}
