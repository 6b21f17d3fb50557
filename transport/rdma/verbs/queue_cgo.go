//go:build cgo && linux

package verbs

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"math"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// adapter is a device that is open, with a protection domain.
type adapter struct {
	name    string
	context *C.struct_kv_context
	pd      *C.struct_kv_pd
}

func (a *adapter) call(what string, e C.int) error {
	if e == 0 {
		return nil
	}
	return &CallError{Call: what, Device: a.name, Err: syscall.Errno(e)}
}

// open opens a device by its name. Errors are *CallError.
func (*Library) open(device string) (*adapter, error) {
	name := C.CString(device)
	defer C.free(unsafe.Pointer(name))
	a := &adapter{name: device}
	var what *C.char
	if e := C.kv_open(name, &a.context, &what); e != 0 {
		return nil, a.call(C.GoString(what), e)
	}
	if e := C.kv_alloc_pd(a.context, &a.pd); e != 0 {
		C.kv_close(a.context)
		return nil, a.call("ibv_alloc_pd", e)
	}
	return a, nil
}

// close closes a device of which nothing is left.
func (a *adapter) close() error {
	if err := a.call("ibv_dealloc_pd", C.kv_dealloc_pd(a.pd)); err != nil {
		return err
	}
	return a.call("ibv_close_device", C.kv_close(a.context))
}

// registration is memory that the device may read, and with remote the peers that have
// its key may write.
type registration struct {
	adapter    *adapter
	mr         *C.struct_kv_mr
	start      uint64 // address
	lkey, rkey uint32
}

// MemoryError is memory that could not be registered.
type MemoryError struct {
	Device string
	Bytes  uint64
	Limit  uint64 // of locked memory of this process; math.MaxUint64: none
	Err    syscall.Errno
}

func (e *MemoryError) Error() string {
	text := fmt.Sprintf("verbs: register %d bytes with %s: %v", e.Bytes, e.Device, e.Err)
	if e.Err == syscall.ENOMEM && e.Limit != math.MaxUint64 {
		text += fmt.Sprintf(": registered memory is locked, and this process may lock %d bytes in all: raise it"+
			" (ulimit -l unlimited; LimitMEMLOCK=infinity of the systemd unit; CAP_IPC_LOCK of a container)", e.Limit)
	}
	return text
}

func (e *MemoryError) Unwrap() error { return e.Err }

// register registers memory that is not the Go heap's, and stays mapped until
// deregister. Errors are *MemoryError.
func (a *adapter) register(memory []byte, remote bool) (*registration, error) {
	access := C.int(C.KV_ACCESS_LOCAL_WRITE)
	if remote {
		access |= C.KV_ACCESS_REMOTE_WRITE
	}
	start := unsafe.Pointer(unsafe.SliceData(memory))
	r := &registration{adapter: a, start: uint64(uintptr(start))}
	if e := C.kv_reg_mr(a.pd, start, C.size_t(len(memory)), access, &r.mr); e != 0 {
		failed := &MemoryError{Device: a.name, Bytes: uint64(len(memory)), Limit: math.MaxUint64, Err: syscall.Errno(e)}
		var l unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil {
			failed.Limit = l.Cur
		}
		return nil, failed
	}
	r.lkey, r.rkey = uint32(r.mr.lkey), uint32(r.mr.rkey)
	return r, nil
}

func (r *registration) deregister() error {
	return r.adapter.call("ibv_dereg_mr", C.kv_dereg_mr(r.mr))
}

// completions is a completion queue. One goroutine polls it.
type completions struct {
	adapter *adapter
	cq      *C.struct_kv_cq
	batch   *[pollMost]C.struct_kv_wc // in C memory
}

// pollMost is how many completions one call takes.
const pollMost = 64

func (a *adapter) completions(entries int) (*completions, error) {
	q := &completions{adapter: a}
	if e := C.kv_create_cq(a.context, C.int(entries), &q.cq); e != 0 {
		return nil, a.call("ibv_create_cq", e)
	}
	q.batch = (*[pollMost]C.struct_kv_wc)(C.calloc(pollMost, C.sizeof_struct_kv_wc))
	return q, nil
}

