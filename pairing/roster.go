package pairing

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"kvferry/kv"
	"kvferry/messages"
)

// roster is the engines of one instance that are known, and what follows from
// them. It does not change: another one replaces it.
type roster struct {
	instance string
	role     messages.Role
	claims   []*claim // holders of its places, in roster order
	want     int      // ranks, by the first engine's sizes
	local    bool     // at least one is of this node
	nodes    []messages.Node

	// gaps is every reason why it is not whole; the rest is set when there is none.
	gaps []gap
	kv   *kv.Instance
	hash messages.RosterHash
}

// gap is one reason why a roster is not whole.
type gap struct{ field, value, text string }

func (r *roster) whole() bool { return len(r.gaps) == 0 }

// reasons are the gaps, for the side that the instance is on.
func (r *roster) reasons() []*messages.Reason {
	var rs []*messages.Reason
	for _, g := range r.gaps {
		reason := &messages.Reason{Field: g.field, Text: g.text}
		if r.role == messages.Role_ROLE_PREFILL {
			reason.Prefill = g.value
		} else {
			reason.Decode = g.value
		}
		rs = append(rs, reason)
	}
	return rs
}

// rebuild makes the rosters anew that changed.
func (d *Directory) rebuild() {
	if len(d.stale) == 0 {
		return
	}
	seats := map[string][]*seat{}
	d.inOrder(func(s *seat) {
		if d.stale[s.place.instance] && s.holder != nil {
			seats[s.place.instance] = append(seats[s.place.instance], s)
		}
	})
	for _, instance := range sorted(d.stale, compareStrings) {
		if len(seats[instance]) == 0 {
			delete(d.rosters, instance)
		} else {
			d.rosters[instance] = gather(instance, seats[instance])
		}
	}
	clear(d.stale)
}

// gather makes the roster of the holders of some places of an instance.
func gather(instance string, seats []*seat) *roster {
	first := seats[0].holder
	r := &roster{instance: instance, role: first.Role, want: first.DP * first.PP * first.CP * first.TP}
	for _, s := range seats {
		c := s.holder
		r.claims = append(r.claims, c)
		r.local = r.local || c.local
		if !slices.Contains(r.nodes, c.node) {
			r.nodes = append(r.nodes, c.node)
		}
		if c != first {
			r.agree(first, c)
		}
		for _, u := range s.unfenced {
			r.gaps = append(r.gaps, gap{"fence", c.Engine.String(), fmt.Sprintf(
				"engine %s waits for the fence of generation %s with node %s, which served a former one", c.Engine, u.generation, u.node)})
		}
	}
	slices.SortFunc(r.nodes, compareNodes)
	if len(r.gaps) == 0 && len(r.claims) != r.want {
		r.missing(first)
	}
	if r.whole() {
		r.finish(first)
	}
	return r
}

// agree notes in what an engine differs from the first of its instance.
func (r *roster) agree(first, c *claim) {
	differ := func(field string, got, want any) {
		r.gaps = append(r.gaps, gap{field, fmt.Sprint(got), fmt.Sprintf(
			"instance %s: engine (%s) says that %s is %v, engine (%s) %v: start all its ranks alike", r.instance, c.Engine.Rank, field, got, first.Engine.Rank, want)})
	}
	if c.Role != first.Role {
		differ("role", roleName(c.Role), roleName(first.Role))
	}
	for _, s := range [...]struct {
		field     string
		got, want int
	}{{"dp", c.DP, first.DP}, {"pp", c.PP, first.PP}, {"cp", c.CP, first.CP}, {"tp", c.TP, first.TP}} {
		if s.got != s.want {
			differ(s.field, s.got, s.want)
		}
	}
	if c.Split != first.Split {
		differ("cp_split", c.Split, first.Split)
	}
	if field, got, want := difference("model", c.wire.GetModel().ProtoReflect(), first.wire.GetModel().ProtoReflect()); field != "" {
		differ(field, got, want)
	}
}

func roleName(r messages.Role) string {
	if r == messages.Role_ROLE_PREFILL {
		return "prefill"
	}
	return "decode"
}

// missing notes how many of how many there are, and names some that are not.
func (r *roster) missing(first *claim) {
	const named = 4
	var names []string
	n := 0
	for i := range r.want {
		rank := kv.Rank{
			DP: i / (first.PP * first.CP * first.TP), PP: i / (first.CP * first.TP) % first.PP,
			CP: i / first.TP % first.CP, TP: i % first.TP,
		}
		if n < len(r.claims) && r.claims[n].Engine.Rank == rank {
			n++
		} else if len(names) < named {
			names = append(names, "("+rank.String()+")")
		}
	}
	have := fmt.Sprintf("%d of %d", len(r.claims), r.want)
	r.gaps = append(r.gaps, gap{"roster", have, fmt.Sprintf("instance %s: %s engines are known; missing are %s%s",
		r.instance, have, strings.Join(names, ", "), more(r.want-len(r.claims)-len(names)))})
}

func more(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprintf(" and %d more", n)
}

// finish makes the instance and the hash of a whole roster.
func (r *roster) finish(first *claim) {
	r.kv = &kv.Instance{Model: first.Model, DP: first.DP, PP: first.PP, CP: first.CP, TP: first.TP, Split: first.Split}
	for _, c := range r.claims {
		r.kv.Engines = append(r.kv.Engines, c.Kv)
	}
	b := []byte("kvferry roster 1")
	b = binary.BigEndian.AppendUint64(b, uint64(r.role))
	b = appendString(b, r.instance)
	b = r.kv.AppendCanonical(b)
	for _, c := range r.claims {
		b = binary.BigEndian.AppendUint64(b, c.Engine.Incarnation)
		b = appendString(b, c.node.Name)
		b = binary.BigEndian.AppendUint64(b, c.node.Incarnation)
	}
	r.hash = sha256.Sum256(b)
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint64(b, uint64(len(s))), s...)
}

// members are the engines of a whole roster as rooms need them.
func (r *roster) members() []messages.Member {
	ms := make([]messages.Member, len(r.claims))
	for i, c := range r.claims {
		ms[i] = messages.Member{Engine: c.Engine, Node: c.node, Kv: &r.kv.Engines[i], Regions: c.Regions}
	}
	return ms
}
