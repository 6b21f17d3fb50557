package verbs

import "testing"

// Whose fault it is decides what is tried again: the numbers are the library's.
func TestBlame(t *testing.T) {
	for _, c := range []struct {
		status Status
		name   string
		blame  Blame
	}{
		{0, "success", NoBlame}, {1, "local length error", Mine}, {4, "local protection error", Mine}, {5, "flushed", Flushed},
		{8, "local access error", Mine}, {9, "remote invalid request", Peer}, {10, "remote access error", Peer},
		{11, "remote operation error", Peer}, {12, "transport retries exceeded", Path}, {13, "receiver-not-ready retries exceeded", Path},
		{21, "general error", Path}, {23, "tag matching rendezvous incomplete", Mine}, {24, "status 24", Path}, {1 << 31, "status 2147483648", Path},
	} {
		if c.status.String() != c.name || c.status.Blame() != c.blame {
			t.Errorf("%d: got %q of %s, want %q of %s", uint32(c.status), c.status, c.status.Blame(), c.name, c.blame)
		}
	}
}

// What another stripe would fail at, too, ends the session; a port that went may look like
// a fault of this side.
func TestStatusesThatEndTheSession(t *testing.T) {
	for status, want := range map[Status]bool{0: false, 1: true, 2: false, 4: true, 5: false, 9: true, 10: true, 12: false, 24: false} {
		if got := status.everywhere(); got != want {
			t.Errorf("%s: got %v, want %v", status, got, want)
		}
	}
}

func TestMTUCodes(t *testing.T) {
	for code, bytes := range map[int]int{0: 0, 1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096, 6: 0, -1: 0} {
		if got := mtuBytes(code); got != bytes {
			t.Errorf("code %d: got %d bytes, want %d", code, got, bytes)
		}
	}
}
