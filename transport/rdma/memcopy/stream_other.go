//go:build !amd64

package memcopy

import "unsafe"

// Streams reports whether there is a copy past the caches: elsewhere memmove does
// what the machine does best.
const Streams = false

func streamRow(r *Row) { Plain(r) }

func storeFence() {}

func prefetch(unsafe.Pointer, uint64) {}
