package sim

// thing is something that happens on a bad day, and is counted.
type thing uint8

const (
	coverCutMessage thing = iota
	coverLostMessage
	coverTwice
	coverOld
	coverDisconnect
	coverLostPiece
	coverLostAck
	coverLatePiece
	coverLateArrival
	coverLostArrival
	coverUnknown
	coverMistake
	coverSlowFence
	coverStuckGrant
	coverQuarantine
	coverChecked
	things
)

func (t thing) String() string {
	return [...]string{
		"messages that a cut lost", "messages lost", "messages twice", "messages again, seconds later", "sessions broken", "writes lost", "writes landed and not answered",
		"writes landed late", "arrivals told late", "arrivals lost by a fence", "writes unknown in a session that goes on", "mistakes of callers", "slow fences", "grants left open", "pages quarantined", "receivers checked byte by byte",
	}[t]
}

// Coverage counts the days with each kind of fault, and how often things happened.
type Coverage struct {
	faults [faultKinds]uint64
	things [things]uint64
}

func (c *Coverage) add(t thing) { c.things[t]++ }

// Add adds what another day covered.
func (c *Coverage) Add(o *Coverage) {
	for i, n := range o.faults {
		c.faults[i] += n
	}
	for i, n := range o.things {
		c.things[i] += n
	}
}

// Faults is the days with each kind of fault, by name; Things is the counts.
func (c *Coverage) Faults() map[string]uint64 {
	m := map[string]uint64{}
	for i, n := range c.faults {
		m[faultKind(i).String()] = n
	}
	return m
}

// Things is how often things happened, by name.
func (c *Coverage) Things() map[string]uint64 {
	m := map[string]uint64{}
	for i, n := range c.things {
		m[thing(i).String()] = n
	}
	return m
}
