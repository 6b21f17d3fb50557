package rdma

import "slices"

// Tags counts the writes under each tag, so that a provider can answer Quiesce.
// Its user locks it. The zero value is not ready: use NewTags.
type Tags struct {
	fences *Fences
	tags   map[Tag]*tagged
}

// tagged is one tag. It is forgotten when nothing under it is in flight and what
// it knows of unknown writes was told, or their sessions are fenced.
type tagged struct {
	inFlight int
	asked    int // calls of Quiesce that wait
	told     bool
	unknown  []SessionID
}

// NewTags knows no tag. It reads fences.
func NewTags(fences *Fences) *Tags { return &Tags{fences: fences, tags: map[Tag]*tagged{}} }

// Posted counts a write that was accepted.
func (t *Tags) Posted(tag Tag) {
	x := t.tags[tag]
	if x == nil {
		x = &tagged{}
		t.tags[tag] = x
	}
	x.inFlight++
	x.told = false
}

// Completed counts a write that ended on a session. It returns how many Quiesced
// events are due, and the event; they come after the completion.
func (t *Tags) Completed(tag Tag, s SessionID, o Outcome) (due int, ev Quiesced) {
	x := t.tags[tag]
	x.inFlight--
	if o == Unknown && !slices.Contains(x.unknown, s) {
		x.unknown = append(x.unknown, s)
	}
	if x.inFlight > 0 {
		return 0, ev
	}
	due, x.asked = x.asked, 0
	return due, t.tell(tag, x, due > 0)
}

// InFlight is how many writes under a tag have not completed.
func (t *Tags) InFlight(tag Tag) int {
	if x := t.tags[tag]; x != nil {
		return x.inFlight
	}
	return 0
}

// Quiesce asks for the end of a tag: answered at once if nothing is in flight,
// else by the last completion.
func (t *Tags) Quiesce(tag Tag) (ev Quiesced, now bool) {
	x := t.tags[tag]
	switch {
	case x == nil:
		return Quiesced{Tag: tag}, true
	case x.inFlight > 0:
		x.asked++
		return ev, false
	}
	return t.tell(tag, x, true), true
}

// tell makes the event, and forgets a tag of which there is nothing to remember.
func (t *Tags) tell(tag Tag, x *tagged, told bool) Quiesced {
	x.told = x.told || told
	ev := Quiesced{Tag: tag, Unknown: slices.Clone(x.unknown)}
	t.forget(tag, x)
	return ev
}

func (t *Tags) forget(tag Tag, x *tagged) {
	if x.told {
		x.unknown = slices.DeleteFunc(x.unknown, t.fences.Ended)
	}
	if x.inFlight == 0 && len(x.unknown) == 0 {
		delete(t.tags, tag)
	}
}

// Fenced forgets what was unknown on sessions that are over, in tags that have
// told it. It is called after Fences.End.
func (t *Tags) Fenced() {
	for tag, x := range t.tags { // every tag is looked at by itself
		t.forget(tag, x)
	}
}
