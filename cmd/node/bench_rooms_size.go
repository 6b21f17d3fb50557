package main

import (
	"slices"

	"kvferry/actors"
	"kvferry/kv"
)

// benchModel is a model of which a page is some KiB: what is measured is the rooms.
func benchModel() kv.Model {
	of := func(name string) kv.Component {
		return kv.Component{Name: name, Kind: kv.Paged, Layers: []int{0, 1}, Heads: 1, HeadBytes: 256, DType: kv.BF16}
	}
	return kv.Model{ID: "bench", Revision: "1", Components: []kv.Component{of("k"), of("v")}}
}

// roomsSize is what the nodes are made with, and what a room is.
type roomsSize struct {
	deployment *kv.Deployment
	pages      uint32 // of a pool
	rooms      int    // that an engine may have open
	scatter    bool   // every other page is held
	tokens     uint64 // of a room
	bytes      uint64 // of a room
	block      uint64 // of a page in one tensor
}

// size is the deployment that the flags ask for, or what is wrong with it.
func (f *benchRoomsFlags) size() (*roomsSize, error) {
	s := &roomsSize{scatter: f.bytes != ""}
	name, page := f.model, f.page
	if f.bytes != "" && name == "" {
		if name = bytesModel; page == 0 {
			page = bytesPage
		}
	}
	if page == 0 {
		page = benchRoomsPage
	}
	model, ok := benchModel(), true
	if name != "" {
		model, ok = kv.LookupModel(name)
	}
	if !ok {
		return nil, malformed("--model: there is no model %q, want one of %s", name, modelNames())
	}
	// At decode only three quarters of a pool are for rooms that prefill has yet to
	// announce, and a room that has ended gives its pages back a little later.
	most := slices.Max(f.inFlight)
	s.rooms = 2 * (most + aheadOf(most))
	s.deployment = &kv.Deployment{
		Model: model, TP: 1, PP: 1, DP: 1, PageTokens: uint32(page), Layout: kv.NHD,
		MetaRowBytes: actors.MetaHeader,
	}
	pageBytes := model.TokenBytes() * float64(page)
	s.block = uint64(pageBytes) / uint64(tensorsOf(&model))
	s.tokens = f.tokens
	if f.bytes != "" {
		n, err := parseSize("bytes", f.bytes)
		if err != nil {
			return nil, err
		}
		s.tokens = uint64((float64(n)+pageBytes-1)/pageBytes) * uint64(page)
	}
	if s.tokens == 0 {
		s.tokens = uint64(page)
	}
	pages := (s.tokens + uint64(page) - 1) / uint64(page)
	if pages > benchRoomsPagesMax {
		return nil, malformed("a room is %d pages (--bytes, --tokens, --page, --model), want at most %d", pages, benchRoomsPagesMax)
	}
	s.bytes = uint64(float64(s.tokens) * model.TokenBytes())
	all := pages * uint64(s.rooms)
	rows := uint64(s.rooms)
	if s.scatter {
		all *= 2
		rows += all / 2 // of those that hold pages
	}
	if all > 1<<31 {
		return nil, malformed("--in-flight is %d with rooms of %d pages, which are %d pages in all, want at most %d", most, pages, all, uint64(1)<<31)
	}
	s.pages, s.deployment.MetaRows = uint32(all), uint32(rows)+1
	return s, s.fitsMemory(most)
}

// fitsMemory refuses what the machine has no memory for. A pool costs what was used
// of it: the rooms of both sides.
func (s *roomsSize) fitsMemory(most int) error {
	free, err := freeMemory()
	if err != nil {
		return malformed("%w", err)
	}
	need := s.bytes * uint64(2*most+2*aheadOf(most))
	if need > free/10*9 {
		return malformed("%d rooms of %s in flight need %s of memory (--in-flight, --bytes, --tokens), want at most the %s that are free",
			most, humanBytes(s.bytes), humanBytes(need), humanBytes(free/10*9))
	}
	return nil
}

// tensorsOf is how many tensors keep all tokens of a model, one a layer.
func tensorsOf(m *kv.Model) int {
	n := 0
	for i := range m.Components {
		if c := &m.Components[i]; c.Kind == kv.Paged && c.Window == 0 {
			n += len(c.Layers)
		}
	}
	return max(1, n)
}

// aheadOf is how many rooms more than decode prefill keeps open: those that it goes
// on to while others are being told that they are over.
func aheadOf(inFlight int) int { return max(1, inFlight/8) }