// destroy ends a queue that no queue pair has.
func (q *completions) destroy() error {
	if err := q.adapter.call("ibv_destroy_cq", C.kv_destroy_cq(q.cq)); err != nil {
		return err
	}
	C.free(unsafe.Pointer(q.batch))
	return nil
}

// poll appends what has completed, at most pollMost, in one call.
func (q *completions) poll(to []completion) ([]completion, error) {
	n := C.kv_poll_cq(q.cq, pollMost, &q.batch[0])
	if n < 0 {
		return to, q.adapter.call("ibv_poll_cq", C.int(syscall.EIO))
	}
	for i := range q.batch[:n] {
		w := &q.batch[i]
		c := completion{ID: uint64(w.wr_id), Status: Status(w.status), QP: uint32(w.qp_num), Vendor: uint32(w.vendor_err)}
		if c.Status == statusSuccess && w.opcode == C.KV_WC_RECV_RDMA_WITH_IMM && w.wc_flags&C.KV_WC_WITH_IMM != 0 {
			c.HasImm, c.Imm = true, fromNetwork(uint32(w.imm_data))
		}
		to = append(to, c)
	}
	return to, nil
}

// fromNetwork and toNetwork turn the bytes of a number that the library keeps in the
// order of the network.
func fromNetwork(v uint32) uint32 {
	b := (*[4]byte)(unsafe.Pointer(&v))
	return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
}

func toNetwork(v uint32) uint32 { return fromNetwork(v) }

// queueSize is how much a queue pair holds.
type queueSize struct {
	Sends, Receives int // requests
	Pieces          int // of a send
}

// queuePair is one end of a reliable connection. Its owner serializes the calls.
type queuePair struct {
	adapter *adapter
	qp      *C.struct_kv_qp
	size    queueSize // what it really has, at least what was asked for
	number  uint32

	// A chain of requests is made out in C memory: it is the library's until the call
	// returns, and the library keeps nothing of it.
	sends    []C.struct_kv_send_wr
	pieces   []C.struct_kv_sge
	receives []C.struct_kv_recv_wr
}

// queuePair makes a queue pair that completes to q.
func (a *adapter) queuePair(q *completions, size queueSize) (*queuePair, error) {
	c := C.struct_kv_qp_cap{
		max_send_wr: C.uint32_t(size.Sends), max_recv_wr: C.uint32_t(size.Receives),
		max_send_sge: C.uint32_t(size.Pieces), max_recv_sge: 1,
	}
	p := &queuePair{adapter: a}
	if e := C.kv_create_qp(a.pd, q.cq, &c, &p.qp); e != 0 {
		return nil, a.call("ibv_create_qp", e)
	}
	p.number = uint32(p.qp.qp_num)
	p.size = queueSize{int(c.max_send_wr), int(c.max_recv_wr), int(c.max_send_sge)}
	p.sends = unsafe.Slice((*C.struct_kv_send_wr)(C.calloc(C.size_t(p.size.Sends), C.sizeof_struct_kv_send_wr)), p.size.Sends)
	p.pieces = unsafe.Slice((*C.struct_kv_sge)(C.calloc(C.size_t(p.size.Sends*p.size.Pieces), C.sizeof_struct_kv_sge)), p.size.Sends*p.size.Pieces)
	p.receives = unsafe.Slice((*C.struct_kv_recv_wr)(C.calloc(C.size_t(p.size.Receives), C.sizeof_struct_kv_recv_wr)), p.size.Receives)
	return p, nil
}

// destroy ends the queue pair: from then on no packet of the peer is placed, and no
// memory is read.
func (p *queuePair) destroy() error {
	if err := p.adapter.call("ibv_destroy_qp", C.kv_destroy_qp(p.qp)); err != nil {
		return err
	}
	C.free(unsafe.Pointer(unsafe.SliceData(p.sends)))
	C.free(unsafe.Pointer(unsafe.SliceData(p.pieces)))
	C.free(unsafe.Pointer(unsafe.SliceData(p.receives)))
	return nil
}

