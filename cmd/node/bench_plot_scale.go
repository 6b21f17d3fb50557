package main

import (
	"math"
	"strconv"
)

// scale is a y axis: where a value stands, and what is written beside it.
type scale struct {
	of    func(float64) float64 // 0 at the bottom, 1 at the top
	ticks []float64
}

// ticksMax is how many numbers a logarithmic axis has beside it at most, unless it has
// more powers of ten.
const ticksMax = 9

// linear is from 0 to at least high, with a line at each 1, 2 or 5 times a power of ten
// so that there are some five.
func linear(high float64) scale {
	step := 1.0
	if high > 0 {
		step = ceil125(high / 5)
	}
	n := max(1, math.Ceil(high/step-1e-9))
	s := scale{of: func(v float64) float64 { return v / (n * step) }}
	for i := 0.0; i <= n; i++ {
		s.ticks = append(s.ticks, i*step)
	}
	return s
}

// logarithmic is from at most low to at least high, which are more than 0 if anything
// is drawn; both ends are 1, 2 or 5 times a power of ten.
func logarithmic(low, high float64) scale {
	if low <= 0 || high <= 0 {
		low, high = 1, 10
	}
	bottom, top := floor125(low), ceil125(high)
	if bottom == top {
		top = ceil125(1.01 * bottom)
	}
	s := scale{of: func(v float64) float64 {
		return math.Log10(max(v, bottom)/bottom) / math.Log10(top/bottom)
	}}
	var tens []float64
	for v := bottom; v <= 1.001*top; v = ceil125(1.01 * v) {
		s.ticks = append(s.ticks, v)
		if e := math.Log10(v); math.Abs(e-math.Round(e)) < 1e-9 {
			tens = append(tens, v)
		}
	}
	if len(s.ticks) > ticksMax {
		s.ticks = tens
	}
	return s
}

// ceil125 is the least 1, 2 or 5 times a power of ten that is not below v.
func ceil125(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 5} {
		if n*power >= v*(1-1e-9) {
			return n * power
		}
	}
	return 10 * power
}

// floor125 is the greatest 1, 2 or 5 times a power of ten that is not above v.
func floor125(v float64) float64 { return 1 / ceil125(1/v) }

// x is where a position stands.
func (d *drawing) x(at uint64) float64 {
	const margin = 30 // numbers are as wide, and curves do not begin at the axis
	low, high := math.Log2(float64(d.xs[0])), math.Log2(float64(d.xs[len(d.xs)-1]))
	inner := float64(plotWidth - plotLeft - plotRight - 2*margin)
	if low == high {
		return plotLeft + margin + inner/2
	}
	return plotLeft + margin + inner*(math.Log2(float64(at))-low)/(high-low)
}

func (d *drawing) y(v float64) float64 {
	return float64(d.top) + panelHeight*(1-d.scale.of(v))
}

// tickText is a number of an axis.
func tickText(v float64) string {
	if v >= 1000 && v == math.Trunc(v) && v < 1e15 {
		return grouped(uint64(v))
	}
	return strconv.FormatFloat(v, 'g', 6, 64)
}
