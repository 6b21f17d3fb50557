package verbs

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kvferry/transport/rdma"
)

var (
	helloOf = rdma.Generation{Number: 7, Low: 0x1122334455667788, High: 0x99aabbccddeeff00}
	someone = hello{from: "prefill-1", to: "decode-22", number: helloOf.Number, proof: proof(helloOf, "prefill-1", "decode-22")}
)

func TestHelloIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, nameMax), func(b []byte) string { return string(b) })
		h := hello{from: name.Draw(t, "from"), to: name.Draw(t, "to"), number: rapid.Uint64().Draw(t, "number")}
		copy(h.proof[:], rapid.SliceOfN(rapid.Byte(), proofBytes, proofBytes).Draw(t, "proof"))
		r := bytes.NewReader(append(h.encode(), "what follows"...))
		got, err := readHello(r)
		if err != nil || got != h || r.Len() != len("what follows") {
			t.Fatalf("got %+v, error %v, %d bytes left; want %+v", got, err, r.Len(), h)
		}
	})
}

// A hello of which a byte was changed is refused, or proves nothing.
func TestHelloThatWasChanged(t *testing.T) {
	good := someone.encode()
	for i := range good {
		for _, x := range []byte{1, 0x80, 0xff} {
			b := bytes.Clone(good)
			b[i] ^= x
			h, err := readHello(bytes.NewReader(b))
			of := helloOf
			of.Number = h.number
			if err == nil && proof(of, h.from, h.to) == h.proof {
				t.Errorf("byte %d ^ %#x: it is read as %+v, and proves it", i, x, h)
			}
		}
	}
	for n := range good {
		_, err := readHello(bytes.NewReader(good[:n]))
		if want := io.ErrUnexpectedEOF; !errors.Is(err, want) && !errors.Is(err, io.EOF) {
			t.Errorf("%d of %d bytes: got error %v, want %v", n, len(good), err, want)
		}
	}
}

func TestHelloThatIsRefused(t *testing.T) {
	for _, c := range []struct {
		at   int
		to   byte
		want string
	}{
		{0, 0, "hello is 0x48565600 version 1, want 0x4856564b version 1"},
		{4, 2, "version 2, want 0x4856564b version 1"},
		{7, 0xff, "names of 65289 and 9 bytes, want at most 512"},
		{9, 2, "names of 9 and 521 bytes, want at most 512"},
		{10, 3, "hello has 3 in its reserved field, want 0"},
	} {
		b := someone.encode()
		b[c.at] = c.to
		if _, err := readHello(bytes.NewReader(b)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("byte %d as %#x: got error %v, want %q", c.at, c.to, err, c.want)
		}
	}
}

// A proof is of one generation, one dialer and one listener; where one name ends and the
// next begins matters, too.
func TestProofsDiffer(t *testing.T) {
	type of struct {
		g        rdma.Generation
		from, to string
	}
	all := []of{
		{helloOf, "a", "b"}, {helloOf, "b", "a"}, {helloOf, "", "ab"}, {helloOf, "ab", ""}, {helloOf, "a", "bb"}, {helloOf, "aa", "b"},
		{helloOf, "a b", "c"}, {helloOf, "a", "b c"}, {helloOf, "1 a", "b"}, {helloOf, "", "1 a b"}, {helloOf, "a", " b"}, {helloOf, "a ", "b"},
	}
	for _, g := range []rdma.Generation{
		{Number: 8, Low: helloOf.Low, High: helloOf.High}, {Number: 7, Low: helloOf.Low + 1, High: helloOf.High},
		{Number: 7, Low: helloOf.Low, High: helloOf.High + 1}, {Number: 7, Low: helloOf.High, High: helloOf.Low}, {},
	} {
		all = append(all, of{g, "a", "b"})
	}
	seen := map[[proofBytes]byte]of{}
	for _, x := range all {
		p := proof(x.g, x.from, x.to)
		if y, ok := seen[p]; ok {
			t.Errorf("%+v and %+v have the same proof", x, y)
		}
		seen[p] = x
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOfN(rapid.SampledFrom([]rune("a1 ")), 0, 6, -1).Draw(t, "names")
		i, k := rapid.IntRange(0, len(text)).Draw(t, "cut"), rapid.IntRange(0, len(text)).Draw(t, "other cut")
		if i != k && proof(helloOf, text[:i], text[i:]) == proof(helloOf, text[:k], text[k:]) {
			t.Fatalf("%q has the same proof cut at %d and at %d", text, i, k)
		}
	})
}

// FuzzHello reads what anybody may send: it never panics, takes no more than it uses,
// and what it accepts is the same when it is written again.
func FuzzHello(f *testing.F) {
	f.Add(someone.encode())
	f.Add((&hello{number: 1}).encode())
	f.Add((&hello{from: strings.Repeat("x", nameMax+1)}).encode())
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := bytes.NewReader(raw)
		h, err := readHello(r)
		used := raw[:len(raw)-r.Len()]
		if len(used) > helloBytes+2*nameMax {
			t.Fatalf("it took %d bytes", len(used))
		}
		if err == nil && !bytes.Equal(h.encode(), used) {
			t.Fatalf("%x comes back as %x", used, h.encode())
		}
	})
}
