package verbs

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"kvferry/transport/rdma"
)

// The channel of a session opens with a hello of the dialer, which the listener answers
// with one byte. Little endian:
//
//	magic u32, version u16, from u16, to u16, reserved u16, number u64, proof 16 bytes,
//	then the names: from bytes, to bytes
//
// The proof is made with the nonces of the generation, which only the two nodes know:
// they were agreed on over the actors' channel, and never go over this one. Every
// message that follows is
//
//	bytes u32, sum 16 bytes, message
//
// with a sum over the direction, the number of the message and its bytes, by a key of
// the same nonces. So whoever is not one of the two nodes can neither open a channel
// nor change, repeat or drop a message of it; he can read it, as he can the payload.
const (
	helloMagic   = 0x4856564b // "KVVH"
	helloVersion = 1
	helloBytes   = 36
	proofBytes   = 16
	headBytes    = 4 + proofBytes
)

// The answers to a hello.
const (
	answerWelcome = 1
	answerNotYet  = 2 // this side has not called Connect; dial again
	answerOver    = 3 // the generation is fenced, or is older than the present one
	answerVersion = 4 // this side speaks another version of the channel
)

var errVersion = errors.New("the peer speaks another version of the channel")

// hello is how a channel says what it belongs to.
type hello struct {
	from, to string // names of the dialer and the listener
	number   uint64
	proof    [proofBytes]byte
}

func (h *hello) encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, 0, helloBytes+len(h.from)+len(h.to))
	b = le.AppendUint32(b, helloMagic)
	for _, v := range []uint16{helloVersion, uint16(len(h.from)), uint16(len(h.to)), 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint64(b, h.number)
	b = append(b, h.proof[:]...)
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
	switch m, v := le.Uint32(b[0:]), le.Uint16(b[4:]); {
	case m != helloMagic:
		return h, fmt.Errorf("hello is %#x version %d, want %#x version %d", m, v, uint32(helloMagic), helloVersion)
	case v != helloVersion:
		return h, fmt.Errorf("%w: hello is %#x version %d, want %#x version %d", errVersion, m, v, uint32(helloMagic), helloVersion)
	}
	from, to := int(le.Uint16(b[6:])), int(le.Uint16(b[8:]))
	switch {
	case from > nameMax || to > nameMax:
		return h, fmt.Errorf("hello has names of %d and %d bytes, want at most %d", from, to, nameMax)
	case le.Uint16(b[10:]) != 0:
		return h, fmt.Errorf("hello has %d in its reserved field, want 0", le.Uint16(b[10:]))
	}
	h.number = le.Uint64(b[12:])
	copy(h.proof[:], b[20:])
	names := make([]byte, from+to)
	if _, err = io.ReadFull(r, names); err != nil {
		return h, err
	}
	h.from, h.to = string(names[:from]), string(names[from:])
	return h, nil
}

// key is the secret of a generation for one use.
func key(g rdma.Generation, use string) []byte {
	var b [24]byte
	binary.LittleEndian.PutUint64(b[0:], g.Low)
	binary.LittleEndian.PutUint64(b[8:], g.High)
	binary.LittleEndian.PutUint64(b[16:], g.Number)
	m := hmac.New(sha256.New, b[:])
	m.Write([]byte("kvferry verbs channel 1: " + use))
	return m.Sum(nil)
}

// proof is what a hello of a generation has.
func proof(g rdma.Generation, from, to string) (p [proofBytes]byte) {
	m := hmac.New(sha256.New, key(g, "hello"))
	fmt.Fprintf(m, "%d %s %s", len(from), from, to)
	copy(p[:], m.Sum(nil))
	return p
}

// sealer makes the sums of the messages of one direction, in order.
type sealer struct {
	key    []byte
	number uint64
}

// sealers are those of a generation: for what this side writes, and what it reads.
func sealers(g rdma.Generation, dial bool) (write, read sealer) {
	a, b := sealer{key: key(g, "from dialer")}, sealer{key: key(g, "from listener")}
	if dial {
		return a, b
	}
	return b, a
}

func (s *sealer) next(message []byte) (sum [proofBytes]byte) {
	s.number++
	m := hmac.New(sha256.New, s.key)
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], s.number)
	m.Write(n[:])
	m.Write(message)
	copy(sum[:], m.Sum(nil))
	return sum
}
