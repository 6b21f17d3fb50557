package kv

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Side is one of the two sides of a pair.
type Side uint8

const (
	Prefill Side = iota + 1
	Decode
)

func (s Side) String() string {
	switch s {
	case Prefill:
		return "prefill"
	case Decode:
		return "decode"
	}
	return "side " + strconv.Itoa(int(s))
}

// Reason is one cause why two deployments do not work together, or one does not
// work at all. Prefill and Decode are the values of both sides, "" for none.
type Reason struct {
	Field     string
	Component string
	Prefill   string
	Decode    string
	Text      string

	// value is what a reason about one instance found, until At says which side
	// that instance is.
	value string
}

func (r Reason) Error() string { return r.Text }

// At says on which side the instance stands that a reason from Validate or from
// Deployment.Instance is about.
func (r Reason) At(s Side) Reason {
	switch s {
	case Prefill:
		r.Prefill = r.value
	case Decode:
		r.Decode = r.value
	}
	r.Text = s.String() + ": " + r.Text
	return r
}

// sortReasons gives reasons an order of their own: by field, component and text.
// What is said twice is said once.
func sortReasons(rs []Reason) []Reason {
	slices.SortStableFunc(rs, func(a, b Reason) int {
		return cmp.Or(
			cmp.Compare(a.Field, b.Field),
			cmp.Compare(a.Component, b.Component),
			cmp.Compare(a.Text, b.Text),
			cmp.Compare(a.Prefill, b.Prefill),
			cmp.Compare(a.Decode, b.Decode),
		)
	})
	return slices.Compact(rs)
}

// FormatLayers writes ascending layers as people do: "0-31,40". "none" for none.
func FormatLayers(layers []int) string {
	if len(layers) == 0 {
		return "none"
	}
	var b strings.Builder
	for i := 0; i < len(layers); {
		j := i
		for j+1 < len(layers) && layers[j+1] == layers[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(layers[i]))
		if j > i {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(layers[j]))
		}
		i = j + 1
	}
	return b.String()
}
