package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
)

// plot is a picture: panels below one another, that share what is on their x axis.
type plot struct {
	title  string
	note   string // below all: how it was measured
	panels []panel
}

// panel is a diagram of some series. The x axis is logarithmic: sizes of blocks and
// numbers of rooms are powers of two, or nearly.
type panel struct {
	x, y   string // what is on the axes, with the unit
	xText  func(uint64) string
	log    bool // the y axis is logarithmic; otherwise it begins at 0
	series []series
}

type series struct {
	name   string
	dashed bool // a limit, or what is compared with
	points []point
}

// point is a median, with the least and the most of the rounds where those are known.
type point struct {
	x         uint64
	y         float64
	low, high float64 // 0, 0: not known
}

// pointOf is the middle of some rounds. of is what a round has.
func pointOf[T any](x uint64, y float64, rounds []T, of func(*T) float64) point {
	p := point{x: x, y: y}
	for i := range rounds {
		v := of(&rounds[i])
		if i == 0 {
			p.low = v
		}
		p.low, p.high = min(p.low, v), max(p.high, v)
	}
	return p
}

// The picture in pixels. A panel is a legend above a square of data.
const (
	plotWidth   = 760
	plotLeft    = 86
	plotRight   = 24
	plotHeader  = 40 // title
	plotFooter  = 34 // note
	panelHeight = 280
	panelBelow  = 48 // numbers and name of the x axis
	legendRow   = 20
	letterWidth = 6.8 // of the font, about: for what must not touch
)

// plotColors can be told apart by most, also in grey.
var plotColors = []string{"#0b6e99", "#d1495b", "#66a182", "#8d6a9f", "#edae49"}

// write writes the picture as SVG.
func (p *plot) write(w io.Writer) error {
	height := plotHeader + plotFooter
	var drawings []drawing
	for i := range p.panels {
		d := drawing{panel: &p.panels[i], xs: p.panels[i].positions(), scale: p.panels[i].scale()}
		d.top = height - plotFooter + d.legendHeight()
		drawings = append(drawings, d)
		height = d.top + panelHeight + panelBelow + plotFooter
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13" fill="#222">`+"\n", plotWidth, height)
	fmt.Fprintf(&b, "<title>%s</title>\n", escaped(p.title))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", plotWidth, height)
	fmt.Fprintf(&b, `<text x="%d" y="26" font-size="16">%s</text>`+"\n", plotLeft, escaped(p.title))
	for i := range drawings {
		drawings[i].draw(&b)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d" font-size="12" fill="#555">%s</text>`+"\n", plotLeft, height-14, escaped(p.note))
	b.WriteString("</svg>\n")
	_, err := w.Write(b.Bytes())
	return err
}

// drawing is a panel at its place.
type drawing struct {
	*panel
	top   int      // of its data
	xs    []uint64 // of all series, ascending
	scale scale
}

// positions are the x of all series, ascending.
func (p *panel) positions() (all []uint64) {
	for _, s := range p.series {
		for _, at := range s.points {
			all = append(all, at.x)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// scale is that of the y axis: what is drawn of all series is within.
func (p *panel) scale() scale {
	low, high := 0.0, 0.0
	for _, s := range p.series {
		for _, at := range s.points {
			for _, v := range []float64{at.y, at.low, at.high} {
				if v > 0 && (low == 0 || v < low) {
					low = v
				}
				high = max(high, v)
			}
		}
	}
	if p.log {
		return logarithmic(low, high)
	}
	return linear(high)
}

func (d *drawing) draw(b *bytes.Buffer) {
	d.axes(b)
	for i := range d.series {
		d.line(b, &d.series[i], plotColors[i%len(plotColors)])
	}
	d.legend(b)
}

// axes draws the grid, its numbers and the names of the axes.
func (d *drawing) axes(b *bytes.Buffer) {
	for _, v := range d.scale.ticks {
		y := d.y(v)
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`+"\n", plotLeft, y, plotWidth-plotRight, y)
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">%s</text>`+"\n", plotLeft-8, y+4, tickText(v))
	}
	bottom, free := d.top+panelHeight, 0.0 // free is where the next number may begin
	for _, at := range d.xs {
		x, text := d.x(at), d.xText(at)
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#eee"/>`+"\n", x, d.top, x, bottom)
		if half := letterWidth * float64(len(text)) / 2; x-half >= free {
			free = x + half + letterWidth
			fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x, bottom+18, escaped(text))
		}
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", plotWidth-plotRight, bottom+38, escaped(d.panel.x))
	name := d.panel.y
	if d.log {
		name += ", logarithmic"
	}
	fmt.Fprintf(b, `<text transform="translate(16 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", d.top+panelHeight/2, escaped(name))
}

// line draws one series: medians, and from the least to the most of the rounds.
func (d *drawing) line(b *bytes.Buffer, s *series, color string) {
	points := slices.DeleteFunc(slices.Clone(s.points), func(p point) bool { return d.log && p.y <= 0 })
	fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="2"%s points="`, color, s.dash())
	for k, at := range points {
		if k > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(b, "%.1f,%.1f", d.x(at.x), d.y(at.y))
	}
	b.WriteString(`"/>` + "\n")
	for _, at := range points {
		x := d.x(at.x)
		if at.low < at.high {
			fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s"/>`+"\n", x, d.y(at.low), x, d.y(at.high), color)
		}
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3.5" fill="%s"><title>%s, %s: %s %s</title></circle>`+"\n",
			x, d.y(at.y), color, escaped(s.name), escaped(d.xText(at.x)), humanRate(at.y), escaped(d.panel.y))
	}
}

func (s *series) dash() string {
	if s.dashed {
		return ` stroke-dasharray="6 4"`
	}
	return ""
}

// entries calls do with where each entry of the legend stands, and is their rows.
func (d *drawing) entries(do func(s *series, color string, x float64, row int)) (rows int) {
	x, row := float64(plotLeft), 0
	for i := range d.series {
		s := &d.series[i]
		width := 32 + letterWidth*float64(len(s.name)) + 20
		if x > plotLeft && x+width > plotWidth-plotRight {
			x, row = plotLeft, row+1
		}
		do(s, plotColors[i%len(plotColors)], x, row)
		x += width
	}
	return row + 1
}

func (d *drawing) legendHeight() int {
	return 12 + legendRow*d.entries(func(*series, string, float64, int) {})
}

func (d *drawing) legend(b *bytes.Buffer) {
	top := d.top - d.legendHeight() + 12
	d.entries(func(s *series, color string, x float64, row int) {
		y := top + legendRow*row
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s" stroke-width="2"%s/>`+"\n", x, y, x+26, y, color, s.dash())
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%d" r="3.5" fill="%s"/>`+"\n", x+13, y, color)
		fmt.Fprintf(b, `<text x="%.1f" y="%d">%s</text>`+"\n", x+32, y+4, escaped(s.name))
	})
}

func escaped(s string) string {
	var b bytes.Buffer
	_ = xml.EscapeText(&b, []byte(s)) // a buffer does not fail
	return b.String()
}
