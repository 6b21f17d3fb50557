package rdma

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Memory is memory that a provider can register: a sealed memfd, mapped shared.
// It is never part of the Go heap, so the garbage collector neither moves nor
// scans it, and its file descriptor can be handed to another process.
type Memory struct {
	name  string
	file  *os.File
	bytes []byte
}

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
	b, err := unix.Mmap(fd, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("memory %q: map %d bytes: %w", name, n, err)
	}
	return &Memory{name: name, file: f, bytes: b}, nil
}

// Name is what NewMemory was given.
func (m *Memory) Name() string { return m.name }

// Bytes is the mapping. It is invalid after Close.
func (m *Memory) Bytes() []byte { return m.bytes }

// Len is the length in bytes.
func (m *Memory) Len() uint64 { return uint64(len(m.bytes)) }

// File is the memfd, owned by m.
func (m *Memory) File() *os.File { return m.file }

// Close unmaps the memory. The caller has deregistered it everywhere.
func (m *Memory) Close() error {
	err := unix.Munmap(m.bytes)
	m.bytes = nil
	if e := m.file.Close(); err == nil {
		err = e
	}
	return err
}
