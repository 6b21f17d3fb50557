package transport_test

import (
	"slices"
	"testing"

	"kvferry/actors"
	"kvferry/transport/rdma"
)

// up is grants with a session that carries writes.
func up(t *testing.T, full bool) (*grants, rdma.SessionID) {
	g := newGrants(t)
	g.tcp.full = full
	g.connect(g.tcp, 1)
	session := rdma.SessionID{Peer: g.writer.String(), Generation: rdma.Generation{Number: 1}}
	g.tcp.events <- rdma.Connected{Session: session}
	hear[*actors.SessionUp](g)
	return g, session
}

func (g *grants) post(tag rdma.Tag, write rdma.WriteID) {
	g.tell(&actors.PostWrite{Owner: g.owner, Tag: tag, Node: g.writer, Write: write, Grant: g.id})
}

func (g *grants) complete(session rdma.SessionID, o rdma.Outcome) {
	w := <-g.tcp.posted
	g.tcp.events <- rdma.Completed{Session: session, ID: w.ID, Tag: w.Tag, Outcome: o}
	hear[*actors.WriteDone](g)
}

func (g *grants) asked() int {
	g.inFlight()
	return len(g.tcp.quiesce) + len(g.shm.quiesce)
}

// A room whose writes have all ended, none of them as unknown, is quiesced: its
// provider is not asked, and nothing is kept of it.
func TestARoomWithoutWritesInFlightIsQuiesced(t *testing.T) {
	g, session := up(t, false)
	for _, o := range []rdma.Outcome{rdma.Landed, rdma.NotPosted, rdma.Refused} {
		g.post(5, 1)
		g.complete(session, o)
		if n := g.inFlight(); n.Rooms != 0 || n.Writes != 0 {
			t.Fatalf("after a write that ended as %v: %+v are left", o, n)
		}
		g.tell(&actors.QuiesceRoom{Owner: g.owner, Tag: 5})
		if m := hear[*actors.RoomQuiesced](g); m.Tag != 5 || len(m.Unknown) != 0 || g.asked() != 0 {
			t.Errorf("after a write that ended as %v: got %+v and %d questions to providers, want none", o, m, g.asked())
		}
	}
}

// One with a write in flight, or of which one is unknown, waits for its provider, which
// alone knows the generations.
func TestARoomInDoubtIsQuiescedByItsProvider(t *testing.T) {
	g, session := up(t, false)
	quiesced := func(tag rdma.Tag, want ...rdma.Generation) {
		t.Helper()
		var unknown []rdma.SessionID
		for _, generation := range want {
			unknown = append(unknown, rdma.SessionID{Peer: session.Peer, Generation: generation})
		}
		g.tcp.events <- rdma.Quiesced{Tag: tag, Unknown: unknown}
		if m := hear[*actors.RoomQuiesced](g); m.Tag != tag || !slices.Equal(m.Unknown, want) {
			t.Errorf("got %+v, want tag %d and unknown %v", m, tag, want)
		}
		if n := g.inFlight(); n.Rooms != 0 {
			t.Errorf("%+v are left", n)
		}
	}
	g.post(5, 1)
	g.post(5, 2)
	g.complete(session, rdma.Landed)
	g.tell(&actors.QuiesceRoom{Owner: g.owner, Tag: 5})
	if n := g.asked(); n != 1 {
		t.Fatalf("a write is in flight: %d questions to providers, want 1", n)
	}
	g.post(5, 9) // too late: it is not posted, or it would outlive the answer
	if m := hear[*actors.WriteNotTaken](g); m.Write != 9 {
		t.Errorf("got %+v, want write 9 handed back", m)
	}
	g.complete(session, rdma.Landed)
	if n := g.inFlight(); n.Rooms != 1 {
		t.Fatalf("the provider has not answered: got %+v, want the room", n)
	}
	quiesced(<-g.tcp.quiesce)

	g.post(6, 3)
	g.post(6, 4)
	g.complete(session, rdma.Unknown)
	g.complete(session, rdma.Landed)
	g.tell(&actors.QuiesceRoom{Owner: g.owner, Tag: 6})
	if n := g.asked(); n != 1 {
		t.Fatalf("a write is unknown: %d questions to providers, want 1", n)
	}
	quiesced(<-g.tcp.quiesce, session.Generation)
}

// A write that waits for the window has moved nothing: it is handed back.
func TestARoomWhoseWritesWaitIsQuiescedAtOnce(t *testing.T) {
	g, _ := up(t, true)
	g.post(5, 1)
	g.post(5, 2)
	if n := g.inFlight(); n.Rooms != 1 || n.Queued != 2 {
		t.Fatalf("got %+v, want two writes of a room that wait", n)
	}
	g.tell(&actors.QuiesceRoom{Owner: g.owner, Tag: 5})
	hear[*actors.WriteNotTaken](g)
	hear[*actors.WriteNotTaken](g)
	if m := hear[*actors.RoomQuiesced](g); m.Tag != 5 || len(m.Unknown) != 0 {
		t.Errorf("got %+v", m)
	}
	if n := g.inFlight(); n.Rooms != 0 || n.Queued != 0 {
		t.Errorf("%+v are left", n)
	}
}

// The end of an engine waits for each of its rooms, whatever its writes do meanwhile.
func TestTheEndOfAnEngineWhoseWritesWait(t *testing.T) {
	for _, full := range []bool{true, false} {
		g, session := up(t, full)
		g.post(5, 1)
		g.inFlight()
		ended := make(chan int, 1)
		g.tell(&actors.EndOwner{Owner: g.owner, Done: func(open int) { ended <- open }})
		if full {
			hear[*actors.WriteNotTaken](g)
		} else {
			g.inFlight()
			g.complete(session, rdma.Unknown)
		}
		g.tcp.events <- rdma.Quiesced{Tag: <-g.tcp.quiesce}
		g.tcp.events <- rdma.Revoked{Grant: g.id, Closed: true}
		g.shm.events <- rdma.Revoked{Grant: g.id, Closed: true}
		if open := <-ended; open != 0 {
			t.Errorf("%d grants are open, want none", open)
		}
		if n := g.inFlight(); n.Rooms != 0 || n.Engines != 0 {
			t.Errorf("%+v are left", n)
		}
	}
}
