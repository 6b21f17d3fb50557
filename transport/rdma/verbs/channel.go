package verbs

import (
	"context"
	"crypto/hmac"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/verbs/control"
)

// channel carries the messages of a session. Its end is the session's: the kernel of a
// peer that dies closes it at once, long before a device gives up.
type channel struct {
	sock *net.TCPConn
	read sealer

	mu     sync.Mutex
	write  sealer
	queue  [][]byte // whole messages, oldest first
	queued int      // bytes
	failed error    // it takes nothing more
	wake   chan struct{}
}

func newChannel(sock *net.TCPConn, g rdma.Generation, dial bool) *channel {
	c := &channel{sock: sock, wake: make(chan struct{}, 1)}
	c.write, c.read = sealers(g, dial)
	return c
}

var errSlowPeer = errors.New("the peer does not read what it is told")

// tell queues a message. It never waits; an error is the end of the session.
func (c *channel) tell(f *control.Frame) error {
	m, err := proto.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if len(m) > frameMost {
		return fmt.Errorf("a message has %d bytes, want at most %d", len(m), frameMost)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != nil {
		return c.failed
	}
	if c.queued+len(m) > queuedMost {
		c.failed = errSlowPeer
		return errSlowPeer
	}
	sum := c.write.next(m)
	b := make([]byte, 0, headBytes+len(m))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m)))
	b = append(b, sum[:]...)
	c.queue = append(c.queue, append(b, m...))
	c.queued += len(m)
	select {
	case c.wake <- struct{}{}:
	default:
	}
	return nil
}

// run writes what is queued, until ctx is done and all that was queued then is written
// or the socket fails.
func (c *channel) run(ctx context.Context) error {
	for {
		c.mu.Lock()
		batch := net.Buffers(c.queue)
		c.queue, c.queued = nil, 0
		c.mu.Unlock()
		if len(batch) > 0 {
			if _, err := batch.WriteTo(c.sock); err != nil {
				return err
			}
			continue
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			c.mu.Lock()
			left := len(c.queue)
			c.mu.Unlock()
			if left == 0 {
				return nil
			}
		}
	}
}

// next reads a message.
func (c *channel) next() (*control.Frame, error) {
	var head [headBytes]byte
	if _, err := io.ReadFull(c.sock, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > frameMost {
		return nil, fmt.Errorf("a message of %d bytes, want at most %d", n, frameMost)
	}
	m := make([]byte, n)
	if _, err := io.ReadFull(c.sock, m); err != nil {
		return nil, err
	}
	if sum := c.read.next(m); !hmac.Equal(sum[:], head[4:]) {
		return nil, errors.New("the sum of a message is wrong: it is not the peer's, or was changed on its way")
	}
	f := &control.Frame{}
	if err := proto.Unmarshal(m, f); err != nil {
		return nil, err
	}
	return f, nil
}

// tune prepares a socket.
func tune(sock *net.TCPConn) error {
	if err := sock.SetNoDelay(true); err != nil {
		return err
	}
	err := sock.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: keepAlive, Interval: keepAlive, Count: keepAliveProbes})
	if err != nil {
		return err
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeoutDefault/time.Millisecond))
	})
	return errors.Join(err, failed)
}
