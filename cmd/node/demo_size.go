package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"kvferry/kv"
)

const (
	// demoBytes is what a demo moves if nothing says otherwise: more than 4 GiB
	// with a margin, and some seconds of the slowest machine that builds this.
	demoBytes = 5 << 30
	// demoBytesMin is what it moves at least, where the number of rooms is open.
	demoBytesMin = 9 << 29

	// demoMemoryMax is more memory than helps: filling pages for the first time
	// takes longer than using them again.
	demoMemoryMax = 8 << 30
	// demoMemoryShare of what is free is for pools; the rest is for sockets and
	// for what else the machine does.
	demoMemoryShare = 0.5

	demoMetaRows  = 256 // rooms of one engine at once
	demoMetaBytes = 256 // a metadata row: some sampling state and the first token

	// demoSlotsMax is the slots of an engine whose model has state: rooms at once.
	// They may take a quarter of what pools may.
	demoSlotsMax  = 64
	demoSlotShare = 4
)

// sized is a demo whose sizes are settled.
type sized struct {
	flags           *demoFlags
	prefill, decode *kv.Deployment
	fit             *kv.Fit
	prefillPages    uint32
	decodePages     uint32
	rooms           []demoRoom
	chunk           uint64
	notes           []string // what was scaled, and why
}

// sizeDemo settles the rooms, the layers and the pools.
func sizeDemo(f *demoFlags, prefill, decode *kv.Deployment, memory uint64) (*sized, error) {
	full := kv.MatchDeployments(prefill, decode, 1, 1)
	if !full.Compatible() {
		var errs []error
		for _, r := range full.Reasons() {
			errs = append(errs, r)
		}
		return nil, &exitError{exitImpossible, errors.Join(errs...)}
	}
	s := &sized{flags: f, chunk: max(16, uint64(math.Round(chunkTokens*min(1, f.scale))))}
	n := f.rooms
	if n == 0 && f.trace == "" {
		n = madeRooms
	}
	var err error
	for {
		if s.rooms, err = readRooms(f.trace, n, f.scale, f.seed); err != nil {
			return nil, malformed("%w", err)
		}
		if err = s.settle(prefill, decode, memory); err != nil {
			return nil, err
		}
		if f.rooms != 0 || f.trace != "" || s.moved() >= demoBytesMin || n >= roomsMax/2 {
			break
		}
		n += n/2 + 1 // a small model: more rooms, until there is something to see
	}
	if f.scale != 1 {
		s.notes = append(s.notes, fmt.Sprintf("token counts and chunks x %v: chunks of %d tokens", f.scale, s.chunk))
	}
	pace(s.rooms, f.rate)
	return s, nil
}

// settle chooses the layers and the pools for the rooms.
func (s *sized) settle(prefill, decode *kv.Deployment, memory uint64) error {
	s.notes = nil
	budget := min(uint64(float64(memory)*demoMemoryShare), demoMemoryMax)
	all := modelLayers(prefill)
	least := max(prefill.PP, decode.PP)
	layers, why := s.flags.layers, ""
	if layers == 0 {
		layers = len(all)
		s.cut(prefill, decode, layers)
		if total := s.moved(); total > demoBytes {
			layers = max(least, int(math.Ceil(float64(layers)*demoBytes/float64(total))))
			why = fmt.Sprintf("the rooms would move %s", humanBytes(total))
		}
		for layers > least && s.cut(prefill, decode, layers) && s.need() > budget {
			layers--
			why = fmt.Sprintf("the pools may take %s of the memory that is free", humanBytes(budget))
		}
	}
	if layers < least || layers > len(all) {
		return malformed("--layers is %d, want %d (one for each stage) to %d", layers, least, len(all))
	}
	s.cut(prefill, decode, layers)
	s.giveSlots(budget)
	if s.need() > budget {
		return malformed("the largest request, %d tokens of %d layers, needs %s in pools, and %s may be used: ask for a smaller --scale or fewer --layers",
			s.largest(), layers, humanBytes(s.need()), humanBytes(budget))
	}
	if layers < len(all) {
		if why == "" {
			why = "asked for with --layers"
		}
		s.notes = append(s.notes, fmt.Sprintf("layers %d -> %d: %s", len(all), layers, why))
	}
	return s.pools(budget)
}

// cut gives both sides the first so many layers of the model.
func (s *sized) cut(prefill, decode *kv.Deployment, layers int) bool {
	s.prefill, s.decode = cutLayers(prefill, layers), cutLayers(decode, layers)
	return true
}

// giveSlots gives each engine slots, if the model has state.
func (s *sized) giveSlots(budget uint64) {
	each := slotBytes(s.prefill) + uint64(s.flags.decodeInstances)*slotBytes(s.decode)
	if each == 0 {
		return
	}
	slots := uint32(max(1, min(demoSlotsMax, budget/demoSlotShare/each)))
	s.prefill.Slots, s.decode.Slots = slots, slots
}

