package tcp

import (
	"errors"
	"fmt"
	"io"

	"kvferry/transport/rdma"
)

// read is the connection's reader: it places frames and settles acks.
func (c *conn) read() {
	err := c.readMessages()
	var bad *malformed
	switch {
	case errors.As(err, &bad):
		c.provider.events.Push(rdma.Stale{Peer: c.id.Peer, Reason: "tcp: malformed message"})
	case errors.Is(err, errChecksum):
		c.provider.events.Push(rdma.Stale{Peer: c.id.Peer, Reason: errChecksum.Error()})
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the peer closed the connection")
	}
	c.fail(fmt.Errorf("tcp: stripe %d: read: %w", c.stripe, err))
}

// malformed is what no honest peer sends: it costs the session.
type malformed struct{ err error }

func (m *malformed) Error() string { return "malformed message: " + m.err.Error() }
func (m *malformed) Unwrap() error { return m.err }

func (c *conn) readMessages() error {
	for {
		if _, err := io.ReadFull(c.sock, c.in.head[:]); err != nil {
			return err
		}
		h, err := parseHead(c.in.head[:])
		if err != nil {
			return &malformed{err}
		}
		if h.kind == kindAck {
			if err := c.settle(h.number, h.status); err != nil {
				return &malformed{err}
			}
			continue
		}
		if err := c.takeFrame(&h); err != nil {
			return err
		}
	}
}

// takeFrame reads a frame to its end. The grant is asked before the first byte of
// payload is placed.
func (c *conn) takeFrame(h *head) error {
	in := &c.in
	if c.received++; h.number != c.received {
		return &malformed{fmt.Errorf("frame %d, want %d", h.number, c.received)}
	}
	if cap(in.raw) < int(h.body) {
		in.raw = make([]byte, h.body)
	}
	in.raw = in.raw[:h.body]
	if _, err := io.ReadFull(c.sock, in.raw); err != nil {
		return err
	}
	if err := in.body.parse(in.raw, h.payload); err != nil {
		return &malformed{err}
	}
	if in.body.stripe != c.stripe {
		return &malformed{fmt.Errorf("frame of stripe %d on stripe %d", in.body.stripe, c.stripe)}
	}
	in.left = h.payload + trailerBytes
	in.refused = ""
	in.summed, in.sum = h.status == statusSummed, 0
	g, err := c.provider.admit(c.id.Peer, &in.body)
	if err != nil {
		in.refuse(err.Error())
	} else {
		in.place(g)
	}
	if err := c.readAll(); err != nil {
		return err
	}
	whole, sum, err := parseTrailer(in.trailer[:], in.summed)
	if err != nil {
		return &malformed{err}
	}
	if in.summed && whole && in.grant != nil && sum != in.sum {
		return fmt.Errorf("%w: frame %d of %d bytes has %#08x, its sender sent %#08x", errChecksum, h.number, h.payload, in.sum, sum)
	}
	return c.acknowledge(h.number, c.arrive(g, whole))
}

// errChecksum costs the session: what else came over the link is no better, and a
// next generation sends it again.
var errChecksum = errors.New("tcp: checksum mismatch")

// place points the payload at the memory of the grant.
func (in *incoming) place(g *grant) {
	in.grant = g
	in.made = in.made[:0]
	for i := range in.body.pieces {
		p := &in.body.pieces[i]
		to := rdma.Place{Offset: p.Offset, UnitStride: p.UnitStride, Stride: p.Stride}
		memory := g.memory[p.Region]
		for _, r := range p.Runs {
			in.made.addRows(memory, &to, p.Count, p.Bytes, uint64(r.First), uint64(r.Count), uint64(r.Step))
		}
	}
	in.made.buffer(in.trailer[:])
	in.vec = in.made
}

// arrive tells of a frame that is all in memory, while a Revoke would wait for it.
func (c *conn) arrive(g *grant, whole bool) (status uint8) {
	in := &c.in
	if in.refused == "" && whole {
		g.landing.RLock()
		defer g.landing.RUnlock()
		if !g.closed {
			c.provider.events.Push(rdma.Arrived{
				Grant: g.ID, Generation: c.id.Generation, Arrival: rdma.Arrival{Stripe: c.stripe, Count: 1}, Bytes: in.body.bytes,
			})
			return statusLanded
		}
		in.refused = errRevoked.Error()
	}
	if in.refused != "" {
		c.provider.events.Push(rdma.Stale{Peer: c.id.Peer, Reason: in.refused})
	}
	return statusRefused
}

// admit finds the grant of a frame and asks it for every row.
func (p *Provider) admit(peer string, d *body) (*grant, error) {
	p.mu.Lock()
	g := p.grants[d.grant]
	p.mu.Unlock()
	if g == nil {
		return nil, errors.New("tcp: the grant is not known")
	}
	if g.Peer != peer {
		return nil, errors.New("tcp: the grant is another peer's")
	}
	for i := range d.pieces {
		if err := g.permit.CoversRange("piece", &d.pieces[i]); err != nil {
			return nil, errOutside
		}
	}
	return g, nil
}

// errOutside does not say where: reasons are counted by their text.
var errOutside = errors.New("tcp: rows outside of the grant")
