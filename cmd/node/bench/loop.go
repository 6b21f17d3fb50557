package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// numberBytes is the number of a write: what answers a frame.
	numberBytes = 8

	// headBytes is what stands before the rows of a frame: the number, and nothing up
	// to a cache line. With 8 or 72 bytes the loop was 5 to 10 % slower than with 64,
	// 80 or 128.
	headBytes = 64
)

// loop is the sending side of the raw loop, the least that two processes do to move
// rows over TCP. Both know the layout; a frame is a head with the number of a write,
// and its rows, and the answer is the number. Nothing is checked.
type loop struct {
	layout  *layout
	memory  []byte
	streams []*stream
	usage   usage
	next    atomic.Int64 // write, without end
}

// usage is the CPU time of all processes that take part.
type usage func() (time.Duration, error)

// dialLoop connects to a serveLoop of the same layout.
func dialLoop(ctx context.Context, address string, connections int, l *layout, memory []byte, u usage) (*loop, error) {
	p := &loop{layout: l, memory: memory, usage: u}
	for range connections {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", address)
		if err == nil {
			var s *stream
			s, err = newStream(c.(*net.TCPConn))
			p.streams = append(p.streams, s)
		}
		if err != nil {
			p.close()
			return nil, fmt.Errorf("raw loop: %w", err)
		}
	}
	return p, nil
}

// close ends the connections; nothing is on its way.
func (p *loop) close() {
	for _, s := range p.streams {
		_ = s.conn.Close()
	}
}

// run moves frames over all connections at once: each takes the next.
func (p *loop) run(ctx context.Context, d time.Duration, least int) (Rate, error) {
	defer context.AfterFunc(ctx, p.close)()
	before, err := p.usage()
	if err != nil {
		return Rate{}, err
	}
	start, first := time.Now(), p.next.Load()
	more := func() (write int, ok bool) {
		if p.next.Load()-first >= int64(least) && time.Since(start) >= d {
			return 0, false
		}
		return int((p.next.Add(1) - 1) % int64(p.layout.writes)), true
	}
	var running sync.WaitGroup
	errs := make([]error, len(p.streams))
	for i, s := range p.streams {
		running.Go(func() { errs[i] = s.send(p.layout, p.memory, more) })
	}
	running.Wait()
	elapsed := time.Since(start)
	if err := errors.Join(errs...); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err() // the connections were closed for it
		}
		return Rate{}, err
	}
	after, err := p.usage()
	return Rate{Bytes: uint64(p.next.Load()-first) * p.layout.writeBytes(), Elapsed: elapsed, CPU: after - before}, err
}

// send sends frames as long as there are more, a few ahead of their answers.
func (s *stream) send(l *layout, memory []byte, more func() (int, bool)) error {
	var head [headBytes]byte
	var answer [numberBytes]byte
	waiting := 0
	await := func() error {
		waiting--
		_, err := io.ReadFull(s.conn, answer[:])
		return err
	}
	for {
		write, ok := more()
		if !ok {
			break
		}
		if waiting == loopWindow {
			if err := await(); err != nil {
				return err
			}
		}
		binary.LittleEndian.PutUint64(head[:], uint64(write))
		s.iov = append(s.iov[:0], unix.Iovec{Base: &head[0], Len: headBytes})
		s.list(l, write, memory, true)
		if err := s.write(); err != nil {
			return err
		}
		waiting++
	}
	for waiting > 0 {
		if err := await(); err != nil {
			return err
		}
	}
	return nil
}

// serveLoop is the receiving side: it takes so many connections and serves each until
// it ends. It returns when all have.
func serveLoop(listener *net.TCPListener, connections int, l *layout, memory []byte) {
	var serving sync.WaitGroup
	defer serving.Wait()
	for range connections {
		c, err := listener.AcceptTCP()
		if err != nil {
			return // the listener is closed
		}
		serving.Go(func() {
			defer c.Close()
			if s, err := newStream(c); err == nil {
				_ = s.receive(l, memory) // the sender is gone: it knows
			}
		})
	}
}

func (s *stream) receive(l *layout, memory []byte) error {
	var head [headBytes]byte
	for {
		if _, err := io.ReadFull(s.conn, head[:]); err != nil {
			return err
		}
		write := binary.LittleEndian.Uint64(head[:])
		if write >= uint64(l.writes) {
			return fmt.Errorf("raw loop: write %d, want below %d", write, l.writes)
		}
		s.iov = s.iov[:0]
		s.list(l, int(write), memory, false)
		if err := s.read(); err != nil {
			return err
		}
		if _, err := s.conn.Write(head[:numberBytes]); err != nil {
			return err
		}
	}
}
