package kv

import (
	"cmp"
	"slices"
)

// span is a range of heads that the same engines hold. No holder: a hole.
type span struct {
	heads   HeadRange
	holders []int // indices into Instance.Engines, in roster order
}

// class is the layers of a component that the same engines hold.
type class struct {
	layers []int
	spans  []span // ascending; together they are all heads of the component
}

// holding is who holds what of one component within one DP rank: every layer of
// the component is in exactly one class.
type holding []class

// perDP is how many engines a DP rank has.
func (i *Instance) perDP() int { return i.PP * i.CP * i.TP }

// parts is how many parts of the rows of a component CP ranks hold: 1 if each holds
// all.
func (i *Instance) parts(c *Component) int {
	if i.Split == Copies || c.Kind == Slot {
		return 1
	}
	return i.CP
}

// holdings finds who holds a part of component c within DP rank dp of a valid
// instance.
func (i *Instance) holdings(dp int, c *Component, part int) holding {
	engines := make([][]int, len(c.Layers))
	heads := make(map[int]HeadRange)
	for e := dp * i.perDP(); e < (dp+1)*i.perDP(); e++ {
		s := i.Engines[e].shard(c.Name)
		if s == nil || i.parts(c) > 1 && i.Engines[e].Rank.CP != part {
			continue
		}
		heads[e] = s.Heads
		for _, t := range s.Layers {
			if n, ok := slices.BinarySearch(c.Layers, t.Layer); ok {
				engines[n] = append(engines[n], e)
			}
		}
	}
	var h holding
	var of [][]int // of each class: the engines that hold all of it
	for n, layer := range c.Layers {
		k := slices.IndexFunc(of, func(o []int) bool { return slices.Equal(o, engines[n]) })
		if k < 0 {
			k = len(h)
			of = append(of, engines[n])
			h = append(h, class{spans: spans(c.Heads, engines[n], heads)})
		}
		h[k].layers = append(h[k].layers, layer)
	}
	return h
}

// spans cuts [0, total) where the set of holders changes.
func spans(total int, engines []int, heads map[int]HeadRange) []span {
	cuts := []int{0, total}
	for _, e := range engines {
		cuts = append(cuts, heads[e].Low, heads[e].High)
	}
	slices.Sort(cuts)
	cuts = slices.Compact(cuts)
	var out []span
	for n := 0; n+1 < len(cuts); n++ {
		s := span{heads: HeadRange{cuts[n], cuts[n+1]}}
		for _, e := range engines {
			if heads[e].Low <= s.heads.Low && s.heads.High <= heads[e].High {
				s.holders = append(s.holders, e)
			}
		}
		if k := len(out) - 1; k >= 0 && slices.Equal(out[k].holders, s.holders) {
			out[k].heads.High = s.heads.High
			continue
		}
		out = append(out, s)
	}
	return out
}

// holes are the boxes of a component that nobody holds.
func (h holding) holes() []Box {
	var out []Box
	for _, c := range h {
		for _, s := range c.spans {
			if len(s.holders) == 0 {
				out = append(out, Box{Layers: c.layers, Heads: s.heads})
			}
		}
	}
	slices.SortFunc(out, func(a, b Box) int {
		return cmp.Or(cmp.Compare(a.Heads.Low, b.Heads.Low), slices.Compare(a.Layers, b.Layers))
	})
	return out
}

// shard is what the engine holds of a component, nil for nothing.
func (e *Engine) shard(component string) *Shard {
	for i := range e.Shards {
		if e.Shards[i].Component == component {
			return &e.Shards[i]
		}
	}
	return nil
}

// intersect is the range of heads in both.
func (h HeadRange) intersect(o HeadRange) (HeadRange, bool) {
	r := HeadRange{max(h.Low, o.Low), min(h.High, o.High)}
	return r, r.Low < r.High
}

// layersIn are those of the ascending layers that the shard has, ascending.
func (s *Shard) layersIn(layers []int) []int {
	out := make([]int, 0, min(len(layers), len(s.Layers)))
	n := 0
	for _, l := range layers {
		for n < len(s.Layers) && s.Layers[n].Layer < l {
			n++
		}
		if n < len(s.Layers) && s.Layers[n].Layer == l {
			out = append(out, l)
		}
	}
	return out
}
