package transfer

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"kvferry/messages"
)

// FuzzMessages gives both machines, in each of some states, whatever decodes as
// a message of a room: no panic and no broken invariant. A peer that lies (done
// when it is not, quiet when it writes) is believed, so bytes are not checked.
func FuzzMessages(f *testing.F) {
	from, to := messages.Engine{Instance: "d"}, messages.Engine{Instance: "p"}
	for _, body := range badBodies() {
		m, ok := body.(proto.Message)
		if !ok || !m.ProtoReflect().IsValid() {
			continue
		}
		if b, err := proto.Marshal(messages.NewRoom(messages.RoomID{Room: 7, Attempt: 1}, from, to, body)); err == nil && len(b) < 1000 {
			f.Add(uint8(len(b)), b)
		}
	}
	f.Fuzz(func(t *testing.T, stage uint8, b []byte) {
		room := &messages.Room{}
		if proto.Unmarshal(b, room) != nil || room.Unwrap() == nil {
			return
		}
		for _, toPrefill := range []bool{true, false} {
			w := newWorld(t, setting{prefillTP: 2, prefillPP: 1, decodeTP: 1, decodePP: 1, length: 8, verbs: stage&8 != 0})
			p, d := w.named("p0"), w.named("d0")
			fuzzStage(w, stage%8)
			w.lied = true
			from, to := d, p
			if !toPrefill {
				from, to = p, d
			}
			to.step(Received{From: from.id, Body: room.Unwrap()})
			w.settle()
		}
	})
}

// fuzzStage brings a world some way.
func fuzzStage(w *world, stage uint8) {
	w.named("p0").send(0)
	w.named("p1").send(0)
	w.named("d0").receive(0)
	w.settle()
	steps := []func(){
		func() {
			for len(w.net) > 0 {
				w.deliver(w.net[0])
			}
		},
		func() {
			for _, e := range []string{"p0", "p1"} {
				w.named(e).step(Chunk{From: 0, To: 8, Source: w.named(e).sourcePages(), Last: true})
			}
		},
		func() {
			w.land(w.flights[0], false)
			w.settle()
		},
		func() {
			for len(w.net) > 0 {
				w.deliver(w.net[0])
			}
		},
		func() { w.named("d0").step(Abort{}) },
		w.settle,
	}
	for _, step := range steps[:min(int(stage), len(steps))] {
		step()
	}
}
