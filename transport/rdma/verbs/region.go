package verbs

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"google.golang.org/protobuf/proto"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

// region is registered memory of this side: with every card, in pieces of equal
// length. It does not change until it is deregistered.
type region struct {
	id    rdma.RegionID
	addr  uint64
	bytes uint64
	piece uint64
	near  uint64 // set of cards
	keys  [][]registration
}

// pieces is how many registrations cover bytes.
func pieces(bytes, piece uint64) int { return int((bytes + piece - 1) / piece) }

// registerAll registers memory with every card, the cards at once: each pins pages.
func (p *Provider) registerAll(m *rdma.Memory) (*region, error) {
	near, err := p.nearest(m)
	if err != nil {
		return nil, err
	}
	r := &region{bytes: m.Len(), piece: p.config.RegionBytes, near: near, keys: make([][]registration, len(p.cards))}
	for _, c := range p.cards {
		if most := c.limits.MaxMR &^ (regionBytesMin - 1); most > 0 {
			r.piece = min(r.piece, most)
		}
	}
	w := window{dmabuf: -1}
	if d := m.Device(); d != nil {
		w.dmabuf, w.offset, w.addr = int(d.File.Fd()), d.Offset, d.Addr
	} else {
		w.addr = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.Bytes()))))
	}
	r.addr = w.addr
	n := pieces(r.bytes, r.piece)
	errs := make([]error, len(p.cards))
	var all sync.WaitGroup
	for i, c := range p.cards {
		if c.limits.MaxMRs > 0 && n > c.limits.MaxMRs {
			errs[i] = fmt.Errorf("verbs: register %d bytes with %s: it takes %d registrations of %d bytes, and the device has %d", r.bytes, c.device, n, r.piece, c.limits.MaxMRs)
			continue
		}
		all.Go(func() {
			for k := range n {
				part := w
				at := uint64(k) * r.piece
				part.addr, part.bytes = w.addr+at, min(r.piece, r.bytes-at)
				if w.dmabuf >= 0 {
					part.offset += at
				}
				x, err := c.nic.register(part, access{remote: true, relaxed: !p.config.StrictOrdering})
				if err != nil {
					var failed *MemoryError
					if errors.As(err, &failed) {
						failed.Bytes = r.bytes // that is what the caller has to make room for
					}
					errs[i] = err
					return
				}
				r.keys[i] = append(r.keys[i], x)
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		_ = r.deregister()
		return nil, err
	}
	if n := proto.Size(r.wire()); n > frameMost-frameSpare {
		_ = r.deregister()
		return nil, fmt.Errorf("verbs: register %d bytes: %d keys take a message of %d bytes, want at most %d: larger RegionBytes, or fewer ports", r.bytes, len(r.keys)*len(r.keys[0]), n, frameMost-frameSpare)
	}
	return r, nil
}

// frameSpare is what a frame has around a message, and an id that is not known yet.
const frameSpare = 64

func (r *region) deregister() error {
	var errs []error
	for _, card := range r.keys {
		for _, x := range card {
			errs = append(errs, x.deregister())
		}
	}
	return errors.Join(errs...)
}

// local is the key of a card for the byte at offset, and the bytes from there to the
// end of the registration.
func (r *region) local(card int, offset uint64) (key uint32, rest uint64) {
	k := offset / r.piece
	key, _ = r.keys[card][k].keys()
	return key, min((k+1)*r.piece, r.bytes) - offset
}

// wire describes the region to a peer.
func (r *region) wire() *control.Region {
	w := &control.Region{Id: uint64(r.id), Address: r.addr, Bytes: r.bytes, Piece: r.piece}
	for i, card := range r.keys {
		keys := &control.Keys{}
		for _, x := range card {
			_, remote := x.keys()
			keys.Keys = append(keys.Keys, remote)
		}
		w.Rails = append(w.Rails, keys)
		if r.near&(1<<i) != 0 {
			w.Near = append(w.Near, uint32(i))
		}
	}
	return w
}

// remoteRegion is memory of the peer.
type remoteRegion struct {
	addr, bytes, piece uint64
	near               uint64 // set of the peer's rails
	keys               [][]uint32
}

// readRegion checks what a peer tells of its memory: rails is how many it has.
func readRegion(w *control.Region, rails int) (*remoteRegion, error) {
	r := &remoteRegion{addr: w.GetAddress(), bytes: w.GetBytes(), piece: w.GetPiece()}
	switch {
	case w.GetId() == 0 || r.bytes == 0 || r.piece == 0 || r.addr+r.bytes < r.addr || r.bytes > 1<<62 || r.piece > 1<<62:
		return nil, fmt.Errorf("region %d has %d bytes at %#x in pieces of %d", w.GetId(), r.bytes, r.addr, r.piece)
	case len(w.GetRails()) != rails:
		return nil, fmt.Errorf("region %d has keys of %d rails, want %d", w.GetId(), len(w.GetRails()), rails)
	}
	want := (r.bytes + r.piece - 1) / r.piece
	for i, k := range w.GetRails() {
		if uint64(len(k.GetKeys())) != want {
			return nil, fmt.Errorf("region %d has %d keys of rail %d, want %d", w.GetId(), len(k.GetKeys()), i, want)
		}
		r.keys = append(r.keys, k.GetKeys())
	}
	for _, i := range w.GetNear() {
		if int(i) >= rails {
			return nil, fmt.Errorf("region %d is near rail %d, want below %d", w.GetId(), i, rails)
		}
		r.near |= 1 << i
	}
	if r.near == 0 {
		r.near = 1<<rails - 1
	}
	return r, nil
}

// remote is the key of a rail for the byte at offset, and the bytes from there to the
// end of the registration.
func (r *remoteRegion) remote(rail int, offset uint64) (key uint32, rest uint64) {
	k := offset / r.piece
	return r.keys[rail][k], min((k+1)*r.piece, r.bytes) - offset
}
