package rdma

import (
	"fmt"
	"math"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugeBytes is a huge page, on amd64 and on arm64 with pages of 4 KiB.
const hugeBytes = 2 << 20

// Memory is memory that a provider can register: a sealed memfd, mapped shared.
// It is never part of the Go heap, so the garbage collector neither moves nor
// scans it, and its file descriptor can be handed to another process.
//
// It begins where a huge page can, so that whatever gives it huge pages, by another
// mapping of the file too, gives them to this one.
type Memory struct {
	name     string
	file     *os.File
	bytes    []byte
	reserved unsafe.Pointer // of the address space, around bytes
	length   uintptr        // reserved
	near     Near
	device   *DMABuf // nil: it is of this process
}

// Near says what memory is near to, for providers that have a choice of devices. The
// zero value says nothing.
type Near struct {
	Devices []string // of the provider, by name, such as mlx5_0: those, whatever else is known
	PCI     string   // address of the GPU, or of what else the memory is of, such as 0000:17:00.0
	NUMA    *int     // node
}

// SetNear says what the memory is near to. It is called before Register.
func (m *Memory) SetNear(n Near) { m.near = n }

// Near is what SetNear was given.
func (m *Memory) Near() Near { return m.near }

// DMABuf is memory of a device, such as a GPU, that another process or driver exported.
type DMABuf struct {
	File   *os.File // the dma-buf; it stays its owner's
	Offset uint64   // of the memory in the dma-buf: an allocator exports more than was asked for
	Addr   uint64   // the device's own address of the memory, by which peers name it
	Bytes  uint64
}

// NewDeviceMemory makes memory of a dma-buf. It has no Bytes: only providers that
// register the device's memory itself can reach it; others answer ErrDeviceMemory.
func NewDeviceMemory(name string, d DMABuf) (*Memory, error) {
	switch {
	case d.File == nil:
		return nil, fmt.Errorf("memory %q: dma-buf: file is nil", name)
	case d.Bytes == 0 || d.Bytes > 1<<47:
		return nil, fmt.Errorf("memory %q: dma-buf: bytes is %d, want 1 to %d", name, d.Bytes, uint64(1)<<47)
	case d.Offset > 1<<62 || d.Addr > math.MaxUint64-d.Bytes:
		return nil, fmt.Errorf("memory %q: dma-buf: offset %d or address %#x is beyond 64 bits", name, d.Offset, d.Addr)
	}
	return &Memory{name: name, file: d.File, device: &d}, nil
}

// Device is the dma-buf, nil for memory of this process.
func (m *Memory) Device() *DMABuf { return m.device }

// NewMemory maps n bytes of zeros, n at least 1. The memory is sealed against
// growing and shrinking: a peer that maps it can never be given SIGBUS.
func NewMemory(name string, n uint64) (*Memory, error) {
	if n == 0 || n > 1<<47 {
		return nil, fmt.Errorf("memory %q: bytes is %d, want 1 to %d", name, n, uint64(1)<<47)
	}
	fd, err := unix.MemfdCreate("kvferry-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("memory %q: memfd_create: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), "memfd:kvferry-"+name)
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		f.Close()
		return nil, fmt.Errorf("memory %q: reserve %d bytes: %w", name, n, err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, fmt.Errorf("memory %q: seal: %w", name, err)
	}
	m := &Memory{name: name, file: f, length: uintptr(n) + hugeBytes}
	if err := m.mapFile(n); err != nil {
		f.Close()
		return nil, fmt.Errorf("memory %q: map %d bytes: %w", name, n, err)
	}
	return m, nil
}

// mapFile maps the file into a reservation that has a huge page more than it needs.
func (m *Memory) mapFile(n uint64) error {
	reserved, err := unix.MmapPtr(-1, 0, nil, m.length, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return err
	}
	shift := -uintptr(reserved) & (hugeBytes - 1)
	start, err := unix.MmapPtr(int(m.file.Fd()), 0, unsafe.Add(reserved, shift), uintptr(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		_ = unix.MunmapPtr(reserved, m.length)
		return err
	}
	m.reserved, m.bytes = reserved, unsafe.Slice((*byte)(start), n)
	return nil
}

// Name is what NewMemory was given.
func (m *Memory) Name() string { return m.name }

// Bytes is the mapping, nil for memory of a device. It is invalid after Close.
func (m *Memory) Bytes() []byte { return m.bytes }

// Len is the length in bytes.
func (m *Memory) Len() uint64 {
	if m.device != nil {
		return m.device.Bytes
	}
	return uint64(len(m.bytes))
}

// File is the memfd, owned by m; or the dma-buf, which is not.
func (m *Memory) File() *os.File { return m.file }

// Close unmaps the memory. The caller has deregistered it everywhere.
func (m *Memory) Close() error {
	if m.device != nil {
		return nil
	}
	var err error
	if m.bytes != nil {
		err = unix.MunmapPtr(m.reserved, m.length)
	}
	m.bytes = nil
	if e := m.file.Close(); err == nil {
		err = e
	}
	return err
}
