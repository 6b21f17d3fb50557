package tcp

import (
	"encoding/binary"
	"fmt"

	"kvferry/transport/rdma"
)

// After the welcome both sides send messages: frames and acks, each with a head.
// Little endian:
//
//	head     kind u8, status u8, reserved u16, body bytes u32, number u64,
//	         payload bytes u64, write u64
//	body     grant 16 bytes, stripe u32, pieces u32, runs u32, reserved u32,
//	         then pieces of 64 bytes, then runs of 12
//	piece    region u64, offset u64, unit stride u64, bytes u64, count 2 x u32,
//	         stride 2 x u64, runs u32, reserved u32
//	run      first u32, count u32, step u32
//	trailer  magic u32, status u32, sum u32
//
// A frame is head, body, payload, trailer: the pieces are the target side of what
// it writes, never a record per row, and the payload is their rows in order. Its
// trailer says whether the sender stood by it to the end, and has the CRC32C of the
// payload where the status of the head is statusSummed. Frames of a connection are
// numbered from 1 and acknowledged in order, each by a head of kind ack.
const (
	kindFrame = 1
	kindAck   = 2

	statusLanded  = 1 // of an ack
	statusRefused = 2

	statusSummed = 1 // of a frame, whose status is else 0

	trailerMagic    = 0x5459524b // "KRYT"
	statusWhole     = 1          // of a trailer
	statusAbandoned = 2          // what follows some byte is padding

	headBytes    = 32
	bodyBytes    = 32
	pieceBytes   = 64
	runBytes     = 12
	trailerBytes = 12
)

// head begins every message.
type head struct {
	kind, status uint8
	body         uint32
	number       uint64
	payload      uint64
	write        rdma.WriteID // the sender's, for whoever reads a capture
}

func (h *head) encode(b []byte) {
	le := binary.LittleEndian
	b[0], b[1] = h.kind, h.status
	le.PutUint16(b[2:], 0)
	le.PutUint32(b[4:], h.body)
	le.PutUint64(b[8:], h.number)
	le.PutUint64(b[16:], h.payload)
	le.PutUint64(b[24:], uint64(h.write))
}

func parseHead(b []byte) (h head, err error) {
	le := binary.LittleEndian
	h = head{b[0], b[1], le.Uint32(b[4:]), le.Uint64(b[8:]), le.Uint64(b[16:]), rdma.WriteID(le.Uint64(b[24:]))}
	switch {
	case le.Uint16(b[2:]) != 0:
		err = fmt.Errorf("head has %d in its reserved field, want 0", le.Uint16(b[2:]))
	case h.kind == kindAck && (h.status != statusLanded && h.status != statusRefused || h.body != 0 || h.payload != 0 || h.write != 0):
		err = fmt.Errorf("ack has status %d, %d bytes of body and %d of payload", h.status, h.body, h.payload)
	case h.kind == kindAck:
	case h.kind != kindFrame:
		err = fmt.Errorf("message of kind %d, want %d or %d", h.kind, kindFrame, kindAck)
	case h.status > statusSummed || h.body < bodyBytes || h.body > bodyMax:
		err = fmt.Errorf("frame has status %d and %d bytes of body, want 0 or %d and %d to %d", h.status, h.body, statusSummed, bodyBytes, bodyMax)
	case h.payload == 0 || h.payload > frameBytesMax:
		err = fmt.Errorf("frame has %d bytes of payload, want 1 to %d", h.payload, frameBytesMax)
	}
	return h, err
}

// body is the header of a frame: whose grant, and which rows of the target. Its
// slices are used again for the next frame.
type body struct {
	grant  rdma.GrantID
	stripe uint32
	pieces []rdma.Range // their Runs are parts of runs
	runs   []rdma.Run
	rows   uint64 // that the pieces expand to
	bytes  uint64 // of payload
}

func (d *body) reset() {
	*d = body{pieces: d.pieces[:0], runs: d.runs[:0]}
}

// encode appends the body. The runs of the pieces are those of d.runs, in order.
func (d *body) encode(b []byte) []byte {
	le := binary.LittleEndian
	b = append(b, d.grant[:]...)
	for _, v := range [4]uint32{d.stripe, uint32(len(d.pieces)), uint32(len(d.runs)), 0} {
		b = le.AppendUint32(b, v)
	}
	for i := range d.pieces {
		p := &d.pieces[i]
		b = le.AppendUint64(b, uint64(p.Region))
		b = le.AppendUint64(b, p.Offset)
		b = le.AppendUint64(b, p.UnitStride)
		b = le.AppendUint64(b, p.Bytes)
		b = le.AppendUint32(b, p.Count[0])
		b = le.AppendUint32(b, p.Count[1])
		b = le.AppendUint64(b, p.Stride[0])
		b = le.AppendUint64(b, p.Stride[1])
		b = le.AppendUint32(b, uint32(len(p.Runs)))
		b = le.AppendUint32(b, 0)
	}
	for _, r := range d.runs {
		b = le.AppendUint32(b, r.First)
		b = le.AppendUint32(b, r.Count)
		b = le.AppendUint32(b, r.Step)
	}
	return b
}

