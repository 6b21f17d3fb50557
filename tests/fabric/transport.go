package fabric

import (
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Transport carries one node's gossip over a Net. It never blocks who sends.
type Transport struct {
	net     *Net
	host    string
	port    int
	packets chan *memberlist.Packet
	streams chan net.Conn

	mu   sync.Mutex
	down bool
}

var _ memberlist.Transport = (*Transport)(nil)

// Transport makes the gossip transport of the node at ip:port, in place of one
// that crashed or was shut down there.
func (n *Net) Transport(ip string, port int) *Transport {
	t := &Transport{
		net: n, host: ip, port: port,
		packets: make(chan *memberlist.Packet, 1024),
		streams: make(chan net.Conn, 64),
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.transports[t.Address()] != nil {
		panic("fabric: a transport is at " + t.Address() + " already")
	}
	n.transports[t.Address()] = t
	return t
}

// Address is ip:port.
func (t *Transport) Address() string { return net.JoinHostPort(t.host, strconv.Itoa(t.port)) }

// FinalAdvertiseAddr is the address that the transport was made with.
func (t *Transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	ip := net.ParseIP(t.host)
	if ip == nil {
		return nil, 0, fmt.Errorf("fabric: host %q is no IP address", t.host)
	}
	if four := ip.To4(); four != nil {
		ip = four
	}
	return ip, t.port, nil
}

// WriteTo sends a packet, which may get lost.
func (t *Transport) WriteTo(b []byte, to string) (time.Time, error) {
	now := time.Now()
	n := t.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.transports[t.Address()] != t || !n.passesLocked(gossipOnly, t.host, hostOf(to)) || n.chanceLocked(n.faults.PacketLoss) {
		return now, nil
	}
	p := &memberlist.Packet{Buf: append([]byte(nil), b...), From: address(t.Address())}
	time.AfterFunc(n.delayLocked(), func() {
		n.mu.Lock()
		d := n.transports[to]
		n.mu.Unlock()
		if d != nil {
			d.receive(p)
		}
	})
	return now, nil
}

func (t *Transport) receive(p *memberlist.Packet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.down {
		return
	}
	p.Timestamp = time.Now()
	select {
	case t.packets <- p:
	default: // a full socket buffer
	}
}

// PacketCh is what arrives.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh is who connects.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// DialTimeout connects. A host that is cut off does not answer until the timeout.
func (t *Transport) DialTimeout(to string, timeout time.Duration) (net.Conn, error) {
	n := t.net
	n.mu.Lock()
	reach := n.passesLocked(gossipOnly, t.host, hostOf(to)) && n.passesLocked(gossipOnly, hostOf(to), t.host)
	delay := n.delayLocked()
	n.mu.Unlock()
	if !reach {
		time.Sleep(timeout)
		return nil, fmt.Errorf("fabric: dial %s: timeout", to)
	}
	time.Sleep(delay)
	n.mu.Lock()
	defer n.mu.Unlock()
	d := n.transports[to]
	if d == nil || n.transports[t.Address()] != t {
		return nil, fmt.Errorf("fabric: dial %s: connection refused", to)
	}
	near, far := net.Pipe()
	s := &stream{Conn: near, other: far, net: n, between: route{t.host, d.host}}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return nil, fmt.Errorf("fabric: dial %s: connection refused", to)
	}
	select {
	case d.streams <- far:
	default:
		return nil, fmt.Errorf("fabric: dial %s: backlog full", to)
	}
	n.streams[s] = struct{}{}
	return s, nil
}

// Shutdown frees the address. Packets under way to it are lost.
func (t *Transport) Shutdown() error {
	t.net.mu.Lock()
	if t.net.transports[t.Address()] == t {
		delete(t.net.transports, t.Address())
	}
	t.net.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.down = true
	for {
		select {
		case c := <-t.streams:
			_ = c.Close()
		default:
			return nil
		}
	}
}

// stream is the dialling end of a connection.
type stream struct {
	net.Conn
	other   net.Conn
	net     *Net
	between route
}

// Close ends the stream.
func (s *stream) Close() error {
	s.net.mu.Lock()
	delete(s.net.streams, s)
	s.net.mu.Unlock()
	return s.Conn.Close()
}

func (n *Net) breakLocked(s *stream) {
	delete(n.streams, s)
	_ = s.Conn.Close()
	_ = s.other.Close()
}

type address string

// Network names the fabric.
func (address) Network() string { return "fabric" }

// String is ip:port.
func (a address) String() string { return string(a) }
