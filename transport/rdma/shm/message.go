package shm

import (
	"encoding/binary"
	"errors"
	"fmt"

	"kvferry/transport/rdma"
)

// A connection is a Unix socket that keeps messages apart. The dialer says hello;
// the listener welcomes it, once its own side has called Connect, and hands over its
// table and its board; the dialer attaches with its own. Then each side hands over
// regions before it installs the first grant that names them, and says when one is
// gone. Little endian, each message begins with
//
//	magic u32, version u16, kind u16
//
// A connection with anything else is closed, and what it handed over with it.
const (
	messageMagic = 0x4d485346 // "FSHM"
	version      = 1

	headBytes   = 8
	helloBytes  = headBytes + 28 // number, low, high u64, from, to u16: the lengths of the names that follow
	regionBytes = 16             // id, bytes u64
	goneBytes   = headBytes + 8  // id u64
)

type kind uint16

const (
	kindHello   kind = iota + 1
	kindWelcome      // with two descriptors: table, board
	kindAttach       // the same
	kindRegions      // with a descriptor for each region
	kindGone
)

func newMessage(k kind) []byte {
	le := binary.LittleEndian
	return le.AppendUint16(le.AppendUint16(le.AppendUint32(nil, messageMagic), version), uint16(k))
}

var errTruncated = errors.New("the message is too short")

// parseMessage returns what follows the head.
func parseMessage(b []byte) (kind, []byte, error) {
	le := binary.LittleEndian
	if len(b) < headBytes {
		return 0, nil, errTruncated
	}
	if m, v := le.Uint32(b), le.Uint16(b[4:]); m != messageMagic || v != version {
		return 0, nil, fmt.Errorf("message begins with %#x version %d, want %#x version %d", m, v, uint32(messageMagic), version)
	}
	return kind(le.Uint16(b[6:])), b[headBytes:], nil
}

// hello is how a connection says what it belongs to.
type hello struct {
	from, to   string // names of the dialer and the listener
	generation rdma.Generation
}

func (h *hello) encode() []byte {
	le := binary.LittleEndian
	b := newMessage(kindHello)
	for _, v := range []uint64{h.generation.Number, h.generation.Low, h.generation.High} {
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint16(b, uint16(len(h.from)))
	b = le.AppendUint16(b, uint16(len(h.to)))
	return append(append(b, h.from...), h.to...)
}

func parseHello(b []byte) (h hello, err error) {
	k, b, err := parseMessage(b)
	le := binary.LittleEndian
	switch {
	case err != nil:
		return h, err
	case k != kindHello:
		return h, fmt.Errorf("message of kind %d, want hello", k)
	case len(b) < helloBytes-headBytes:
		return h, errTruncated
	}
	h.generation = rdma.Generation{Number: le.Uint64(b), Low: le.Uint64(b[8:]), High: le.Uint64(b[16:])}
	from, to, names := int(le.Uint16(b[24:])), int(le.Uint16(b[26:])), b[28:]
	if from > nameMax || to > nameMax || len(names) != from+to {
		return h, fmt.Errorf("hello has names of %d and %d bytes in %d", from, to, len(names))
	}
	h.from, h.to = string(names[:from]), string(names[from:])
	return h, nil
}

// handed is a region that is handed over.
type handed struct {
	id    rdma.RegionID
	bytes uint64
}

func encodeRegions(rs []handed) []byte {
	le := binary.LittleEndian
	b := newMessage(kindRegions)
	for _, r := range rs {
		b = le.AppendUint64(le.AppendUint64(b, uint64(r.id)), r.bytes)
	}
	return b
}

func parseRegions(b []byte) ([]handed, error) {
	if len(b) == 0 || len(b)%regionBytes != 0 {
		return nil, fmt.Errorf("message of %d bytes of regions, want a multiple of %d", len(b), regionBytes)
	}
	le := binary.LittleEndian
	rs := make([]handed, 0, len(b)/regionBytes)
	for ; len(b) > 0; b = b[regionBytes:] {
		r := handed{rdma.RegionID(le.Uint64(b)), le.Uint64(b[8:])}
		if r.id == 0 || r.bytes == 0 || r.bytes > 1<<47 {
			return nil, fmt.Errorf("region %d of %d bytes", r.id, r.bytes)
		}
		rs = append(rs, r)
	}
	return rs, nil
}

func encodeGone(id rdma.RegionID) []byte {
	return binary.LittleEndian.AppendUint64(newMessage(kindGone), uint64(id))
}

func parseGone(b []byte) (rdma.RegionID, error) {
	if len(b) != goneBytes-headBytes {
		return 0, errTruncated
	}
	return rdma.RegionID(binary.LittleEndian.Uint64(b)), nil
}
