package transfer

import (
	"fmt"
	"math"
	"time"
)

// Limits is every limit and timeout of a room. A zero field takes its default;
// the zero value is ready to use.
type Limits struct {
	// Wait is how long a room waits for the other side when its caller does not
	// say: a busy prefill instance computes for seconds and queues for more. A
	// caller that knows better says so. WaitMax cuts what a caller or a peer
	// asks for, so that no room is for ever.
	Wait, WaitMax time.Duration

	// ResendFirst is when a message that nobody acknowledged is sent again: far
	// above a round trip, so that a room without loss sends nothing twice. It
	// doubles up to ResendMost, which bounds what a peer that answers late costs.
	ResendFirst, ResendMost time.Duration

	// Progress is how long a sender's writes may stand still, posted or waiting
	// for a connection. It is longer than a peer needs to be suspected (3 pings
	// of 500 ms), redialled and fenced.
	Progress time.Duration

	// Stall is how long a receiver waits for the next byte after the first. The
	// next prefill step may still be computing, so it is much longer than
	// Progress: the sender knows, and fails first.
	Stall time.Duration

	// Grace and FloorTokens bound the writing of a room as a whole: Grace plus a
	// second for every FloorTokens tokens of its length. Prefill computes, and
	// any network carries, far more than 256 tokens a second.
	Grace       time.Duration
	FloorTokens uint64

	// Word is how long a room that failed by itself waits for the decider's word,
	// so that all participants tell their callers the same cause. Its pages do
	// not wait for it.
	Word time.Duration

	// Decide is how long the decider, having landed itself, waits for the others'
	// votes beyond its absolute limit; Vote is the same for those who have voted
	// and wait for the decider. Vote is longer by a Wait, because the decider's
	// first byte may come so much later, so that the decider's limit passes first
	// and there is an outcome.
	Decide, Vote time.Duration

	// Drain is how long the grants of a failed room may stay open before the
	// receiver fences; Refence is when it tries again for those that a fence
	// could not close.
	Drain, Refence time.Duration

	// Local is how long an answer of the room's own node may take (a metadata
	// row read, a grant revoked, writes quiesced). It never depends on a peer.
	Local time.Duration

	// Linger is how long an ended room goes on telling those who do not
	// acknowledge. A peer that is dead is given up before; after it the engine
	// answers from its record.
	Linger time.Duration

	// WriteBytes is how much one write carries: enough to keep a fast link busy,
	// little enough that a lost one is cheap and that rooms take turns. A single
	// page row of a tensor is never cut.
	WriteBytes uint64

	// Window is how many writes a room has in flight. Window times WriteBytes is
	// above the bandwidth-delay product of a 400 Gb/s link with a 2 ms queue.
	Window int

	// Posts is how often a write is posted before it fails its room.
	Posts int

	// Chunks is how many chunks a room may have, each piece of one that comes layer
	// by layer counted. 4096 of 256 tokens is a prompt of a million; so is 64 of
	// 16,384 in up to 1,024 pieces.
	Chunks int

	// GrantRuns is how many runs of pages one part of a grant carries, and
	// GrantParts how many parts: a part is about 32 KiB on the wire, all of them
	// together half a million runs.
	GrantRuns, GrantParts int

	// Entries bounds each list in a message of a room: arrivals of a done,
	// generations of a quiet.
	Entries int

	// EarlyVotes is how many votes a decider keeps for rooms that it does not
	// have yet, EarlyShare how many of them of one peer instance, and EarlyKeep
	// for how long: as long as a voter waits at least.
	EarlyVotes, EarlyShare int
	EarlyKeep              time.Duration
}

// Resolve is l with defaults in the zero fields, or what is wrong with it.
func (l Limits) Resolve() (Limits, error) {
	for _, f := range l.durations() {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < time.Millisecond || *f.value > 24*time.Hour {
			return l, fmt.Errorf("room limits: %s is %v, want 1ms to 24h", f.name, *f.value)
		}
	}
	for _, f := range l.counts() {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < f.min || *f.value > f.max {
			return l, fmt.Errorf("room limits: %s is %d, want %d to %d", f.name, *f.value, f.min, f.max)
		}
	}
	if l.FloorTokens == 0 {
		l.FloorTokens = 256
	}
	if l.WriteBytes == 0 {
		l.WriteBytes = 8 << 20
	}
	if l.WriteBytes > 1<<30 {
		return l, fmt.Errorf("room limits: WriteBytes is %d, want at most %d", l.WriteBytes, 1<<30)
	}
	return l, l.relations()
}

