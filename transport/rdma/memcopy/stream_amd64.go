package memcopy

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// Streams reports whether there is a copy past the caches.
var Streams = cpu.X86.HasAVX2

// streamLine is the alignment, and streamStep the multiple, of bytes that streamCopy
// takes: a cache line of 64 is filled by two stores, and four of them at a time keep
// the write-combining buffers busy.
const (
	streamLine = 64
	streamStep = 256
)

// streamRow copies a row of at least streamRowMin bytes by non-temporal stores, its
// edges by others.
func streamRow(r *Row) {
	head := uint64(-uintptr(r.Target) & (streamLine - 1))
	body := (r.Bytes - head) &^ (streamStep - 1)
	if head > 0 {
		Plain(&Row{r.Target, r.Source, head})
	}
	streamCopy(unsafe.Add(r.Target, head), unsafe.Add(r.Source, head), body)
	if rest := r.Bytes - head - body; rest > 0 {
		at := head + body
		Plain(&Row{unsafe.Add(r.Target, at), unsafe.Add(r.Source, at), rest})
	}
}

// streamCopy copies n bytes, at least one streamStep and a multiple of it, to a target
// that is aligned to streamLine. storeFence has to follow.
//
//go:noescape
func streamCopy(target, source unsafe.Pointer, n uint64)

// storeFence makes the stores of streamCopy visible before any that follows.
//
//go:noescape
func storeFence()

// prefetch asks for n bytes to be brought near, n at least 1.
//
//go:noescape
func prefetch(p unsafe.Pointer, n uint64)
