package shm

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"kvferry/transport/rdma"
)

// The table is memory of the receiver that the sender maps read-only: a page of
// words about the session, the entries, and the arena with what the grants say.
// Words are 64 bits, and both sides touch them by sync/atomic alone.
//
//	0     over: 1 once the receiver fences the session, before entries are cleared
//	64    reach: how far from its place any entry ever lay
//	4096  entries, of 64 bytes each: word, id low, id high, offset, bytes
//
// An entry's word is its number and its life: lives are never used twice, so a word
// that was cleared does not come back. An entry is never moved. Its other fields do
// not change while its word stands in it or in a slot.
const (
	tableOver    = 0
	tableReach   = 64
	tableEntries = 4096
	tableArena   = tableEntries + entries*entryBytes
	tableBytes   = tableArena + arenaBytes

	entryBytes  = 64
	entryWord   = 0
	entryLow    = 8
	entryHigh   = 16
	entryOffset = 24
	entryLength = 32

	lifeBits = 48 // at a million grants in a second, nine years
	lifeMax  = 1<<lifeBits - 1
)

// word is what slots and entries hold; 0 is none.
type word uint64

func newWord(entry uint32, life uint64) word { return word(uint64(entry)<<lifeBits | life) }
func (w word) entry() uint32                 { return uint32(w >> lifeBits) }

// halves are the words of an id, and the entry where a search for it begins: ids are
// drawn at random, but nothing depends on it.
func halves(id rdma.GrantID) (low, high uint64, home uint32) {
	low, high = binary.LittleEndian.Uint64(id[:8]), binary.LittleEndian.Uint64(id[8:])
	const golden = 0x9E3779B97F4A7C15 // 2^64 over the golden ratio, odd: it mixes upwards
	return low, high, uint32((low*golden ^ high) * golden >> 32 % entries)
}

func entryAt(entry uint32) uint64 { return tableEntries + uint64(entry)*entryBytes }

// table is the receiver's side of it. The provider's lock guards it.
type table struct {
	memory *mapping
	file   *os.File
	arena  arena
	spans  map[uint32]span // of the entries in use
	life   uint64          // the last that was given
	reach  uint32
}

func newTable() (*table, error) {
	m, f, err := newShared("grants", tableBytes, true)
	if err != nil {
		return nil, &UnreachableError{NoMemory, err}
	}
	return &table{memory: m, file: f, arena: newArena(tableArena, arenaBytes), spans: map[uint32]span{}}, nil
}

// install writes a grant into a free entry; the word comes last.
func (t *table) install(g *grant) (word, error) {
	s, ok := t.arena.take(g.lists.bytes)
	if !ok || len(t.spans) >= grantsMax {
		return 0, fmt.Errorf("shm: no room for the %d bytes that describe grant %s, with %d grants in force", g.lists.bytes, g.ID, len(t.spans))
	}
	g.lists.describe(t.memory.bytes[s.offset:][:g.lists.bytes], &g.Grant)
	low, high, home := halves(g.ID)
	entry, far := home, uint32(0)
	for t.spans[entry].bytes != 0 { // half of them are free
		entry = (entry + 1) % entries
		far++
	}
	t.spans[entry] = s
	if far > t.reach {
		t.reach = far
		t.memory.at(tableReach).Store(uint64(far))
	}
	at := entryAt(entry)
	t.memory.at(at + entryLow).Store(low)
	t.memory.at(at + entryHigh).Store(high)
	t.memory.at(at + entryOffset).Store(s.offset)
	t.memory.at(at + entryLength).Store(g.lists.bytes)
	if t.life++; t.life > lifeMax {
		panic(fmt.Sprintf("shm: life %d of a table's entry, want at most %d", t.life, uint64(lifeMax)))
	}
	w := newWord(entry, t.life)
	t.memory.at(at + entryWord).Store(uint64(w))
	return w, nil
}

// clear ends an entry's life: from now on no copy begins under it.
func (t *table) clear(w word) { t.memory.at(entryAt(w.entry()) + entryWord).Store(0) }

// free lets a cleared entry be used again. No slot holds its word.
func (t *table) free(w word) {
	t.arena.give(t.spans[w.entry()])
	delete(t.spans, w.entry())
}

// end tells the sender that what is cleared from now on is a fence's doing.
func (t *table) end() { t.memory.at(tableOver).Store(1) }

// release unmaps the table here. A sender that has it mapped keeps it.
func (t *table) release() {
	t.memory.release()
	_ = t.file.Close()
}

// view is the sender's side of a table.
type view struct{ *mapping }

func openView(fd int) (view, error) {
	m, err := openShared(fd, tableBytes, unix.PROT_READ)
	if err != nil {
		return view{}, fmt.Errorf("the table of grants: %w", err)
	}
	return view{m}, nil
}

// find searches the entry of a grant, 0 when there is none.
func (v view) find(id rdma.GrantID) word {
	low, high, home := halves(id)
	reach := min(v.at(tableReach).Load(), entries-1)
	for d := uint64(0); d <= reach; d++ {
		at := entryAt(uint32((uint64(home) + d) % entries))
		w := v.at(at + entryWord).Load()
		if w != 0 && v.at(at+entryLow).Load() == low && v.at(at+entryHigh).Load() == high {
			return word(w)
		}
	}
	return 0
}

// holds reports whether the word still stands in its entry.
func (v view) holds(w word) bool { return v.at(entryAt(w.entry())+entryWord).Load() == uint64(w) }

// over reports whether the receiver fences the session.
func (v view) over() bool { return v.at(tableOver).Load() != 0 }
