package cluster

import (
	"bytes"
	"strings"
	"testing"
)

func metaMember() Member {
	return Member{
		Name: "prefill-0", Incarnation: 0x1122334455667788, Address: "[fd00::1]:8090", Label: "blue",
		VersionMin: 1, VersionMax: 2,
	}
}

// golden is metaMember on the wire: other versions of this program read it.
const golden = "\x01\x11\x22\x33\x44\x55\x66\x77\x88\x00\x00\x00\x01\x00\x00\x00\x02\x09prefill-0\x0e[fd00::1]:8090\x04blue"

func TestMetadataGoldenBytes(t *testing.T) {
	b, err := encodeMeta(metaMember())
	if err != nil || string(b) != golden {
		t.Fatalf("got %q, %v", b, err)
	}
	for _, later := range []string{"", "\x07 more of a later version"} {
		m, err := parseMeta([]byte(golden + later))
		if err != nil || m != metaMember() {
			t.Errorf("got %+v, %v", m, err)
		}
	}
}

func TestMetadataFitsWithTheLongestNames(t *testing.T) {
	m := metaMember()
	m.Name, m.Label = strings.Repeat("n", NameMax), strings.Repeat("l", NameMax)
	m.Address = strings.Repeat("a", addressMax-5) + ":8090"
	if b, err := encodeMeta(m); err != nil || len(b) > MetaMax {
		t.Errorf("got %d bytes, %v", len(b), err)
	}
}

func TestMetadataErrorsNameTheField(t *testing.T) {
	for want, change := range map[string]func(*Member){
		"name":              func(m *Member) { m.Name = "a/b" },
		"label":             func(m *Member) { m.Label = strings.Repeat("l", NameMax+1) },
		"incarnation":       func(m *Member) { m.Incarnation = 0 },
		"protocol versions": func(m *Member) { m.VersionMax = 0 },
		"address":           func(m *Member) { m.Address = strings.Repeat("a", 300) + ":1" },
		"port":              func(m *Member) { m.Address = "h:0" },
		"host":              func(m *Member) { m.Address = "0.0.0.0:1" },
		"host \"[":          func(m *Member) { m.Address = "h\n:1" },
	} {
		m := metaMember()
		change(&m)
		if _, err := encodeMeta(m); err == nil || !strings.Contains(err.Error(), strings.Fields(want)[0]) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func FuzzParseMeta(f *testing.F) {
	f.Add([]byte(golden))
	f.Add([]byte(golden[:20]))
	f.Add([]byte{})
	f.Add([]byte("\x02" + golden[1:]))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMeta(b)
		if err != nil {
			if m != (Member{}) {
				t.Errorf("got %+v beside %v", m, err)
			}
			return
		}
		again, err := encodeMeta(m)
		if err != nil {
			t.Fatalf("parsed %+v, and: %v", m, err)
		}
		if !bytes.HasPrefix(b, again) {
			t.Errorf("got %q of %q", again, b)
		}
	})
}
