package rdma

import (
	"bytes"
	"os"
	"testing"
	"unsafe"
)

// Memory of any length begins where a huge page can, ends where it says, and is the
// file's to its last byte. Afterwards nothing of it is mapped.
func TestMemoryBeginsWhereAHugePageCan(t *testing.T) {
	page := uint64(os.Getpagesize())
	for _, n := range []uint64{1, page - 1, page, page + 1, hugeBytes - 1, hugeBytes, hugeBytes + 1, 3*hugeBytes + 5} {
		m, err := NewMemory("aligned", n)
		if err != nil {
			t.Fatal(err)
		}
		b := m.Bytes()
		if at := uintptr(unsafe.Pointer(&b[0])); at%hugeBytes != 0 {
			t.Errorf("%d bytes begin at %#x, want a multiple of %#x", n, at, hugeBytes)
		}
		if uint64(len(b)) != n || uint64(cap(b)) != n || m.Len() != n {
			t.Errorf("%d bytes: the mapping has %d of %d, Len says %d", n, len(b), cap(b), m.Len())
		}
		if i := bytes.IndexFunc(b, func(r rune) bool { return r != 0 }); i >= 0 {
			t.Errorf("%d bytes: byte %d is %d, want 0", n, i, b[i])
		}
		b[0], b[n-1] = 7, 9
		got := make([]byte, n)
		if _, err := m.File().ReadAt(got, 0); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%d bytes: the file has others than the mapping, %v", n, err)
		}
		if err := m.Close(); err != nil {
			t.Errorf("%d bytes: close: %v", n, err)
		}
		maps, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(maps, []byte("kvferry-aligned")) {
			t.Errorf("%d bytes are mapped after Close", n)
		}
	}
}
