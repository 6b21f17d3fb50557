package bench

import (
	"context"
	"time"
	"unsafe"

	"kvferry/transport/rdma/memcopy"
)

// kernels are the ways to copy rows. The ceiling is the best of them.
var kernels = []struct {
	name string
	copy func([]memcopy.Row)
}{
	{"copy", func(rows []memcopy.Row) {
		for i := range rows {
			memcopy.Plain(&rows[i])
		}
	}},
	{"copy+prefetch", func(rows []memcopy.Row) { memcopy.Rows(rows, nil, false) }},
	{"stream+prefetch", func(rows []memcopy.Row) { memcopy.Rows(rows, nil, true) }},
}

// copier copies the writes of a layout with one thread, around and around.
type copier struct {
	layout         *layout
	source, target []byte
	copy           func([]memcopy.Row)
	next           int
	rows           [chunkRows]memcopy.Row
}

// copySubjects is each kernel, to be measured with a layout.
func copySubjects(l *layout, source, target []byte) (all []*subject) {
	for _, k := range kernels {
		c := &copier{layout: l, source: source, target: target, copy: k.copy}
		all = append(all, &subject{name: k.name, run: c.run, pass: l.writes})
	}
	return all
}

func (c *copier) run(ctx context.Context, d time.Duration, least int) (Rate, error) {
	cpu, start := cpuTime(), time.Now()
	n := 0
	for ; n < least || time.Since(start) < d; n++ {
		if err := ctx.Err(); err != nil {
			return Rate{}, err
		}
		c.write(c.next)
		c.next = (c.next + 1) % c.layout.writes
	}
	return Rate{Bytes: uint64(n) * c.layout.writeBytes(), Elapsed: time.Since(start), CPU: cpuTime() - cpu}, nil
}

func (c *copier) write(w int) {
	n := 0
	for source, target := range c.layout.rows(w) {
		c.rows[n] = memcopy.Row{Target: unsafe.Pointer(&c.target[target]), Source: unsafe.Pointer(&c.source[source]), Bytes: c.layout.Block}
		if n++; n == len(c.rows) {
			c.copy(c.rows[:])
			n = 0
		}
	}
	c.copy(c.rows[:n])
}
