//go:build cgo && linux

package verbs

// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// libibverbs is the fabric of this host.
type libibverbs struct{}

var _ fabric = libibverbs{}

// openFabric loads the library. The error is a *LoadError.
func openFabric() (fabric, error) {
	if _, err := Open(); err != nil {
		return nil, err
	}
	return libibverbs{}, nil
}

// adapter is a device that is open, with a protection domain.
type adapter struct {
	name    string
	port    int
	limit   Limits
	context *C.struct_kv_context
	pd      *C.struct_kv_pd
	events  *os.File // a second descriptor of the device's events

	mu     sync.Mutex
	queues map[unsafe.Pointer]uint32 // number of the queue pair, by completion queue
}

func (a *adapter) call(what string, e C.int) error {
	if e == 0 {
		return nil
	}
	return &CallError{Call: what, Device: a.name, Err: syscall.Errno(e)}
}

func (libibverbs) open(device string, port int) (nic, error) {
	limits, err := (&Library{}).Limits(device, port)
	if err != nil {
		return nil, err
	}
	name := C.CString(device)
	defer C.free(unsafe.Pointer(name))
	a := &adapter{name: device, port: port, limit: limits, queues: map[unsafe.Pointer]uint32{}}
	var what *C.char
	if e := C.kv_open(name, &a.context, &what); e != 0 {
		return nil, a.call(C.GoString(what), e)
	}
	if e := C.kv_alloc_pd(a.context, &a.pd); e != 0 {
		C.kv_close(a.context)
		return nil, a.call("ibv_alloc_pd", e)
	}
	if a.events, err = pollable(int(a.context.async_fd), device+" events"); err != nil {
		C.kv_dealloc_pd(a.pd)
		C.kv_close(a.context)
		return nil, fmt.Errorf("verbs: events of %s: %w", device, err)
	}
	return a, nil
}

// pollable makes a descriptor of the library one that does not block, and returns
// another of it that goroutines can wait for.
func pollable(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(own), name), nil
}

// await calls take until it answers something else than that there is nothing,
// waiting for the file in between.
func await(f *os.File, take func() C.int) (C.int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var e C.int
	err = raw.Read(func(uintptr) bool {
		e = take()
		return syscall.Errno(e) != syscall.EAGAIN
	})
	return e, err
}

func (a *adapter) limits() Limits { return a.limit }

func (a *adapter) next() (deviceEvent, error) {
	var kind C.int
	var number C.uint32_t
	var cq unsafe.Pointer
	e, err := await(a.events, func() C.int { return C.kv_take_async_event(a.context, &kind, &number, &cq) })
	if err == nil {
		err = a.call("ibv_get_async_event", e)
	}
	if err != nil {
		return deviceEvent{}, err
	}
	switch kind {
	case C.KV_EVENT_CQ_ERR:
		a.mu.Lock()
		defer a.mu.Unlock()
		return deviceEvent{kind: eventQueue, queue: a.queues[cq], text: "completion queue error"}, nil
	case C.KV_EVENT_QP_FATAL:
		return deviceEvent{kind: eventQueue, queue: uint32(number), text: "queue pair fatal error"}, nil
	case C.KV_EVENT_QP_REQ_ERR:
		return deviceEvent{kind: eventQueue, queue: uint32(number), text: "invalid request of the peer"}, nil
	case C.KV_EVENT_QP_ACCESS_ERR:
		return deviceEvent{kind: eventQueue, queue: uint32(number), text: "access violation of the peer"}, nil
	case C.KV_EVENT_DEVICE_FATAL:
		return deviceEvent{kind: eventDevice, text: "device fatal error"}, nil
	case C.KV_EVENT_PORT_ERR:
		return deviceEvent{kind: eventPortDown, port: int(number), text: "port error"}, nil
	case C.KV_EVENT_PORT_ACTIVE:
		return deviceEvent{kind: eventPort, port: int(number), text: "port active"}, nil
	case C.KV_EVENT_LID_CHANGE:
		return deviceEvent{kind: eventPort, port: int(number), text: "LID change"}, nil
	case C.KV_EVENT_GID_CHANGE:
		return deviceEvent{kind: eventPort, port: int(number), text: "GID change"}, nil
	}
	return deviceEvent{text: fmt.Sprintf("event %d", kind)}, nil
}

func (a *adapter) close() error {
	_ = a.events.SetReadDeadline(time.Unix(1, 0)) // next returns
	_ = a.events.Close()
	if err := a.call("ibv_dealloc_pd", C.kv_dealloc_pd(a.pd)); err != nil {
		return err
	}
	return a.call("ibv_close_device", C.kv_close(a.context))
}

