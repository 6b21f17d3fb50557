package memcopy

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"unsafe"
)

// Rows of every length around the edges of the kernels, at every alignment, arrive
// as they are, and nothing beside them changes.
func TestRowsAreCopiedExactly(t *testing.T) {
	lengths := []int{1, 2, 63, 64, 65, 255, 256, 511, 1023, 1024, 1025, 1279, 1280, 1343, 1344, 4096, 5000, 70_000}
	source, target := make([]byte, 80_000), make([]byte, 80_000)
	rng := rand.New(rand.NewPCG(7, 7))
	for i := range source {
		source[i] = byte(rng.Uint32())
	}
	const canary = 0xA5
	for _, n := range lengths {
		for _, shift := range []int{0, 1, 31, 32, 63, 64, 65} {
			for _, stream := range []bool{false, true} {
				for i := range target {
					target[i] = canary
				}
				from := (shift * 5) % 70
				Rows([]Row{{unsafe.Pointer(&target[shift]), unsafe.Pointer(&source[from]), uint64(n)}}, nil, stream)
				if !bytes.Equal(target[shift:shift+n], source[from:from+n]) {
					t.Errorf("%d bytes to %d: they differ, stream %v", n, shift, stream)
				}
				if bytes.Count(target, []byte{canary})-bytes.Count(source[from:from+n], []byte{canary}) != len(target)-n {
					t.Errorf("%d bytes to %d: something beside changed, stream %v", n, shift, stream)
				}
			}
		}
	}
}
