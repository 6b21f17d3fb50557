package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugeBytes = 2 << 20 // of a huge page, on amd64 and on arm64 with 4 KiB pages

// mapping is shared memory as this process sees it.
type mapping struct {
	bytes    []byte
	reserved unsafe.Pointer
	length   uintptr // reserved
}

// mapShared maps n bytes of a memfd, aligned so that the kernel can use huge pages.
func mapShared(fd int, n uint64, protection int) (*mapping, error) {
	length := uintptr(n) + hugeBytes
	reserved, err := unix.MmapPtr(-1, 0, nil, length, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("reserve %d bytes: %w", length, err)
	}
	shift := -uintptr(reserved) & (hugeBytes - 1)
	start, err := unix.MmapPtr(fd, 0, unsafe.Add(reserved, shift), uintptr(n), protection, unix.MAP_SHARED|unix.MAP_FIXED)
	if err != nil {
		_ = unix.MunmapPtr(reserved, length)
		return nil, fmt.Errorf("map %d bytes: %w", n, err)
	}
	return &mapping{bytes: unsafe.Slice((*byte)(start), n), reserved: reserved, length: length}, nil
}

// release unmaps it. It cannot fail for a range that was mapped.
func (m *mapping) release() {
	m.bytes = nil
	if err := unix.MunmapPtr(m.reserved, m.length); err != nil {
		panic(fmt.Sprintf("shm: unmap %d bytes: %v", m.length, err))
	}
}

// at is a word that the other process reads or writes too. It is touched only by
// the operations of sync/atomic.
func (m *mapping) at(offset uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&m.bytes[offset]))
}

func (m *mapping) at32(offset uint64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&m.bytes[offset]))
}

// newShared makes n bytes of zeros, mapped for writing, and the file to hand over.
// It can neither grow nor shrink. With readOnly nobody can write to it but through
// this mapping.
func newShared(name string, n uint64, readOnly bool) (*mapping, *os.File, error) {
	fd, err := unix.MemfdCreate("kvferry-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: memfd_create: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err := unix.Ftruncate(fd, int64(n)); err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("%s: reserve %d bytes: %w", name, n, err)
	}
	m, err := mapShared(fd, n, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if readOnly {
		seals |= unix.F_SEAL_FUTURE_WRITE
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		m.release()
		_ = f.Close()
		return nil, nil, fmt.Errorf("%s: seal: %w", name, err)
	}
	return m, f, nil
}

// openShared maps what a peer handed over. A file that its owner can shrink would
// be the end of this process, by SIGBUS.
func openShared(fd int, n uint64, protection int) (*mapping, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("it is no memory: %w", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("it is not sealed against shrinking: seals are %#x", seals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("stat: %w", err)
	}
	if st.Size < 0 || uint64(st.Size) < n {
		return nil, fmt.Errorf("it has %d bytes, want %d", st.Size, n)
	}
	return mapShared(fd, n, protection)
}

// collapse gives huge pages to the parts of a memfd of which half is there already,
// slowly, until ctx is done. It changes how fast the memory is, never what is in it: where
// the kernel has no MADV_COLLAPSE, or no huge page to give, it fails silently.
func collapse(ctx context.Context, m *mapping) {
	defer m.release()
	page := os.Getpagesize()
	resident := make([]byte, hugeBytes/page)
	for rest := m.bytes; len(rest) >= hugeBytes && ctx.Err() == nil; rest = rest[hugeBytes:] {
		part := rest[:hugeBytes]
		_, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&part[0])), hugeBytes, uintptr(unsafe.Pointer(&resident[0])))
		if e != 0 {
			return
		}
		there := 0
		for _, r := range resident {
			there += int(r & 1)
		}
		if 2*there < len(resident) {
			continue // what nobody uses is not taken from the machine
		}
		began := time.Now()
		if err := unix.Madvise(part, unix.MADV_COLLAPSE); errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOMEM) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(collapseRest * time.Since(began)):
		}
	}
}
