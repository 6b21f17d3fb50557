// Package memcopy copies rows between memory that is in no cache, as the pools of KV
// caches are: each row is fetched ahead while the one before it is copied, and large
// rows can go past the caches.
package memcopy

import "unsafe"

const (
	// streamRowMin is the row from which on non-temporal stores pay. Shorter ones are
	// mostly edges, and half-filled lines cost a read of the line.
	streamRowMin = 1 << 10

	// prefetchBytes is how much of the next row is fetched while this one is copied:
	// what the hardware needs to see before it runs ahead by itself.
	prefetchBytes = 1 << 10

	// aheadBytes is how much is fetched of a row whose length is not known here.
	aheadBytes = 64
)

// Row is one contiguous copy. Both ends lie in mappings, which the collector does not
// move and the caller keeps mapped.
type Row struct {
	Target, Source unsafe.Pointer
	Bytes          uint64
}

// Rows copies rows in order. Ahead is the source of the row that follows the last, or
// nil. With stream, rows of 1 KiB and more go past the caches where the machine can do
// that: right for what nobody reads soon. When it returns every byte is in memory for
// whoever is told so by an atomic operation afterwards.
func Rows(rows []Row, ahead unsafe.Pointer, stream bool) {
	stream = stream && Streams
	for i := range rows {
		r := &rows[i]
		if i+1 < len(rows) {
			next := &rows[i+1]
			prefetch(next.Source, min(next.Bytes, prefetchBytes))
		} else if ahead != nil {
			prefetch(ahead, aheadBytes)
		}
		if stream && r.Bytes >= streamRowMin {
			streamRow(r)
			continue
		}
		Plain(r)
	}
	if stream {
		storeFence()
	}
}

// Plain copies a row as the Go runtime does.
func Plain(r *Row) {
	copy(unsafe.Slice((*byte)(r.Target), r.Bytes), unsafe.Slice((*byte)(r.Source), r.Bytes))
}
