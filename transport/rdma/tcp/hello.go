package tcp

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"

	"kvferry/transport/rdma"
)

// A data connection opens with a hello of the dialer, and goes on with the welcome
// of the listener once its own side has called Connect. Little endian:
//
//	magic u32, version u16, stripe u16, stripes u16, from u16, to u16, reserved u16,
//	number u64, low u64, high u64, then the names: from bytes, to bytes
//
// A connection with anything else is closed without another byte being read.
const (
	helloMagic   = 0x4859524b // "KRYH"
	welcomeMagic = 0x5759524b // "KRYW"
	version      = 2

	helloBytes   = 40
	welcomeBytes = 8
)

// hello is how a data connection says what it belongs to.
type hello struct {
	from, to        string // names of the dialer and the listener
	generation      rdma.Generation
	stripe, stripes uint16
}

func (h *hello) encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, helloBytes+len(h.from)+len(h.to))
	b = le.AppendUint32(b, helloMagic)
	for _, v := range []uint16{version, h.stripe, h.stripes, uint16(len(h.from)), uint16(len(h.to)), 0} {
		b = le.AppendUint16(b, v)
	}
	for _, v := range []uint64{h.generation.Number, h.generation.Low, h.generation.High} {
		b = le.AppendUint64(b, v)
	}
	b = append(b, h.from...)
	return append(b, h.to...)
}

// readHello reads one, and not a byte more.
func readHello(r io.Reader) (h hello, err error) {
	var b [helloBytes]byte
	if _, err = io.ReadFull(r, b[:]); err != nil {
		return h, err
	}
	le := binary.LittleEndian
	if m := le.Uint32(b[0:]); m != helloMagic {
		return h, fmt.Errorf("hello begins with %#x, want %#x", m, uint32(helloMagic))
	}
	if v := le.Uint16(b[4:]); v != version {
		return h, fmt.Errorf("hello has version %d, want %d", v, version)
	}
	h.stripe, h.stripes = le.Uint16(b[6:]), le.Uint16(b[8:])
	from, to := int(le.Uint16(b[10:])), int(le.Uint16(b[12:]))
	h.generation = rdma.Generation{Number: le.Uint64(b[16:]), Low: le.Uint64(b[24:]), High: le.Uint64(b[32:])}
	switch {
	case h.stripes == 0 || h.stripes > connectionsMax:
		return h, fmt.Errorf("hello says %d stripes, want 1 to %d", h.stripes, connectionsMax)
	case h.stripe >= h.stripes:
		return h, fmt.Errorf("hello says stripe %d, want below %d", h.stripe, h.stripes)
	case from > nameMax || to > nameMax:
		return h, fmt.Errorf("hello has names of %d and %d bytes, want at most %d", from, to, nameMax)
	case le.Uint16(b[14:]) != 0:
		return h, fmt.Errorf("hello has %d in its reserved field, want 0", le.Uint16(b[14:]))
	}
	names := make([]byte, from+to)
	if _, err = io.ReadFull(r, names); err != nil {
		return h, err
	}
	h.from, h.to = string(names[:from]), string(names[from:])
	return h, nil
}

func writeWelcome(c net.Conn) error {
	var b [welcomeBytes]byte
	binary.LittleEndian.PutUint32(b[0:], welcomeMagic)
	binary.LittleEndian.PutUint16(b[4:], version)
	_, err := c.Write(b[:])
	return err
}

func readWelcome(c net.Conn) error {
	var b [welcomeBytes]byte
	if _, err := io.ReadFull(c, b[:]); err != nil {
		return fmt.Errorf("the peer closed the connection, or never answered it: %w", err)
	}
	if m, v := binary.LittleEndian.Uint32(b[0:]), binary.LittleEndian.Uint16(b[4:]); m != welcomeMagic || v != version {
		return fmt.Errorf("welcome is %#x version %d, want %#x version %d", m, v, uint32(welcomeMagic), version)
	}
	return nil
}
