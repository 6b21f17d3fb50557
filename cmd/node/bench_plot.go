package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"slices"
)

// plot is a picture of GB/s by the size of blocks.
type plot struct {
	title  string
	series []series
}

type series struct {
	name   string
	dashed bool
	points []point
}

type point struct {
	block uint64
	rate  float64 // GB/s
}

// The picture in pixels: a square of data between margins.
const (
	plotWidth, plotHeight = 760, 440
	plotLeft, plotRight   = 64, 24
	plotTop, plotBottom   = 72, 56
)

// plotColors can be told apart by most, also in grey.
var plotColors = []string{"#0b6e99", "#d1495b", "#66a182", "#8d6a9f", "#edae49"}

// write writes the picture as SVG.
func (p *plot) write(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13" fill="#222">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, "<title>%s</title>\n", escaped(p.title))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<text x="%d" y="26" font-size="16">%s</text>`+"\n", plotLeft, escaped(p.title))
	p.axes(&b)
	for i := range p.series {
		p.line(&b, i)
	}
	b.WriteString("</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}

// axes draws the grid, its numbers and the names of the axes.
func (p *plot) axes(b *bytes.Buffer) {
	step := p.step()
	for v := 0.0; v <= p.top()+step/2; v += step {
		y := p.y(v)
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`+"\n", plotLeft, y, plotWidth-plotRight, y)
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">%g</text>`+"\n", plotLeft-8, y+4, v)
	}
	for _, block := range p.blocks() {
		x := p.x(block)
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#eee"/>`+"\n", x, plotTop, x, plotHeight-plotBottom)
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x, plotHeight-plotBottom+20, humanBytes(block))
	}
	fmt.Fprintf(b, `<text x="%d" y="%d">GB/s</text>`+"\n", plotLeft-44, plotTop-14)
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">block</text>`+"\n", plotWidth-plotRight, plotHeight-14)
}

// line draws one series and its entry in the legend.
func (p *plot) line(b *bytes.Buffer, i int) {
	s := &p.series[i]
	color, dash := plotColors[i%len(plotColors)], ""
	if s.dashed {
		dash = ` stroke-dasharray="6 4"`
	}
	fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="2"%s points="`, color, dash)
	for k, at := range s.points {
		if k > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(b, "%.1f,%.1f", p.x(at.block), p.y(at.rate))
	}
	b.WriteString(`"/>` + "\n")
	for _, at := range s.points {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"><title>%s %s: %s GB/s</title></circle>`+"\n",
			p.x(at.block), p.y(at.rate), color, escaped(s.name), humanBytes(at.block), humanRate(at.rate))
	}
	x := plotLeft + 40 + 150*i
	fmt.Fprintf(b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="2"%s/>`+"\n", x, plotTop-18, x+26, plotTop-18, color, dash)
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", x+32, plotTop-14, escaped(s.name))
}

// blocks are the sizes of all series, ascending.
func (p *plot) blocks() (all []uint64) {
	for _, s := range p.series {
		for _, at := range s.points {
			all = append(all, at.block)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// x is where a size stands: sizes are powers of two or nearly, so by the logarithm.
func (p *plot) x(block uint64) float64 {
	all := p.blocks()
	low, high := math.Log2(float64(all[0])), math.Log2(float64(all[len(all)-1]))
	inner := float64(plotWidth - plotLeft - plotRight - 60)
	if low == high {
		return plotLeft + 30 + inner/2
	}
	return plotLeft + 30 + inner*(math.Log2(float64(block))-low)/(high-low)
}

func (p *plot) y(rate float64) float64 {
	return plotHeight - plotBottom - (plotHeight-plotTop-plotBottom)*rate/p.top()
}

// step is the distance of two lines of the grid: 1, 2 or 5 times a power of ten, for
// some five of them.
func (p *plot) step() float64 {
	most := 0.0
	for _, s := range p.series {
		for _, at := range s.points {
			most = max(most, at.rate)
		}
	}
	if most <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(most/5)))
	for _, n := range []float64{1, 2, 5} {
		if n*power*5 >= most {
			return n * power
		}
	}
	return 10 * power
}

// top is the upper end of the grid.
func (p *plot) top() float64 {
	step, most := p.step(), 0.0
	for _, s := range p.series {
		for _, at := range s.points {
			most = max(most, at.rate)
		}
	}
	return step * max(1, math.Ceil(most/step))
}

func escaped(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a buffer does not fail
	return b.String()
}
