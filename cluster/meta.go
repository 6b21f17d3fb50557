package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// MetaMax is what gossip carries of a member, in bytes.
const MetaMax = 512

// metaVersion is the first byte of metadata. Later fields are appended and old
// parsers ignore them; the version grows only when that is not enough.
const metaVersion = 1

// metaFixed is the length before the strings: version, incarnation, the range of
// protocol versions.
const metaFixed = 1 + 8 + 4 + 4

// encodeMeta is m for gossip: the fixed part, then name, address and label, each
// after one byte of length. Gossip itself carries the gossip address.
func encodeMeta(m Member) ([]byte, error) {
	if err := checkMember(m); err != nil {
		return nil, err
	}
	b := make([]byte, 0, metaFixed+3+len(m.Name)+len(m.Address)+len(m.Label))
	b = append(b, metaVersion)
	b = binary.BigEndian.AppendUint64(b, m.Incarnation)
	b = binary.BigEndian.AppendUint32(b, m.VersionMin)
	b = binary.BigEndian.AppendUint32(b, m.VersionMax)
	for _, s := range []string{m.Name, m.Address, m.Label} {
		b = append(b, byte(len(s)))
		b = append(b, s...)
	}
	if len(b) > MetaMax {
		return nil, fmt.Errorf("metadata: got %d bytes, want at most %d; shorten name (%d), address (%d) or label (%d)",
			len(b), MetaMax, len(m.Name), len(m.Address), len(m.Label))
	}
	return b, nil
}

// parseMeta is the member that metadata describes, without its gossip address. It
// believes nothing: what comes back is a member that encodeMeta accepts.
func parseMeta(b []byte) (Member, error) {
	if len(b) > MetaMax {
		return Member{}, fmt.Errorf("metadata: got %d bytes, want at most %d", len(b), MetaMax)
	}
	if len(b) < metaFixed {
		return Member{}, fmt.Errorf("metadata: got %d bytes, want at least %d", len(b), metaFixed)
	}
	if b[0] != metaVersion {
		return Member{}, fmt.Errorf("metadata version: got %d, want %d", b[0], metaVersion)
	}
	m := Member{
		Incarnation: binary.BigEndian.Uint64(b[1:]),
		VersionMin:  binary.BigEndian.Uint32(b[9:]),
		VersionMax:  binary.BigEndian.Uint32(b[13:]),
	}
	rest := b[metaFixed:]
	for _, field := range []*string{&m.Name, &m.Address, &m.Label} {
		if len(rest) == 0 || len(rest) < 1+int(rest[0]) {
			return Member{}, errors.New("metadata: got a text that is cut off")
		}
		*field, rest = string(rest[1:1+int(rest[0])]), rest[1+int(rest[0]):]
	}
	if err := checkMember(m); err != nil {
		return Member{}, err
	}
	return m, nil
}

// checkMember says which field of a member is not one.
func checkMember(m Member) error {
	if err := CheckName("name", m.Name); err != nil {
		return err
	}
	if m.Label != "" {
		if err := CheckName("label", m.Label); err != nil {
			return err
		}
	}
	if m.Incarnation == 0 {
		return errors.New("incarnation: got 0, want above 0")
	}
	if m.VersionMin == 0 || m.VersionMin > m.VersionMax {
		return fmt.Errorf("protocol versions: got %d to %d, want a range above 0", m.VersionMin, m.VersionMax)
	}
	return checkAddress("address", m.Address)
}

// gossipName is the name that gossip knows m by: one for each incarnation, so
// that a restart never has to reclaim a name.
func gossipName(m Member) string { return fmt.Sprintf("%s-%016x", m.Name, m.Incarnation) }