// memoryRegion is memory that the device may read, and perhaps peers write.
type memoryRegion struct {
	adapter *adapter
	mr      *C.struct_kv_mr
}

func (a *adapter) register(w window, x access) (registration, error) {
	flags := C.int(C.KV_ACCESS_LOCAL_WRITE)
	if x.remote {
		flags |= C.KV_ACCESS_REMOTE_WRITE
	}
	if x.relaxed {
		flags |= C.KV_ACCESS_RELAXED_ORDERING
	}
	r := &memoryRegion{adapter: a}
	var e C.int
	if w.dmabuf >= 0 {
		e = C.kv_reg_dmabuf_mr(a.pd, C.uint64_t(w.offset), C.size_t(w.bytes), C.uint64_t(w.addr), C.int(w.dmabuf), flags, &r.mr)
	} else {
		e = C.kv_reg_mr(a.pd, C.uint64_t(w.addr), C.size_t(w.bytes), flags, &r.mr)
	}
	if e == 0 {
		return r, nil
	}
	failed := &MemoryError{Device: a.name, Bytes: w.bytes, DMABuf: w.dmabuf >= 0, Limit: math.MaxUint64, Err: syscall.Errno(e)}
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) == nil {
		failed.Limit = l.Cur
	}
	return nil, failed
}

func (r *memoryRegion) keys() (local, remote uint32) { return uint32(r.mr.lkey), uint32(r.mr.rkey) }

func (r *memoryRegion) deregister() error {
	return r.adapter.call("ibv_dereg_mr", C.kv_dereg_mr(r.mr))
}

// pollMost is how many completions one call takes.
const pollMost = 64

// queuePair is one end of a reliable connection, with its completion queue.
type queuePair struct {
	adapter *adapter
	qp      *C.struct_kv_qp
	cq      *C.struct_kv_cq
	channel *C.struct_kv_comp_channel
	events  *os.File
	woken   atomic.Bool // for good
	qpn     uint32
	has     queueSize // at least what was asked for

	// What a call is given is made out in C memory: it is the library's until the call
	// returns, and the library keeps nothing of it.
	batch    *[pollMost]C.struct_kv_wc
	sends    []C.struct_kv_send_wr
	pieces   []C.struct_kv_sge
	receives []C.struct_kv_recv_wr
}

// slice is n values of zero in C memory.
func slice[T any](n int) []T {
	var v T
	return unsafe.Slice((*T)(C.calloc(C.size_t(max(n, 1)), C.size_t(unsafe.Sizeof(v)))), n)
}

func (a *adapter) queue(want queueSize) (queue, error) {
	p := &queuePair{adapter: a}
	if e := C.kv_create_channel(a.context, &p.channel); e != 0 {
		return nil, a.call("ibv_create_comp_channel", e)
	}
	var err error
	if p.events, err = pollable(int(p.channel.fd), a.name+" completions"); err != nil {
		C.kv_destroy_channel(p.channel)
		return nil, fmt.Errorf("verbs: completions of %s: %w", a.name, err)
	}
	if err = p.create(want); err != nil {
		_ = p.events.Close()
		C.kv_destroy_channel(p.channel)
		return nil, err
	}
	p.batch = (*[pollMost]C.struct_kv_wc)(unsafe.Pointer(unsafe.SliceData(slice[C.struct_kv_wc](pollMost))))
	p.sends = slice[C.struct_kv_send_wr](p.has.Chain)
	p.pieces = slice[C.struct_kv_sge](p.has.Chain * p.has.Pieces)
	p.receives = slice[C.struct_kv_recv_wr](p.has.Receives)
	a.mu.Lock()
	a.queues[unsafe.Pointer(p.cq)] = p.number()
	a.mu.Unlock()
	return p, nil
}

// create makes the completion queue and the queue pair. Of what the device gives, no
// more is used than was asked for: the completion queue holds that much.
func (p *queuePair) create(want queueSize) error {
	a := p.adapter
	if e := C.kv_create_cq(a.context, C.int(want.Sends+want.Receives), p.channel, &p.cq); e != 0 {
		return a.call("ibv_create_cq", e)
	}
	c := C.struct_kv_qp_cap{
		max_send_wr: C.uint32_t(want.Sends), max_recv_wr: C.uint32_t(want.Receives),
		max_send_sge: C.uint32_t(want.Pieces), max_recv_sge: 1,
	}
	if e := C.kv_create_qp(a.pd, p.cq, &c, &p.qp); e != 0 {
		C.kv_destroy_cq(p.cq)
		return a.call("ibv_create_qp", e)
	}
	p.qpn = uint32(p.qp.qp_num)
	p.has = queueSize{
		Sends: min(want.Sends, int(c.max_send_wr)), Receives: min(want.Receives, int(c.max_recv_wr)),
		Pieces: min(want.Pieces, int(c.max_send_sge)), Chain: want.Chain,
	}
	return nil
}