// link is what both ends of a connection have to know, and how it behaves.
type link struct {
	Port         int
	Local        GID
	Remote       [16]byte // GID
	RemoteLID    uint16   // InfiniBand
	Ethernet     bool
	MTU          int    // bytes, of the smaller side
	RemoteNumber uint32 // of the queue pair
	LocalPSN     uint32 // 24 bits, random, so that late packets of another connection do not fit
	RemotePSN    uint32
	Timeout      uint8 // 4.096 us << Timeout until a packet is sent again
	Retries      uint8 // at most 6: some drivers take 7 for "for ever"
	RNRRetries   uint8 // of a receiver without a receive; at most 6
	TrafficClass uint8
	ServiceLevel uint8
}

// The fixed part of a connection.
const (
	hopLimit    = 64 // as IP's; 1 would not cross a router
	minRNRTimer = 12 // 0.64 ms until a sender asks again
	retriesMost = 6
)

// accept brings the queue pair to where receives can be posted and the peer's packets
// are taken. The peer may send once this has returned.
func (p *queuePair) accept(l *link) error {
	attr := C.struct_kv_qp_attr{qp_state: C.KV_QPS_INIT, port_num: C.uint8_t(l.Port), qp_access_flags: C.KV_ACCESS_LOCAL_WRITE | C.KV_ACCESS_REMOTE_WRITE}
	if err := p.modify("INIT", &attr, C.KV_QP_STATE|C.KV_QP_PKEY_INDEX|C.KV_QP_PORT|C.KV_QP_ACCESS_FLAGS); err != nil {
		return err
	}
	code := mtuCode(l.MTU)
	if code == 0 {
		return fmt.Errorf("verbs: mtu is %d, want 256, 512, 1024, 2048 or 4096", l.MTU)
	}
	attr = C.struct_kv_qp_attr{
		qp_state: C.KV_QPS_RTR, path_mtu: C.int(code), dest_qp_num: C.uint32_t(l.RemoteNumber), rq_psn: C.uint32_t(l.RemotePSN),
		max_dest_rd_atomic: 1, min_rnr_timer: minRNRTimer,
	}
	h := &attr.ah_attr
	h.port_num, h.sl, h.dlid = C.uint8_t(l.Port), C.uint8_t(l.ServiceLevel), C.uint16_t(l.RemoteLID)
	if l.Ethernet {
		if l.Local.Index > math.MaxUint8 {
			return fmt.Errorf("verbs: GID index is %d, want at most %d: that is all that a connection can name", l.Local.Index, math.MaxUint8)
		}
		h.is_global, h.hop_limit = 1, hopLimit
		h.sgid_index, h.traffic_class = C.uint8_t(l.Local.Index), C.uint8_t(l.TrafficClass)
		for i, b := range l.Remote {
			h.dgid[i] = C.uint8_t(b)
		}
	}
	return p.modify("RTR", &attr, C.KV_QP_STATE|C.KV_QP_AV|C.KV_QP_PATH_MTU|C.KV_QP_DEST_QPN|C.KV_QP_RQ_PSN|C.KV_QP_MAX_DEST_RD_ATOMIC|C.KV_QP_MIN_RNR_TIMER)
}

// send brings it to where it sends, once the peer has accepted.
func (p *queuePair) send(l *link) error {
	if l.Retries > retriesMost || l.RNRRetries > retriesMost {
		return fmt.Errorf("verbs: retries are %d and %d, want at most %d: 7 is for ever", l.Retries, l.RNRRetries, retriesMost)
	}
	attr := C.struct_kv_qp_attr{
		qp_state: C.KV_QPS_RTS, sq_psn: C.uint32_t(l.LocalPSN), timeout: C.uint8_t(l.Timeout),
		retry_cnt: C.uint8_t(l.Retries), rnr_retry: C.uint8_t(l.RNRRetries), max_rd_atomic: 1,
	}
	return p.modify("RTS", &attr, C.KV_QP_STATE|C.KV_QP_SQ_PSN|C.KV_QP_TIMEOUT|C.KV_QP_RETRY_CNT|C.KV_QP_RNR_RETRY|C.KV_QP_MAX_QP_RD_ATOMIC)
}

// fail ends all that is outstanding: it completes as flushed.
func (p *queuePair) fail() error {
	attr := C.struct_kv_qp_attr{qp_state: C.KV_QPS_ERR}
	return p.modify("ERR", &attr, C.KV_QP_STATE)
}

