package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"kvferry/kv"
)

const (
	startWait  = time.Minute      // from the first process to the last pair
	roomWait   = 2 * time.Minute  // how long a room may wait for pages
	deathWait  = 4 * time.Second  // from the end of a node to the end of its rooms
	finishWait = 30 * time.Second // for the last look at the memory, and the end

	// instanceRooms is how many rooms of one decode rank are in flight: enough that
	// one is written while others are computed and checked.
	instanceRooms = 4
)

// play is a demo that runs. Its loop owns everything here; nodes are heard by
// channel.
type play struct {
	*sized
	launcher launcher
	say      io.Writer // what a person reads
	progress io.Writer // nil: no terminal
	now      func() time.Time
	patience time.Duration // deathWait

	nodes  []*demoNode
	hear   chan heard
	done   chan struct{} // closed when nobody hears any more
	next   int           // rooms that were begun
	open   map[uint64]*playedRoom
	places []decodePlace
	used   []uint64 // prefill tokens in flight, by DP rank

	flipRoom uint64 // the room of which a byte is spoiled, 0: none
	rng      *rand.Rand
	result   *demoResult
	started  time.Time // of the first room
	last     time.Time // end of the last room
}

// decodePlace is one DP rank of one decode instance: what takes a room.
type decodePlace struct {
	instance, dp int
	tokens       uint64 // in flight
	rooms        int
}

// playedRoom is a room in flight.
type playedRoom struct {
	demoRoom
	place   int
	pdp     int
	waiting []*demoNode   // who has not answered
	giveUp  time.Time     // zero: never
	sent    time.Duration // first chunk, monotonic; 0: none yet
	got     time.Duration // last decode engine
	bytes   uint64
	copies  uint64
	wrong   damage
	reason  string // first cause
	death   string // of a node of the room
}

func newPlay(s *sized, l launcher, say io.Writer) *play {
	p := &play{
		sized: s, launcher: l, say: say, now: time.Now, patience: deathWait,
		hear: make(chan heard, 64), done: make(chan struct{}),
		open: make(map[uint64]*playedRoom), used: make([]uint64, s.prefill.DP),
		rng:    rand.New(rand.NewPCG(s.flags.seed, 0x666c6970)),
		result: newDemoResult(),
	}
	for i, r := range ranks(s.fit.Prefill()) {
		p.nodes = append(p.nodes, &demoNode{name: fmt.Sprintf("prefill-%d", i), role: "prefill", rank: r})
	}
	for n := range s.flags.decodeInstances {
		all := ranks(s.fit.Decode())
		for i, r := range all {
			name := fmt.Sprintf("decode-%d", n)
			if len(all) > 1 {
				name = fmt.Sprintf("decode-%d-%d", n, i)
			}
			p.nodes = append(p.nodes, &demoNode{name: name, role: "decode", instance: n, rank: r})
		}
		for dp := range s.decode.DP {
			p.places = append(p.places, decodePlace{instance: n, dp: dp})
		}
	}
	if s.flags.flipByte {
		var can []uint64
		for _, r := range s.rooms {
			if r.prefix < r.tokens {
				can = append(can, r.id)
			}
		}
		if len(can) > 0 {
			p.flipRoom = can[p.rng.IntN(len(can))]
		}
	}
	return p
}

// run starts the nodes, plays the rooms, and stops the nodes. A result comes with
// an error if the rooms were played, but not all of them or not in order.
func (p *play) run(ctx context.Context) (*demoResult, error) {
	defer p.end()
	if err := p.start(ctx); err != nil {
		return nil, err
	}
	err := p.playRooms(ctx)
	err = errors.Join(err, p.stop())
	p.summarize()
	return p.result, err
}

// playRooms plays all rooms. An error says why it ended early.
func (p *play) playRooms(ctx context.Context) error {
	p.started, p.last = p.now(), p.now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		wait := p.dispatch()
		if len(p.open) == 0 && p.next == len(p.rooms) {
			return nil
		}
		var arrival <-chan time.Time
		if wait > 0 {
			arrival = time.After(wait)
		}
		select {
		case h := <-p.hear:
			p.onHeard(h)
		case <-arrival:
		case <-tick.C:
			p.expire()
			p.showProgress()
		case <-ctx.Done():
			p.abandon(context.Cause(ctx))
			return context.Cause(ctx)
		}
	}
}