// parse reads a body whose frame has so much payload. What it accepts is well
// formed, small enough to expand, and free of overflow; whether it is granted is
// asked elsewhere.
func (d *body) parse(b []byte, payload uint64) error {
	d.reset()
	if len(b) < bodyBytes {
		return fmt.Errorf("body has %d bytes, want at least %d", len(b), bodyBytes)
	}
	le := binary.LittleEndian
	copy(d.grant[:], b)
	d.stripe = le.Uint32(b[16:])
	pieces, runs := le.Uint32(b[20:]), le.Uint32(b[24:])
	if pieces == 0 || pieces > piecesMax || runs == 0 || runs > runsMax || le.Uint32(b[28:]) != 0 {
		return fmt.Errorf("body has %d pieces and %d runs, want 1 to %d and 1 to %d", pieces, runs, piecesMax, runsMax)
	}
	if want := bodyBytes + int(pieces)*pieceBytes + int(runs)*runBytes; len(b) != want {
		return fmt.Errorf("body has %d bytes, want %d for %d pieces and %d runs", len(b), want, pieces, runs)
	}
	b = b[bodyBytes:]
	for r := b[int(pieces)*pieceBytes:]; len(r) > 0; r = r[runBytes:] {
		d.runs = append(d.runs, rdma.Run{First: le.Uint32(r[0:]), Count: le.Uint32(r[4:]), Step: le.Uint32(r[8:])})
	}
	left := d.runs
	for i := range int(pieces) {
		p := b[i*pieceBytes:]
		n := le.Uint32(p[56:])
		if uint64(n) > uint64(len(left)) || le.Uint32(p[60:]) != 0 {
			return fmt.Errorf("piece %d has %d runs, want at most the %d that are left", i, n, len(left))
		}
		d.pieces = append(d.pieces, rdma.Range{
			Region: rdma.RegionID(le.Uint64(p[0:])), Offset: le.Uint64(p[8:]), UnitStride: le.Uint64(p[16:]), Bytes: le.Uint64(p[24:]),
			Count: [2]uint32{le.Uint32(p[32:]), le.Uint32(p[36:])}, Stride: [2]uint64{le.Uint64(p[40:]), le.Uint64(p[48:])},
			Runs: left[:n:n],
		})
		left = left[n:]
		if err := d.add(i); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("body has %d runs of no piece", len(left))
	}
	if d.bytes != payload {
		return fmt.Errorf("the pieces have %d bytes, the payload %d", d.bytes, payload)
	}
	return nil
}

// add checks piece i and counts its rows and bytes. Each sum stays small before
// the next is made, so that none can overflow.
func (d *body) add(i int) error {
	p := &d.pieces[i]
	if err := p.CheckRows("piece", rdma.Unbounded); err != nil {
		return err
	}
	units := uint64(0)
	for _, r := range p.Runs {
		units += uint64(r.Count)
	}
	block := uint64(p.Count[0]) * uint64(p.Count[1])
	if units > rowsMax || block > rowsMax || p.Bytes > frameBytesMax {
		return fmt.Errorf("piece %d has %d units of %d rows of %d bytes, want at most %d rows of %d bytes", i, units, block, p.Bytes, rowsMax, frameBytesMax)
	}
	d.rows += units * block
	d.bytes += units * block * p.Bytes
	if d.rows > rowsMax || d.bytes > frameBytesMax {
		return fmt.Errorf("up to piece %d there are %d rows and %d bytes, want at most %d and %d", i, d.rows, d.bytes, rowsMax, frameBytesMax)
	}
	return nil
}

func encodeTrailer(b []byte, status, sum uint32) {
	binary.LittleEndian.PutUint32(b[0:], trailerMagic)
	binary.LittleEndian.PutUint32(b[4:], status)
	binary.LittleEndian.PutUint32(b[8:], sum)
}

// parseTrailer reports whether the frame is whole, and its sum: 0 where there is none.
func parseTrailer(b []byte, summed bool) (whole bool, sum uint32, err error) {
	le := binary.LittleEndian
	magic, status, sum := le.Uint32(b[0:]), le.Uint32(b[4:]), le.Uint32(b[8:])
	if magic != trailerMagic || status != statusWhole && status != statusAbandoned {
		return false, 0, fmt.Errorf("trailer is %#x with status %d, want %#x with %d or %d", magic, status, uint32(trailerMagic), statusWhole, statusAbandoned)
	}
	whole = status == statusWhole
	if sum != 0 && !(whole && summed) {
		return false, 0, fmt.Errorf("trailer has sum %#x, want 0: the frame has none", sum)
	}
	return whole, sum, nil
}
