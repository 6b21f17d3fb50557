package bench

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"kvferry/transport/rdma"
)

// pool is registered memory and a view of it for the loops of this package, which
// begins where a huge page can: a ceiling has the best memory that there is.
type pool struct {
	memory   *rdma.Memory
	view     []byte
	reserved unsafe.Pointer
	length   uintptr // reserved
}

// newPool makes a pool of n bytes, all of them there. Where the kernel gives huge
// pages to whoever asks, it has them.
func newPool(name string, n uint64) (*pool, error) {
	m, err := rdma.NewMemory(name, n)
	if err != nil {
		return nil, err
	}
	p := &pool{memory: m, length: uintptr(n) + hugeBytes}
	p.reserved, err = unix.MmapPtr(-1, 0, nil, p.length, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		_ = m.Close()
		return nil, fmt.Errorf("pool: reserve %d bytes: %w", p.length, err)
	}
	shift := -uintptr(p.reserved) & (hugeBytes - 1)
	start, err := unix.MmapPtr(int(m.File().Fd()), 0, unsafe.Add(p.reserved, shift), uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		p.close()
		return nil, fmt.Errorf("pool: map %d bytes: %w", n, err)
	}
	p.view = unsafe.Slice((*byte)(start), n)
	for i := 0; i < len(p.view); i += os.Getpagesize() {
		p.view[i] = 0
	}
	// Without huge pages it is the same memory, only slower.
	_ = unix.Madvise(p.view[:n&^(hugeBytes-1)], unix.MADV_COLLAPSE)
	return p, nil
}

// close unmaps the pool. Every provider that had it is closed.
func (p *pool) close() {
	p.view = nil
	// Neither fails for what was mapped.
	_ = unix.MunmapPtr(p.reserved, p.length)
	_ = p.memory.Close()
}

// wordOf is what a source has at an offset, a multiple of 8: no two words are alike,
// so whatever landed in a wrong place is seen.
func wordOf(offset uint64) uint64 { return (offset/8 + 1) * 0x9e3779b97f4a7c15 }

// fill writes the pattern of a source.
func (p *pool) fill() {
	for at := 0; at+8 <= len(p.view); at += 8 {
		*(*uint64)(unsafe.Pointer(&p.view[at])) = wordOf(uint64(at))
	}
}
