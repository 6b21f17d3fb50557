package verbs

import (
	"testing"

	"pgregory.net/rapid"
)

// Numbers are of one grant each while they are in force, and of none once they are not,
// also when slots are used again and again.
func TestSlotsAreAMap(t *testing.T) {
	all := make([]slot, 1<<slotBits)
	rapid.Check(t, func(t *rapid.T) {
		var s slots
		most := 1 << slotBits
		if rapid.Bool().Draw(t, "full") { // then the few that are free are used again at once
			most = rapid.IntRange(1, 5).Draw(t, "slots")
			s.entries = all
			for i := range most {
				s.entries[i] = slot{life: rapid.SampledFrom([]uint32{0, 1, 1<<lifeBits - 2, 1<<lifeBits - 1}).Draw(t, "life")}
				s.free = append(s.free, uint32(i))
			}
		}
		inForce := map[uint32]*grant{}
		var order, over []uint32
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				g := &grant{}
				n, ok := s.take(g)
				if ok != (len(order) < most) || ok && inForce[n] != nil {
					t.Fatalf("with %d of %d in force: took %#x, %v", len(order), most, n, ok)
				}
				if ok {
					inForce[n], order = g, append(order, n)
				}
			},
			"release": func(t *rapid.T) {
				if len(order) == 0 {
					t.Skip("none is in force")
				}
				i := rapid.IntRange(0, len(order)-1).Draw(t, "which")
				n := order[i]
				order = append(order[:i], order[i+1:]...)
				s.release(n)
				delete(inForce, n)
				over = append(over, n)
			},
			"": func(t *rapid.T) {
				for n, g := range inForce {
					if s.find(n) != g {
						t.Fatalf("number %#x finds another grant", n)
					}
				}
				for _, n := range append(over, uint32(len(s.entries)), 1<<slotBits-1, 1<<31) {
					if s.find(n) != inForce[n] {
						t.Fatalf("number %#x is not in force, and finds a grant", n)
					}
				}
			},
		})
	})
}

// A slot rests while slotsSpare others are released, whatever is in force meanwhile.
func TestSlotsRest(t *testing.T) {
	for _, force := range []int{1, 2, 700, 3000} {
		var s slots
		released := map[uint32]int{} // of a slot: how many were released before
		var inForce []uint32
		n := 0
		for range 20000 {
			x, ok := s.take(&grant{})
			if !ok {
				t.Fatal("there is no number")
			}
			if at, again := released[x&(1<<slotBits-1)]; again && n-at < slotsSpare {
				t.Fatalf("with %d in force: slot %d is taken again after %d others were released", force, x&(1<<slotBits-1), n-at)
			}
			if inForce = append(inForce, x); len(inForce) == force {
				s.release(inForce[0])
				n++
				released[inForce[0]&(1<<slotBits-1)] = n
				inForce = inForce[1:]
			}
		}
		if len(s.entries) > force+slotsSpare+1 {
			t.Errorf("with %d in force there are %d slots, want at most %d", force, len(s.entries), force+slotsSpare+1)
		}
	}
}

// A number comes again when its slot has had all of its lives, each after a rest.
func TestNumbersComeAgainLate(t *testing.T) {
	var s slots
	first, _ := s.take(&grant{})
	s.release(first)
	n := 1
	for ; ; n++ {
		x, _ := s.take(&grant{})
		if x == first {
			break
		}
		s.release(x)
	}
	if want := slotsSpare << lifeBits; n < want {
		t.Errorf("the number came again after %d, want %d or more", n, want)
	}
	if s.find(first) == nil {
		t.Error("the number is in force again, and finds nothing")
	}
}

func TestSlotsHaveALimit(t *testing.T) {
	var s slots
	g := &grant{}
	seen := make([]bool, 1<<slotBits)
	for i := range 1 << slotBits {
		n, ok := s.take(g)
		if !ok || n >= 1<<slotBits || seen[n] {
			t.Fatalf("number %d is %#x, %v", i, n, ok)
		}
		seen[n] = true
	}
	if n, ok := s.take(g); ok {
		t.Fatalf("one more is %#x", n)
	}
	s.release(77)
	if n, ok := s.take(g); !ok || n != 1<<slotBits|77 || s.find(n) != g || s.find(77) != nil {
		t.Errorf("the one that was released comes as %#x, %v", n, ok)
	}
}
