package verbs

import "testing"

// A write goes by what is as near as any stripe that is there: nearness to this side's
// memory first, then to the peer's.
func TestStripesThatMayCarryAWrite(t *testing.T) {
	type end struct {
		card, rail int
		live       bool
	}
	square := []end{{0, 0, true}, {0, 1, true}, {1, 0, true}, {1, 1, true}}
	for _, c := range []struct {
		name          string
		stripes       []end
		local, remote uint64
		want          []bool
	}{
		{"all are near", square, 0b11, 0b11, []bool{true, true, true, true}},
		{"one is near to both", square, 0b01, 0b10, []bool{false, true, false, false}},
		{"of this side one", square, 0b10, 0b11, []bool{false, false, true, true}},
		{"of the peer one", square, 0b11, 0b01, []bool{true, false, true, false}},
		{"rails by number: near to one side only", []end{{0, 0, true}, {1, 1, true}}, 0b01, 0b10, []bool{true, false}},
		{"none is near to this side", []end{{1, 0, true}, {1, 1, true}}, 0b01, 0b10, []bool{false, true}},
		{"none is near to either", []end{{1, 0, true}, {2, 0, true}}, 0b001, 0b10, []bool{true, true}},
		{"the nearest is lost", []end{{0, 0, false}, {0, 1, true}, {1, 0, true}}, 0b01, 0b01, []bool{true, true, false}},
		{"all near ones are lost", []end{{0, 0, false}, {0, 1, false}, {1, 0, true}, {1, 1, true}}, 0b01, 0b01, []bool{true, true, true, false}},
		{"a card beyond 32", []end{{62, 0, true}, {0, 62, true}}, 1 << 62, 1 << 62, []bool{true, false}},
	} {
		s := &session{}
		for _, e := range c.stripes {
			s.stripes = append(s.stripes, &stripe{session: s, card: &card{index: e.card}, rail: e.rail, live: e.live})
		}
		w := &write{local: c.local, remote: c.remote}
		for i, st := range s.stripes {
			if got := s.mayCarry(st, w); got != c.want[i] {
				t.Errorf("%s: stripe %d from card %d to rail %d: got %v", c.name, i, st.card.index, st.rail, got)
			}
		}
	}
}