func (p *queuePair) number() uint32  { return p.qpn }
func (p *queuePair) size() queueSize { return p.has }

// destroy ends the queue pair, then what it completed to. After an error it goes on
// where that was.
func (p *queuePair) destroy() error {
	if p.qp != nil {
		if err := p.destroyQP(); err != nil {
			return err
		}
	}
	// What is left places nothing any more.
	if p.cq != nil {
		if err := p.adapter.call("ibv_destroy_cq", C.kv_destroy_cq(p.cq)); err != nil {
			return err
		}
		p.cq = nil
	}
	return p.adapter.call("ibv_destroy_comp_channel", C.kv_destroy_channel(p.channel))
}

func (p *queuePair) destroyQP() error {
	if err := p.adapter.call("ibv_destroy_qp", C.kv_destroy_qp(p.qp)); err != nil {
		return err
	}
	p.qp = nil
	p.adapter.mu.Lock()
	delete(p.adapter.queues, unsafe.Pointer(p.cq))
	p.adapter.mu.Unlock()
	_ = p.events.Close()
	C.free(unsafe.Pointer(p.batch))
	C.free(unsafe.Pointer(unsafe.SliceData(p.sends)))
	C.free(unsafe.Pointer(unsafe.SliceData(p.pieces)))
	C.free(unsafe.Pointer(unsafe.SliceData(p.receives)))
	return nil
}

func (p *queuePair) arm() error { return p.adapter.call("ibv_req_notify_cq", C.kv_arm_cq(p.cq)) }

func (p *queuePair) wait() error {
	if err := p.events.SetReadDeadline(time.Now().Add(wakeEvery)); err != nil {
		return err
	}
	if p.woken.Load() { // it may have been before the deadline was set
		return nil
	}
	e, err := await(p.events, func() C.int { return C.kv_take_cq_event(p.channel) })
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil // woken, or nothing for so long that it is looked at
	}
	if err != nil {
		return err
	}
	return p.adapter.call("ibv_get_cq_event", e)
}

func (p *queuePair) wake() {
	p.woken.Store(true)
	_ = p.events.SetReadDeadline(time.Unix(1, 0))
}

func (p *queuePair) poll(to []completion) ([]completion, error) {
	n := C.kv_poll_cq(p.cq, pollMost, &p.batch[0])
	if n < 0 {
		return to, p.adapter.call("ibv_poll_cq", C.int(syscall.EIO))
	}
	for i := range p.batch[:n] {
		w := &p.batch[i]
		c := completion{ID: uint64(w.wr_id), Status: Status(w.status), Vendor: uint32(w.vendor_err)}
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

// The fixed part of a connection.
const (
	hopLimit    = 64 // as IP's; 1 would not cross a router
	minRNRTimer = 12 // 0.64 ms until a sender asks again
)

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

func (p *queuePair) fail() error {
	attr := C.struct_kv_qp_attr{qp_state: C.KV_QPS_ERR}
	return p.modify("ERR", &attr, C.KV_QP_STATE)
}

func (p *queuePair) modify(state string, attr *C.struct_kv_qp_attr, mask C.int) error {
	return p.adapter.call("ibv_modify_qp to "+state, C.kv_modify_qp(p.qp, attr, mask))
}

func (p *queuePair) write(rows []row, id uint64, imm *uint32) (posted int, err error) {
	if len(rows) == 0 || len(rows) > len(p.sends) {
		return 0, fmt.Errorf("verbs: %d rows in one chain, want 1 to %d", len(rows), len(p.sends))
	}
	pieces := p.pieces
	for i := range rows {
		r, w := &rows[i], &p.sends[i]
		if len(r.pieces) == 0 || len(r.pieces) > p.has.Pieces {
			return 0, fmt.Errorf("verbs: row %d has %d pieces, want 1 to %d", i, len(r.pieces), p.has.Pieces)
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
	last.wr_id++
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

func (p *queuePair) receive(n int) (posted int, err error) {
	if n < 1 || n > len(p.receives) {
		return 0, fmt.Errorf("verbs: %d receives in one chain, want 1 to %d", n, len(p.receives))
	}
	for i := range n {
		p.receives[i] = C.struct_kv_recv_wr{wr_id: receiveID}
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
