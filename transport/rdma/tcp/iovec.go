package tcp

import (
	"hash/crc32"
	"unsafe"

	"golang.org/x/sys/unix"

	"kvferry/transport/rdma"
)

// iovecs is a list of memory for readv or writev. Where one piece follows another
// without a gap they are one entry.
type iovecs []unix.Iovec

// buffer appends memory of the Go heap, which never joins with what lies beside it.
func (v *iovecs) buffer(b []byte) {
	*v = append(*v, unix.Iovec{Base: &b[0], Len: uint64(len(b))})
}

// add appends n bytes of registered memory at an offset.
func (v *iovecs) add(memory []byte, offset, n uint64) {
	part := memory[offset : offset+n] // in bounds, or our code is wrong
	if k := len(*v); k > 0 {
		last := &(*v)[k-1]
		if uintptr(unsafe.Pointer(last.Base))+uintptr(last.Len) == uintptr(unsafe.Pointer(&part[0])) {
			last.Len += n
			return
		}
	}
	*v = append(*v, unix.Iovec{Base: &part[0], Len: n})
}

// addRows appends k units of the rows of one side of a pattern, unit by unit from
// unit first.
func (v *iovecs) addRows(memory []byte, p *rdma.Place, count [2]uint32, bytes, first, k, step uint64) {
	for u := range k {
		unit := p.Offset + (first+u*step)*p.UnitStride
		for i := range uint64(count[0]) {
			row := unit + i*p.Stride[0]
			for range count[1] {
				v.add(memory, row, bytes)
				row += p.Stride[1]
			}
		}
	}
}

// advance takes n bytes off the front.
func (v *iovecs) advance(n uint64) {
	s := *v
	for n > 0 && n >= s[0].Len {
		n -= s[0].Len
		s = s[1:]
	}
	if n > 0 {
		s[0].Base = (*byte)(unsafe.Add(unsafe.Pointer(s[0].Base), n))
		s[0].Len -= n
	}
	*v = s
}

// sum adds the first n bytes to a CRC32C, but for skip bytes at the front.
func (v iovecs) sum(crc uint32, skip, n uint64) uint32 {
	for i := 0; n > 0; i++ {
		part := unsafe.Slice(v[i].Base, min(n, v[i].Len))
		n -= uint64(len(part))
		over := min(skip, uint64(len(part)))
		skip -= over
		crc = crc32.Update(crc, castagnoli, part[over:])
	}
	return crc
}

// castagnoli has instructions on amd64 and arm64.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// call makes one readv or writev of at most iovecsMax entries.
func (v iovecs) call(trap, fd uintptr) (int, unix.Errno) {
	n, _, e := unix.Syscall(trap, fd, uintptr(unsafe.Pointer(&v[0])), uintptr(min(len(v), iovecsMax)))
	if e != 0 {
		return 0, e
	}
	return int(n), 0
}