// dispatch begins the rooms that have arrived and that there is place for. It
// returns when the next one arrives; 0: nothing but the end of a room helps.
func (p *play) dispatch() time.Duration {
	for p.next < len(p.rooms) {
		r := p.rooms[p.next]
		if wait := r.arrival - p.now().Sub(p.started); wait > 0 {
			return wait
		}
		if why := p.impossible(); why != "" {
			p.next++
			p.result.fail(r.id, why)
			continue
		}
		place, pdp, ok := p.choose(r)
		if !ok {
			return 0
		}
		p.next++
		p.begin(r, place, pdp)
	}
	return 0
}

// impossible says why no room can be played any more.
func (p *play) impossible() string {
	for _, n := range p.nodes {
		if n.role == "prefill" && n.ended {
			return "not begun: the prefill instance is not whole: " + n.death()
		}
	}
	for i := range p.places {
		if p.whole(p.places[i].instance) {
			return ""
		}
	}
	why := "not begun: no decode instance is left"
	for _, n := range p.nodes {
		if n.ended {
			return why + ": " + n.death()
		}
	}
	return why
}

func (p *play) whole(instance int) bool {
	for _, n := range p.nodes {
		if n.role == "decode" && n.instance == instance && n.ended {
			return false
		}
	}
	return true
}

// choose finds the least loaded decode rank and prefill DP rank, with room in
// their pools.
func (p *play) choose(r demoRoom) (place, pdp int, ok bool) {
	place, pdp = -1, 0
	for i := range p.places {
		if q := &p.places[i]; p.whole(q.instance) && (place < 0 || q.tokens < p.places[place].tokens) {
			place = i
		}
	}
	for dp := range p.used {
		if p.used[dp] < p.used[pdp] {
			pdp = dp
		}
	}
	q := &p.places[place] // there is one: not impossible
	return place, pdp, q.rooms < instanceRooms &&
		fits(q.tokens, r.tokens, p.decodePages, p.decode) && fits(p.used[pdp], r.tokens, p.prefillPages, p.prefill)
}

// fits answers whether a pool has pages for more tokens. Each room may waste one
// page.
func fits(used, more uint64, pages uint32, d *kv.Deployment) bool {
	return used == 0 || used+more+(instanceRooms+1)*uint64(d.PageTokens) <= uint64(pages)*uint64(d.PageTokens)
}

// begin tells the engines of both sides of a room.
func (p *play) begin(r demoRoom, place, pdp int) {
	q := &p.places[place]
	q.tokens += r.tokens
	q.rooms++
	p.used[pdp] += r.tokens
	room := &playedRoom{demoRoom: r, place: place, pdp: pdp}
	p.open[r.id] = room
	writer, flip := p.flip(r, q, pdp)
	for _, n := range p.nodes {
		c := &driveCommand{Room: r.id, Prefix: r.prefix, Tokens: r.tokens, Wait: roomWait}
		switch {
		case n.role == "prefill" && n.rank.DP == pdp:
			c.Op, c.Chunk = opSend, p.chunk
			if n.rank == writer {
				c.Flip = flip
			}
		case n.role == "decode" && n.instance == q.instance && n.rank.DP == q.dp:
			c.Op, c.Prefill, c.PrefillDP = opReceive, "prefill", pdp
		default:
			continue
		}
		room.waiting = append(room.waiting, n)
		n.tell(c)
	}
}

// flip chooses a byte of the room that is written, if the room is the one of which
// a byte is to be spoiled.
func (p *play) flip(r demoRoom, q *decodePlace, pdp int) (kv.Rank, *flippedAt) {
	if r.id != p.flipRoom {
		return kv.Rank{}, nil
	}
	route := kv.Route{PrefillDP: pdp, DecodeDP: q.dp, Room: r.id}
	for _, to := range p.fit.Receivers(route) {
		for _, from := range p.fit.Writers(route, to, r.prefix, r.tokens) {
			pair, err := p.fit.Pair(route, from, to, r.prefix, r.tokens)
			if err != nil || len(pair.Boxes) == 0 {
				continue
			}
			b := pair.Boxes[p.rng.IntN(len(pair.Boxes))]
			return from, &flippedAt{
				Component: b.Component, Layer: b.Layers[p.rng.IntN(len(b.Layers))],
				Head: b.Heads.Low + p.rng.IntN(b.Heads.High-b.Heads.Low),
				Row:  b.Start + b.Step*p.rng.Uint64N(b.Rows), Byte: p.rng.Uint64N(b.RowBytes),
			}
		}
	}
	return kv.Rank{}, nil
}