type durationLimit struct {
	name  string
	value *time.Duration
	def   time.Duration
}

func (l *Limits) durations() []durationLimit {
	return []durationLimit{
		{"Wait", &l.Wait, 30 * time.Second},
		{"WaitMax", &l.WaitMax, 15 * time.Minute},
		{"ResendFirst", &l.ResendFirst, 200 * time.Millisecond},
		{"ResendMost", &l.ResendMost, time.Second},
		{"Progress", &l.Progress, 5 * time.Second},
		{"Stall", &l.Stall, 30 * time.Second},
		{"Grace", &l.Grace, time.Minute},
		{"Word", &l.Word, 5 * time.Second},
		{"Decide", &l.Decide, 10 * time.Second},
		{"Vote", &l.Vote, 45 * time.Second},
		{"Drain", &l.Drain, 2 * time.Second},
		{"Refence", &l.Refence, 5 * time.Second},
		{"Local", &l.Local, 5 * time.Second},
		{"Linger", &l.Linger, time.Minute},
		{"EarlyKeep", &l.EarlyKeep, 2 * time.Minute},
	}
}

type countLimit struct {
	name     string
	value    *int
	def      int
	min, max int
}

func (l *Limits) counts() []countLimit {
	return []countLimit{
		{"Window", &l.Window, 16, 1, 1 << 16},
		{"Posts", &l.Posts, 3, 1, 100},
		{"Chunks", &l.Chunks, 1 << 16, 1, 1 << 20},
		{"GrantRuns", &l.GrantRuns, 2048, 1, 1 << 16},
		{"GrantParts", &l.GrantParts, 256, 1, 1 << 12},
		{"Entries", &l.Entries, 1024, 1, 1 << 16},
		{"EarlyVotes", &l.EarlyVotes, 4096, 1, 1 << 20},
		{"EarlyShare", &l.EarlyShare, 1024, 1, 1 << 20},
	}
}

// relations checks what has to hold between limits.
func (l *Limits) relations() error {
	for _, r := range []struct {
		ok   bool
		text string
	}{
		{l.Wait <= l.WaitMax, fmt.Sprintf("Wait is %v, want at most WaitMax (%v)", l.Wait, l.WaitMax)},
		{l.ResendFirst <= l.ResendMost, fmt.Sprintf("ResendFirst is %v, want at most ResendMost (%v)", l.ResendFirst, l.ResendMost)},
		{2*l.ResendMost <= l.Word, fmt.Sprintf("Word is %v, want at least two ResendMost (%v): a lost word comes again", l.Word, l.ResendMost)},
		{2*l.Progress <= l.Stall, fmt.Sprintf("Stall is %v, want at least two Progress (%v): the sender knows more and fails first", l.Stall, l.Progress)},
		{l.Stall < l.Grace, fmt.Sprintf("Grace is %v, want more than Stall (%v): else no stall is ever seen", l.Grace, l.Stall)},
		{l.Wait+l.Decide+2*l.ResendMost <= l.Vote, fmt.Sprintf("Vote is %v, want at least Wait (%v), Decide (%v) and two ResendMost (%v): the decider's limit passes first", l.Vote, l.Wait, l.Decide, l.ResendMost)},
		{l.Word <= l.Linger, fmt.Sprintf("Linger is %v, want at least Word (%v)", l.Linger, l.Word)},
		{l.Vote <= l.EarlyKeep, fmt.Sprintf("EarlyKeep is %v, want at least Vote (%v)", l.EarlyKeep, l.Vote)},
		{l.EarlyShare <= l.EarlyVotes, fmt.Sprintf("EarlyShare is %d, want at most EarlyVotes (%d)", l.EarlyShare, l.EarlyVotes)},
	} {
		if !r.ok {
			return fmt.Errorf("room limits: %s", r.text)
		}
	}
	return nil
}

// wait is how long a room waits whose caller asked for d.
func (l *Limits) wait(d time.Duration) time.Duration {
	if d <= 0 {
		d = l.Wait
	}
	return min(d, l.WaitMax)
}

// writing is how long the writing of so many tokens may take.
func (l *Limits) writing(tokens uint64) time.Duration {
	seconds := tokens / l.FloorTokens
	if seconds > math.MaxInt64/uint64(2*time.Second) {
		return math.MaxInt64 / 2
	}
	return l.Grace + time.Duration(seconds)*time.Second
}
