package shm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"kvferry/transport/rdma"
)

// outbound is where this side writes in one generation: the peer's table, board and
// regions, as they are handed over.
type outbound struct {
	// Fixed by the end of the handshake.
	sock socket
	view
	board board

	// mu is held while messages are taken: by the session's reader, and by the copier
	// when a grant names a region that must be in the socket.
	mu      sync.Mutex
	buffer  [messageBytes]byte
	regions map[rdma.RegionID]*mapping
	gone    []*mapping // that the copier has to let go

	some atomic.Bool // gone is not empty
}

func newOutbound(s socket) *outbound {
	return &outbound{sock: s, regions: map[rdma.RegionID]*mapping{}}
}

// errMalformed is what no honest peer sends: it costs the session.
var errMalformed = errors.New("malformed message")

// open takes messages until the one that hands over table and board. The regions
// of the grants that are in the table come before it.
func (o *outbound) open(last kind) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		n, fds, err := o.sock.await(o.buffer[:])
		if err != nil {
			return fmt.Errorf("the peer closed the connection, or never answered it: %w", err)
		}
		k, rest, err := parseMessage(o.buffer[:n])
		switch {
		case err != nil:
		case k == last:
			err = o.openShared(rest, fds)
			closeAll(fds)
			return err
		default:
			err = o.takeLocked(k, rest, fds)
		}
		closeAll(fds)
		if err != nil {
			return fmt.Errorf("%w: %w", errMalformed, err)
		}
	}
}

func (o *outbound) openShared(rest []byte, fds []int) (err error) {
	if len(rest) != 0 || len(fds) != 2 {
		return fmt.Errorf("%w: %d bytes and %d descriptors, want 0 and 2", errMalformed, len(rest), len(fds))
	}
	if o.view, err = openView(fds[0]); err != nil {
		return &UnreachableError{NoMemory, err}
	}
	if o.board, err = openBoard(fds[1]); err != nil {
		return &UnreachableError{NoMemory, err}
	}
	return nil
}

// receive takes the messages that are in the socket.
func (o *outbound) receive() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.receiveLocked()
}

func (o *outbound) receiveLocked() error {
	for {
		n, fds, err := o.sock.take(o.buffer[:])
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		k, rest, err := parseMessage(o.buffer[:n])
		if err == nil {
			err = o.takeLocked(k, rest, fds)
		}
		closeAll(fds) // mappings do not need them
		if err != nil {
			return fmt.Errorf("%w: %w", errMalformed, err)
		}
	}
}

func (o *outbound) takeLocked(k kind, rest []byte, fds []int) error {
	switch k {
	case kindRegions:
		return o.takeRegionsLocked(rest, fds)
	case kindGone:
		id, err := parseGone(rest)
		if err != nil {
			return err
		}
		m := o.regions[id]
		if m == nil || len(fds) != 0 {
			return fmt.Errorf("region %d is gone and was not there, or comes with %d descriptors", id, len(fds))
		}
		delete(o.regions, id)
		o.gone = append(o.gone, m)
		o.some.Store(true)
		return nil
	}
	return fmt.Errorf("message of kind %d", k)
}

func (o *outbound) takeRegionsLocked(rest []byte, fds []int) error {
	rs, err := parseRegions(rest)
	if err != nil {
		return err
	}
	if len(rs) != len(fds) || len(o.regions)+len(rs) > regionsMax {
		return fmt.Errorf("%d regions more than %d, with %d descriptors", len(rs), len(o.regions), len(fds))
	}
	for i, r := range rs {
		if o.regions[r.id] != nil {
			return fmt.Errorf("region %d is handed over twice", r.id)
		}
		m, err := openShared(fds[i], r.bytes, unix.PROT_READ|unix.PROT_WRITE)
		if err != nil {
			return fmt.Errorf("region %d: %w", r.id, err)
		}
		o.regions[r.id] = m
	}
	return nil
}

// region is the memory of a region, nil when it was not handed over. A grant that is
// in the table had its regions sent before, so nothing is waited for.
func (o *outbound) region(id rdma.RegionID) (*mapping, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if m := o.regions[id]; m != nil {
		return m, nil
	}
	err := o.receiveLocked()
	return o.regions[id], err
}

// takeGone returns the mappings that are to be let go.
func (o *outbound) takeGone() []*mapping {
	if !o.some.Load() {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	gone := o.gone
	o.gone = nil
	o.some.Store(false)
	return gone
}

// release unmaps everything. Nothing copies any more.
func (o *outbound) release() {
	for _, m := range o.takeGone() {
		m.release()
	}
	for _, m := range o.regions {
		m.release()
	}
	clear(o.regions)
	for _, m := range []*mapping{o.view.mapping, o.board.mapping} {
		if m != nil {
			m.release()
		}
	}
}
