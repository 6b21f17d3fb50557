package pairing

import (
	"cmp"
	"time"
)

// Limits are the times and bounds of Link and Directory. A field that is zero
// has the default that Resolve gives it.
type Limits struct {
	// PingEvery is how long nothing may come from a peer before it is asked.
	PingEvery time.Duration
	// SuspectAfter is how many questions in a row stay unanswered before the pair
	// is suspect; TrustAfter is how many answers in a row end that.
	SuspectAfter, TrustAfter int
	// ProbeTimeout is how long a probed node may take to answer.
	ProbeTimeout time.Duration

	// ResendMin is the wait before something unacknowledged is said again. It
	// doubles up to ResendMax; half of it is jitter in a Link.
	ResendMin, ResendMax time.Duration
	// RedialMin is the wait before a new generation is proposed after one ended.
	// It doubles up to RedialMax, with jitter, until a generation has been up for
	// RedialReset.
	RedialMin, RedialMax, RedialReset time.Duration
	// ConnectTimeout bounds the time from an agreed generation to a connected
	// session, and from an answered hello to the word that the answer came.
	ConnectTimeout time.Duration
	// ProviderRetry is how long a provider that failed to connect is tried last.
	ProviderRetry time.Duration
	// LeaveTimeout bounds the wait for the acknowledgement of a Bye; Linger is
	// how long a Link whose peer left still acknowledges its Bye.
	LeaveTimeout, Linger time.Duration
	// Strangers is how many senders that do not fit a Link remembers to have
	// answered.
	Strangers int

	// ReprobeEvery is how often a newcomer whose place is taken is given another
	// chance.
	ReprobeEvery time.Duration
	// PartBytes is the most that one part of a catalog has; Parts and Engines
	// bound what one node may say of itself.
	PartBytes, Parts, Engines int
	// Words bounds how many pairs one node may have a word on.
	Words int
}

// Resolve fills in the defaults.
func (l Limits) Resolve() Limits {
	const ms = time.Millisecond
	// protocol.md §2.4: half a second, three missed, two good: a pair that is cut
	// is suspect after two seconds, well before gossip calls anybody dead.
	l.PingEvery = cmp.Or(l.PingEvery, 500*ms)
	l.SuspectAfter = cmp.Or(l.SuspectAfter, 3)
	l.TrustAfter = cmp.Or(l.TrustAfter, 2)
	// As long as it takes to become suspect: a probe is no less patient.
	l.ProbeTimeout = cmp.Or(l.ProbeTimeout, 2*time.Second)

	// Far above a round trip between hosts of one site, far below what a person
	// notices; at most some resends a minute to a peer that is slow for long.
	l.ResendMin = cmp.Or(l.ResendMin, 250*ms)
	l.ResendMax = cmp.Or(l.ResendMax, 4*time.Second)
	// A fence for one room should cost the others of the pair little; a peer that
	// keeps failing should cost next to nothing.
	l.RedialMin = cmp.Or(l.RedialMin, 50*ms)
	l.RedialMax = cmp.Or(l.RedialMax, 5*time.Second)
	l.RedialReset = cmp.Or(l.RedialReset, 10*time.Second)
	// A dial to another host, queue pairs and their exchange included, on a busy
	// machine.
	l.ConnectTimeout = cmp.Or(l.ConnectTimeout, 5*time.Second)
	// Long enough that a host without shared memory does not try it at every
	// fence; short enough that a repaired device comes back by itself.
	l.ProviderRetry = cmp.Or(l.ProviderRetry, time.Minute)
	l.LeaveTimeout = cmp.Or(l.LeaveTimeout, 2*time.Second)
	// Longer than the peer goes on saying Bye.
	l.Linger = cmp.Or(l.Linger, 3*time.Second)
	// Former lives of two nodes: a handful at a time.
	l.Strangers = cmp.Or(l.Strangers, 16)

	// The holder of a place is asked again as often as gossip would need to find
	// it dead, no more.
	l.ReprobeEvery = cmp.Or(l.ReprobeEvery, 15*time.Second)
	// One part must not hold up a vote behind it: 256 KiB is 2 ms at 1 Gb/s. The
	// catalog of 8 engines of 60 layers is about 20 KiB.
	l.PartBytes = cmp.Or(l.PartBytes, 256<<10)
	l.Parts = cmp.Or(l.Parts, 256)
	// A host has 8 or 16 devices; 1024 leaves room for tests and for one rank per
	// slice of a device.
	l.Engines = cmp.Or(l.Engines, 1024)
	// Pairs of one node: its instances times those of the other role.
	l.Words = cmp.Or(l.Words, 4096)
	return l
}