// pools gives each engine the pages of the largest room and of some more.
func (s *sized) pools(budget uint64) error {
	perToken := s.tokenBytes()
	mean := uint64(0)
	for _, r := range s.rooms {
		mean += r.tokens / uint64(len(s.rooms))
	}
	tokens := max(s.largest(), min(s.largest()+8*mean, (budget-min(budget, s.slotBytes()))/max(1, perToken)))
	pages := func(d *kv.Deployment) uint32 {
		return uint32(min(math.MaxInt32, tokens/uint64(d.PageTokens)+2))
	}
	s.prefillPages, s.decodePages = pages(s.prefill), pages(s.decode)
	s.fit = kv.MatchDeployments(s.prefill, s.decode, s.prefillPages, s.decodePages)
	if !s.fit.Compatible() {
		return malformed("with fewer layers: %w", s.fit.Reasons()[0])
	}
	note := fmt.Sprintf("pools of %s tokens", grouped(tokens))
	if s.slotBytes() > 0 {
		note += fmt.Sprintf(" and %d slots", s.prefill.Slots)
	}
	s.notes = append(s.notes, fmt.Sprintf("%s: %s for all engines", note, humanBytes(tokens*perToken+s.slotBytes())))
	return nil
}

// slotBytes is what the slots take in all engines.
func (s *sized) slotBytes() uint64 {
	return uint64(s.prefill.Slots)*slotBytes(s.prefill) + uint64(s.decode.Slots)*uint64(s.flags.decodeInstances)*slotBytes(s.decode)
}

func (s *sized) largest() uint64 {
	n := uint64(0)
	for _, r := range s.rooms {
		n = max(n, r.tokens)
	}
	return n
}

// need is the least memory that the largest room needs, in all engines.
func (s *sized) need() uint64 { return s.largest()*s.tokenBytes() + s.slotBytes() }

// tokenBytes is what one token of pool takes in all engines together.
func (s *sized) tokenBytes() uint64 {
	return instanceBytes(s.prefill) + uint64(s.flags.decodeInstances)*instanceBytes(s.decode)
}

// moved is what the rooms move with the layers as they are.
func (s *sized) moved() uint64 {
	i, reasons := s.decode.Instance(1)
	if len(reasons) > 0 {
		return 0 // pools refuses it, with the reasons
	}
	total := uint64(0)
	for _, r := range s.rooms {
		total += i.RequestBytes(r.prefix, r.tokens)
	}
	return total
}

// instanceBytes is what a token takes in the pools of the engines of an instance
// together.
func instanceBytes(d *kv.Deployment) uint64 {
	pages := func(n uint32) uint64 {
		i, reasons := d.Instance(n)
		if len(reasons) > 0 {
			return 0 // pools refuses it, with the reasons
		}
		return regionBytes(i)
	}
	return (pages(2) - pages(1)) / uint64(d.PageTokens)
}

// slotBytes is what a slot takes in the engines of an instance together.
func slotBytes(d *kv.Deployment) uint64 {
	slots := func(n uint32) uint64 {
		of := *d
		of.Slots = n
		i, reasons := of.Instance(1)
		if len(reasons) > 0 {
			return 0
		}
		return regionBytes(i)
	}
	return slots(2) - slots(1)
}

func regionBytes(i *kv.Instance) uint64 {
	n := uint64(0)
	for e := range i.Engines {
		for _, bytes := range i.Engines[e].RegionBytes {
			n += bytes
		}
	}
	return n
}

// modelLayers is the layers that any component has, ascending.
func modelLayers(d *kv.Deployment) []int {
	var all []int
	for _, c := range d.Model.Components {
		all = append(all, c.Layers...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// cutLayers is the deployment of the first n layers of the model, with stages cut
// down from the largest. A component without a layer left is left out.
func cutLayers(d *kv.Deployment, n int) *kv.Deployment {
	out := *d
	out.MetaRows, out.MetaRowBytes = demoMetaRows, demoMetaBytes
	all := modelLayers(d)
	if n >= len(all) {
		return &out
	}
	out.Model.Components = nil
	for _, c := range d.Model.Components {
		kept, _ := slices.BinarySearch(c.Layers, all[n])
		if c.Layers = c.Layers[:kept]; kept > 0 {
			out.Model.Components = append(out.Model.Components, c)
		}
	}
	if len(d.PPLayers) > 0 {
		out.PPLayers = shrinkStages(d.PPLayers, n)
	}
	return &out
}

// shrinkStages cuts stages down to n layers, at least one each.
func shrinkStages(stages []int, n int) []int {
	out, left := slices.Clone(stages), -n
	for _, l := range stages {
		left += l
	}
	for ; left > 0; left-- {
		largest := 0 // the last of them: the earlier stages keep the rest
		for i := range out {
			if out[i] >= out[largest] {
				largest = i
			}
		}
		out[largest]--
	}
	return out
}

// freeMemory is what can be used now: of the machine, or of the container if it
// has a limit.
func freeMemory() (uint64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	free, err := memAvailable(string(text))
	if err != nil {
		return 0, err
	}
	// Without a limit, or with the limits of another kind of container, one of
	// these does not read as a number.
	limit, limitErr := readNumber("/sys/fs/cgroup/memory.max")
	used, usedErr := readNumber("/sys/fs/cgroup/memory.current")
	if limitErr == nil && usedErr == nil {
		free = min(free, limit-min(used, limit))
	}
	return free, nil
}

func readNumber(file string) (uint64, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
}

// memAvailable reads /proc/meminfo.
func memAvailable(text string) (uint64, error) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/meminfo: MemAvailable is %q, want a number of kB", rest)
			}
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo: MemAvailable is missing")
}