func (p *queuePair) modify(state string, attr *C.struct_kv_qp_attr, mask C.int) error {
	return p.adapter.call("ibv_modify_qp to "+state, C.kv_modify_qp(p.qp, attr, mask))
}

// mtuCode is the library's code of an MTU; 0: there is none.
func mtuCode(bytes int) int {
	for code := 1; code <= 5; code++ {
		if mtuBytes(code) == bytes {
			return code
		}
	}
	return 0
}

// piece is memory of this side.
type piece struct {
	addr   uint64
	length uint32
	lkey   uint32
}

// row is one write request: pieces of this side, one after another, to one place of
// the peer.
type row struct {
	pieces []piece
	remote uint64 // address
	rkey   uint32
}

// write posts rows as one chain, by one call. The last one completes, as id, and with
// imm takes a receive of the peer, which hears of it once all before it are in its
// memory. It returns how many rows were posted: with an error fewer than all, and none
// of those completes by itself.
func (p *queuePair) write(rows []row, id uint64, imm *uint32) (posted int, err error) {
	if len(rows) == 0 || len(rows) > len(p.sends) {
		return 0, fmt.Errorf("verbs: %d rows in one chain, want 1 to %d", len(rows), len(p.sends))
	}
	pieces := p.pieces
	for i := range rows {
		r, w := &rows[i], &p.sends[i]
		if len(r.pieces) == 0 || len(r.pieces) > p.size.Pieces {
			return 0, fmt.Errorf("verbs: row %d has %d pieces, want 1 to %d", i, len(r.pieces), p.size.Pieces)
		}
		for k, x := range r.pieces {
			pieces[k] = C.struct_kv_sge{addr: C.uint64_t(x.addr), length: C.uint32_t(x.length), lkey: C.uint32_t(x.lkey)}
		}
		*w = C.struct_kv_send_wr{wr_id: C.uint64_t(id), sg_list: &pieces[0], num_sge: C.int(len(r.pieces)), opcode: C.KV_WR_RDMA_WRITE}
		remote := (*C.uint64_t)(unsafe.Pointer(&w.wr)) // a union, of which cgo knows the bytes
		*remote = C.uint64_t(r.remote)
		*(*C.uint32_t)(unsafe.Add(unsafe.Pointer(remote), 8)) = C.uint32_t(r.rkey)
		if i > 0 {
			p.sends[i-1].next = w
		}
		pieces = pieces[len(r.pieces):]
	}
	last := &p.sends[len(rows)-1]
	last.send_flags = C.KV_SEND_SIGNALED
	if imm != nil {
		last.opcode, last.imm_data = C.KV_WR_RDMA_WRITE_WITH_IMM, C.uint32_t(toNetwork(*imm))
	}
	var bad *C.struct_kv_send_wr
	if e := C.kv_post_send(p.qp, &p.sends[0], &bad); e != 0 {
		if bad != nil {
			posted = int(uintptr(unsafe.Pointer(bad))-uintptr(unsafe.Pointer(&p.sends[0]))) / C.sizeof_struct_kv_send_wr
		}
		return posted, p.adapter.call("ibv_post_send", e)
	}
	return len(rows), nil
}

// receive posts n receives without memory, which arrivals of the peer take. It returns
// how many were posted: with an error fewer than n.
func (p *queuePair) receive(n int, id uint64) (posted int, err error) {
	if n < 1 || n > len(p.receives) {
		return 0, fmt.Errorf("verbs: %d receives in one chain, want 1 to %d", n, len(p.receives))
	}
	for i := range n {
		p.receives[i] = C.struct_kv_recv_wr{wr_id: C.uint64_t(id)}
		if i > 0 {
			p.receives[i-1].next = &p.receives[i]
		}
	}
	var bad *C.struct_kv_recv_wr
	if e := C.kv_post_recv(p.qp, &p.receives[0], &bad); e != 0 {
		if bad != nil {
			posted = int(uintptr(unsafe.Pointer(bad))-uintptr(unsafe.Pointer(&p.receives[0]))) / C.sizeof_struct_kv_recv_wr
		}
		return posted, p.adapter.call("ibv_post_recv", e)
	}
	return n, nil
}
