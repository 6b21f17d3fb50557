package kv

import "strings"

// Models are the models that are known by name, from the configurations that they
// are published with. The caller owns what it gets. The cache is of the type that
// the weights come with, unless the name says another: an engine that caches in
// fp8 has components of half the bytes, and needs a deployment file.
func Models() []Model {
	var out []Model
	for _, family := range [][]Model{headModels(), windowModels(), latentModels(), compressedModels(), stateModels()} {
		for _, m := range family {
			out = append(out, m)
			for _, name := range sameCache[m.ID] {
				out = append(out, Model{ID: name, Components: cloneComponents(m.Components)})
			}
		}
	}
	return out
}

// sameCache is the names of models that cache what another one does. They are
// models of their own: their weights differ, so that they do not pair.
var sameCache = map[string][]string{
	"llama-3.1-70b": {"llama-3.3-70b"},
	"glm-4.5":       {"glm-4.6", "glm-4.7"},
	"minimax-m2":    {"minimax-m2.5", "minimax-m2.7"},
	"deepseek-v3":   {"deepseek-r1", "deepseek-v3.1"},
	"kimi-k2":       {"kimi-k2.5"},
	"glm-5":         {"glm-5.1"},
}

// LookupModel finds a model by its name, whatever its case.
func LookupModel(name string) (Model, bool) {
	for _, m := range Models() {
		if strings.EqualFold(m.ID, name) {
			return m, true
		}
	}
	return Model{}, false
}

// TokenBytes is what each token adds to a request for good: the components that
// keep all tokens, of compressed rows the part that is one token's. Windows and
// state are not in it, as they do not grow; optional components are not, as they
// belong to a draft model. It is exact where rows stand for a power of two.
func (m *Model) TokenBytes() float64 {
	n := 0.0
	for i := range m.Components {
		c := &m.Components[i]
		if c.Kind == Paged && c.Window == 0 && !c.Optional {
			n += float64(c.rowBytes()) / float64(c.rowTokens())
		}
	}
	return n
}

// RequestBytes is what a request of a length takes in the whole model, each byte
// counted once: all rows that are complete, the last tokens of the windows (not
// the rest of their pages), and the state. Optional components are not counted.
func (m *Model) RequestBytes(length uint64) uint64 {
	n := uint64(0)
	for i := range m.Components {
		c := &m.Components[i]
		if c.Optional {
			continue
		}
		q := uint64(c.rowTokens())
		switch {
		case c.Kind == Slot && c.needed(length):
			n += uint64(c.slotRows()) * c.rowBytes()
		case c.Kind == Paged && c.Window > 0:
			n += (length/q - (length-min(length, c.Window))/q) * c.rowBytes()
		case c.Kind == Paged:
			n += length / q * c.rowBytes()
		}
	}
	return n
}

// rowBytes is a row of the component in all its layers and heads.
func (c *Component) rowBytes() uint64 {
	return uint64(len(c.Layers)) * uint64(c.Heads) * c.HeadBytes
}
