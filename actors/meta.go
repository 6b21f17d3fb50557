package actors

import (
	"encoding/binary"
	"fmt"

	"kvferry/messages"
)

// A metadata row begins with whose it is; what follows is the engines' own.
//
//	bytes 0-7   room, little endian
//	bytes 8-11  attempt
//	bytes 12-15 metaMagic
const (
	// MetaHeader is where the engines' part of a metadata row begins.
	MetaHeader = 16

	metaMagic = 0x4b56464d
)

// metaRow is row i of the engine's metadata rows.
func (e *Engine) metaRow(i uint32) []byte {
	m := e.Kv.Meta
	if i >= m.Rows {
		panic(fmt.Sprintf("engine %s: metadata row %d of %d", e.Self, i, m.Rows))
	}
	from := m.Offset + uint64(i)*m.RowBytes
	return e.Memory[m.Region].Bytes()[from : from+m.RowBytes]
}

// StampMeta writes whose row it is. (prefill, before the last chunk)
func (e *Engine) StampMeta(row uint32, id messages.RoomID) {
	b := e.metaRow(row)
	binary.LittleEndian.PutUint64(b, id.Room)
	binary.LittleEndian.PutUint32(b[8:], id.Attempt)
	binary.LittleEndian.PutUint32(b[12:], metaMagic)
}

// ClearMeta makes a row nobody's. (decode, before it is granted)
func (e *Engine) ClearMeta(row uint32) { clear(e.metaRow(row)[:MetaHeader]) }

// ReadMeta is whose row it is; false: nobody's.
func (e *Engine) ReadMeta(row uint32) (messages.RoomID, bool) {
	b := e.metaRow(row)
	id := messages.RoomID{Room: binary.LittleEndian.Uint64(b), Attempt: binary.LittleEndian.Uint32(b[8:])}
	return id, binary.LittleEndian.Uint32(b[12:]) == metaMagic
}