// onHeard takes an event of a node while rooms are played.
func (p *play) onHeard(h heard) {
	if h.event == nil {
		p.onEnded(h)
		return
	}
	if h.event.Event == eventFailed {
		h.node.lastWord = h.event.Error
	}
	r := p.open[h.event.Room]
	if h.event.Event != eventRoom || r == nil {
		return // late: the room was given up
	}
	e, n := h.event, h.node
	if n.role == "decode" {
		r.bytes += e.Bytes
		r.got = max(r.got, e.Done)
		if e.WrongBytes > 0 {
			r.wrong.add(e.WrongBytes, func() string { return n.name + ": " + e.FirstWrong })
		}
	} else {
		r.copies += e.Copies
		if e.FirstSend > 0 && (r.sent == 0 || e.FirstSend < r.sent) {
			r.sent = e.FirstSend
		}
	}
	n.bytes += e.Bytes
	if e.OK {
		n.rooms++
	} else if r.reason == "" {
		r.reason = n.name + ": " + e.Reason
	}
	p.answered(r, n)
}

// answered notes that nothing more comes from a node for a room.
func (p *play) answered(r *playedRoom, n *demoNode) {
	if r.waiting = slices.DeleteFunc(r.waiting, func(w *demoNode) bool { return w == n }); len(r.waiting) == 0 {
		p.close(r)
	}
}

// onEnded notes the end of a node. The others of its rooms are heard for a while:
// they have to find out by themselves.
func (p *play) onEnded(h heard) {
	n := h.node
	n.ended, n.endError = true, h.err
	for _, r := range p.inOrder() {
		if slices.Contains(r.waiting, n) {
			r.death = n.death()
			r.giveUp = p.now().Add(p.patience)
			p.answered(r, n)
		}
	}
}

// expire gives up the rooms of which a node died and the others do not answer.
func (p *play) expire() {
	for _, r := range p.inOrder() {
		if !r.giveUp.IsZero() && p.now().After(r.giveUp) {
			p.giveUp(r, r.death)
		}
	}
}

// abandon gives up all rooms, those that were not begun too.
func (p *play) abandon(why error) {
	for _, r := range p.inOrder() {
		p.giveUp(r, why.Error())
	}
	for ; p.next < len(p.rooms); p.next++ {
		p.result.fail(p.rooms[p.next].id, "not begun: "+why.Error())
	}
}

func (p *play) giveUp(r *playedRoom, why string) {
	for _, n := range r.waiting {
		n.tell(&driveCommand{Op: opAbort, Room: r.id, Reason: why})
		if r.reason == "" {
			r.reason = n.name + " did not answer: " + why
		}
	}
	p.close(r)
}

// close ends a room.
func (p *play) close(r *playedRoom) {
	q := &p.places[r.place]
	q.tokens -= r.tokens
	q.rooms--
	p.used[r.pdp] -= r.tokens
	delete(p.open, r.id)
	p.last = p.now()
	p.result.add(r)
}

// inOrder is the open rooms, the oldest first.
func (p *play) inOrder() []*playedRoom {
	var all []*playedRoom
	for _, r := range p.open {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *playedRoom) int { return int(int64(a.id) - int64(b.id)) })
	return all
}

func (p *play) showProgress() {
	if p.progress != nil {
		done := p.next - len(p.open)
		seconds := max(0.001, p.now().Sub(p.started).Seconds())
		fmt.Fprintf(p.progress, "\r\x1b[K%d of %d rooms, %s, %.2f GB/s", done, len(p.rooms), humanBytes(p.result.Bytes), float64(p.result.Bytes)/seconds/1e9)
	}
}
