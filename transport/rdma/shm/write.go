package shm

import (
	"unsafe"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/memcopy"
)

// write is a write that was accepted.
type write struct {
	*rdma.Write
	bytes   uint64
	sources [][]byte // the memory of each copy's source

	// Guarded by provider.mu.
	begun bool // some of it was copied, and it is not with the copier
	ended bool // it has completed

	// Owned by the copier: what comes next.
	grant          *known
	at             int // copy
	rows           rdma.Rows
	from, to       []byte
	source, target uint64
	left           uint64 // bytes of the row at source and target; 0 at the end
	copied         bool
}

func newWrite(w *rdma.Write, regions *rdma.Regions) *write {
	x := &write{Write: w, bytes: w.Bytes(), sources: make([][]byte, len(w.Copies))}
	for i := range w.Copies {
		x.sources[i] = regions.Bytes(w.Copies[i].Source.Region)
	}
	return x
}

// fate is how a write ends with its session: nothing of it moves any more.
func (w *write) fate() rdma.Outcome {
	if w.begun {
		return rdma.Unknown
	}
	return rdma.NotPosted
}

// start goes to the first row, once the grant covers them all.
func (w *write) start(k *known) {
	w.grant = k
	w.at = -1
	w.next()
}

// next goes to the next row.
func (w *write) next() {
	for w.at < 0 || !w.rows.Next() {
		if w.at++; w.at == len(w.Copies) {
			w.left = 0
			return
		}
		c := &w.Copies[w.at]
		w.rows = rdma.RowsOf(c)
		w.from, w.to = w.sources[w.at], w.grant.target(c.Target.Region)
	}
	w.source, w.target, w.left = w.rows.Source, w.rows.Target, w.rows.Bytes
}

// gather fills rows with the next chunk, and reports how many rows and bytes it is.
// Rows are split only where one is longer than a chunk.
func (w *write) gather(rows *[chunkRows]memcopy.Row) (n int, bytes uint64) {
	for n < chunkRows && w.left > 0 {
		take := w.left
		if room := chunkBytes - bytes; take > room {
			if n > 0 {
				break
			}
			take = room
		}
		rows[n] = memcopy.Row{
			Target: unsafe.Pointer(unsafe.SliceData(w.to[w.target:][:take])),
			Source: unsafe.Pointer(unsafe.SliceData(w.from[w.source:][:take])),
			Bytes:  take,
		}
		n++
		bytes += take
		w.source += take
		w.target += take
		if w.left -= take; w.left == 0 {
			w.next()
		}
	}
	return n, bytes
}

// ahead is the source of the row that follows what was gathered, nil at the end.
func (w *write) ahead() unsafe.Pointer {
	if w.left == 0 {
		return nil
	}
	return unsafe.Pointer(&w.from[w.source])
}
