package transfer

import (
	"slices"

	"kvferry/messages"
	"kvferry/transport/rdma"
)

// drain closes the grants of a room that has ended.
func (r *Receiver) drain() {
	r.move(ReceiverDraining)
	r.fenceBy.set(r.now.Add(r.limits.Drain))
	for _, w := range r.writers {
		if !w.named {
			continue
		}
		if w.state == grantLive {
			r.revoke(w)
		}
		r.closeQuiet(w)
		r.fenceLost(w)
	}
}

// fenceLost fences a grant that a revoke left open and whose writer is gone: it
// will not say quiet.
func (r *Receiver) fenceLost(w *writer) {
	if r.state == ReceiverDraining && w.lost && w.state == grantOpen {
		r.emit(Fence{Peer: w.engine})
	}
}

// release gives the pages back when every grant is closed.
func (r *Receiver) release() {
	for _, w := range r.writers {
		if w.named && w.state != grantClosed {
			return
		}
	}
	r.fenceBy.clear()
	r.free()
	r.tell()
}

func (r *Receiver) free() {
	if !r.released {
		r.released = true
		r.emit(ReleasePages{})
	}
}

// close ends the machine when everything is told.
func (r *Receiver) close() {
	if r.outcome == nil || len(r.box.entries) > 0 || r.waitBy.isSet() {
		return
	}
	r.lingerBy.clear()
	r.wordBy.clear()
	r.move(ReceiverClosed)
	r.emit(Closed{})
}

func (r *Receiver) onRevoked(ev Revoked) {
	w := r.writerBy(ev.Grant)
	late := w != nil && w.state == grantOpen && ev.Closed // what had kept it open has ended
	if w == nil || w.state != grantRevoking && !late {
		return
	}
	if ev.Closed {
		w.state, w.stuck = grantClosed, ""
		return
	}
	w.state = grantOpen
	r.closeQuiet(w)
	r.fenceLost(w)
}

// onQuiet: a writer has nothing on the way but what the listed generations may
// still carry.
func (r *Receiver) onQuiet(w *writer, q *messages.Quiet) {
	list, bad := generations("unknown", q.GetUnknown(), &r.limits)
	if bad != nil {
		r.misfit(w.engine, bad)
		return
	}
	if w.named && !w.quiet {
		w.quiet, w.unknown = true, list
		if r.state == ReceiverDraining {
			r.closeQuiet(w)
		}
	}
	r.send(w.engine, &messages.QuietAck{})
}

// closeQuiet closes a grant whose revoke left it open, if its writer is quiet and
// every generation that may still carry something is fenced here. It fences those
// that are not: nothing else can close the grant.
func (r *Receiver) closeQuiet(w *writer) {
	if r.state != ReceiverDraining || w.state != grantOpen || !w.quiet {
		return
	}
	closed := true
	for _, g := range w.unknown {
		if !r.fencedHere(w, g) {
			closed = false
			r.emit(Fence{Peer: w.engine, Generation: g})
		}
	}
	if closed {
		w.state = grantClosed
	}
}

// fencedHere reports whether a generation is fenced with this grant closed.
func (r *Receiver) fencedHere(w *writer, g rdma.Generation) bool {
	return slices.Contains(w.fenced, g) || w.stuck == "" && g.Number < r.fencedBelow[w.engine]
}

// onFenced takes a fence, by whomever. What it could not close stays the room's.
func (r *Receiver) onFenced(ev Fenced) {
	for _, w := range r.writers {
		if !w.named || !slices.Contains(ev.Engines, w.engine) {
			continue
		}
		open := slices.IndexFunc(ev.Open, func(o rdma.OpenGrant) bool { return o.Grant == w.grant })
		if open >= 0 {
			r.quarantine(w, ev.Open[open].Reason)
			continue
		}
		w.stuck = ""
		w.fenced = addGeneration(w.fenced, ev.Generation)
		if w.state == grantOpen && r.state == ReceiverDraining {
			w.state = grantClosed
		}
	}
}

// quarantine keeps the pages of a grant that a fence could not close, and says
// so once for each reason.
func (r *Receiver) quarantine(w *writer, reason string) {
	if reason == "" {
		reason = "the fence could not close the grant"
	}
	if r.state == ReceiverDraining && w.state != grantClosed && w.stuck != reason {
		r.emit(Quarantine{Grants: []rdma.GrantID{w.grant}, Reason: reason})
	}
	w.stuck = reason
}

// fenceOpen fences what a revoke left open, once for each node, and comes again
// for what a fence could not close.
func (r *Receiver) fenceOpen() {
	r.fenceBy.set(r.now.Add(r.limits.Refence))
	var nodes []messages.Node
	for _, w := range r.writers {
		if !w.named || w.state == grantClosed || w.state == grantInstalling {
			continue
		}
		m, _ := r.pairing.Member(true, w.engine.Rank)
		if !slices.Contains(nodes, m.Node) {
			nodes = append(nodes, m.Node)
			r.emit(Fence{Peer: w.engine})
		}
	}
}
