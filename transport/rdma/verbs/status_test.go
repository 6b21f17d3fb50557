package verbs

import (
	"strings"
	"testing"
)

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

func TestEveryStatusHasANameAndABlame(t *testing.T) {
	seen := map[string]bool{}
	for i := range statuses {
		s := Status(i)
		if s.String() == "" || seen[s.String()] {
			t.Errorf("status %d has the name %q", i, s)
		}
		seen[s.String()] = true
		if (s.Blame() == NoBlame) != (s == statusSuccess) || (s.Blame() == Flushed) != (s == statusFlushed) {
			t.Errorf("status %d is of %s", i, s.Blame())
		}
	}
	for b := NoBlame; b <= Path; b++ {
		if b.String() == "" || seen[b.String()] {
			t.Errorf("blame %d has the name %q", b, b)
		}
		seen[b.String()] = true
	}
}

// A failure says whose fault it is and what helps.
func TestTextsOfFailures(t *testing.T) {
	for status, want := range map[Status]string{
		4:  "verbs: mlx5_0:1: local protection error (vendor error 0x51): it is of this side: it is a fault of this program, or memory that went away",
		5:  "verbs: mlx5_0:1: flushed (vendor error 0x51): it is of a request before it, and that one never came: the link was lost",
		10: "verbs: mlx5_0:1: remote access error (vendor error 0x51): it is of the peer: its memory or its queue pair is not what it had told of; the next connection asks again",
		12: "verbs: mlx5_0:1: transport retries exceeded (vendor error 0x51): it is of the path: is the peer alive, does its address answer from this one's port, is the traffic class lossless?",
		99: "verbs: mlx5_0:1: status 99 (vendor error 0x51): it is of the path: is the peer alive, does its address answer from this one's port, is the traffic class lossless?",
	} {
		if got := (&QueueError{Device: "mlx5_0:1", Status: status, Vendor: 0x51}).Error(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for i := range statuses {
		if s := Status(i); (s.advice() == "") != (s == statusSuccess) || strings.HasSuffix(s.advice(), " ") {
			t.Errorf("%s: the advice is %q", s, s.advice())
		}
	}
}
