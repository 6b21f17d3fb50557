package sim

// linkMutants are faults of pairing.Link.
var linkMutants = []mutant{
	{
		name: "lower-numbers-taken", rule: "§1.2: a lower number is taken",
		edits: []edit{{"pairing/link_envelope.go", "if e.GetNumber() <= l.taken || l.phase == ended", "if l.phase == ended"}},
	},
	{
		name: "numbers-begin-anew", rule: "§1.2: a Link begins its numbers anew",
		edits: []edit{{"pairing/link.go", "numbers: numbers{sent: c.FirstNumber}", "numbers: numbers{}"}},
	},
	{
		name: "numbers-begin-anew-unhinted", rule: "§1.2: numbers-begin-anew, and who hears that it has forgotten does not go on above",
		edits: []edit{
			{"pairing/link.go", "numbers: numbers{sent: c.FirstNumber}", "numbers: numbers{}"},
			{"pairing/link_envelope.go", "\tl.sent = max(l.sent, e.GetPing().GetNumberSeen(), e.GetHello().GetNumberSeen(), e.GetHelloAck().GetNumberSeen())\n", ""},
		},
	},
	{
		name: "numbers-reset-on-reconnect", rule: "§1.2: numbers begin anew with each generation",
		edits: []edit{{"pairing/link_hello.go", "\tl.resend.reset()\n\tl.sayHello()", "\tl.resend.reset()\n\tl.sent = 0\n\tl.sayHello()"}},
	},
	{
		name: "numbers-reset-on-reconnect-unhinted", rule: "§1.2: numbers-reset-on-reconnect, and nobody hears of it",
		edits: []edit{
			{"pairing/link_hello.go", "\tl.resend.reset()\n\tl.sayHello()", "\tl.resend.reset()\n\tl.sent = 0\n\tl.sayHello()"},
			{"pairing/link_envelope.go", "\tl.sent = max(l.sent, e.GetPing().GetNumberSeen(), e.GetHello().GetNumberSeen(), e.GetHelloAck().GetNumberSeen())\n", ""},
		},
	},
	{
		name: "taken-before-hello", rule: "§1.2: something is taken before a hello",
		edits: []edit{{"pairing/link_envelope.go", "if !l.greeted && !l.confirms(e.GetPing()) {", "if !l.greeted && l.phase == 0 {"}},
	},
	{
		name: "other-life-taken", rule: "§1.1: a message of or for another incarnation of the node is taken",
		edits: []edit{{"pairing/link_envelope.go", "if from != l.c.Peer || to != l.c.Self {", "if from.Name != l.c.Peer.Name || to.Name != l.c.Self.Name {"}},
	},
	{
		name: "hello-before-fence", rule: "§2.3: a hello is said and answered before the own fence of lower generations has returned",
		edits: []edit{{"pairing/link.go", "\tif len(l.fences) > 0 {\n\t\treturn\n\t}\n\tswitch {", "\tif len(l.fences) > 0 && l.phase == ended {\n\t\treturn\n\t}\n\tswitch {"}},
	},
	{
		name: "former-link-not-fenced", rule: "§2.3: what an earlier Link has left is not fenced",
		edits: []edit{{"pairing/link.go", "\t\tl.fence(g)\n\t\tl.top", "\t\tl.top"}},
	},
	{
		name: "crossing-hellos-both-fall", rule: "§2.3: of two hellos that cross none stands",
		edits: []edit{{"pairing/link_hello.go", "case l.phase == proposing && l.low:", "case l.phase == proposing && l.low && l.closed:"}},
	},
	{
		name: "crossing-hellos-both-stand", rule: "§2.3: of two hellos that cross both stand",
		edits: []edit{{"pairing/link_hello.go", "case l.phase == proposing && l.low:", "case l.phase == proposing:"}},
	},
	{
		name: "generation-not-above", rule: "§2.3: a hello may propose a generation that was there",
		edits: []edit{
			{"pairing/link_hello.go", "Generation: l.top + 1, Nonce: l.nonce,", "Generation: 1, Nonce: l.nonce,"},
			{"pairing/link_hello.go", "number := max(h.GetGeneration(), l.top+1)", "number := max(h.GetGeneration(), 1)"},
			{"pairing/link_hello.go", "l.oursIn(g) == l.nonce && g.Number > l.top:", "l.oursIn(g) == l.nonce:"},
		},
	},
	{
		name: "old-answer-taken", rule: "§2.3: the answer to another hello is taken",
		edits: []edit{{"pairing/link_hello.go", "case l.phase == proposing && l.oursIn(g) == l.nonce && g.Number > l.top:", "case l.phase == proposing && g.Number > l.top:"}},
	},
	{
		name: "moved-on-unnoticed", rule: "§2.3: a peer that speaks of another generation is not taken to have moved on",
		edits: []edit{
			{"pairing/link_live.go", "} else if l.agreed() && p.GetGeneration().Rdma() != l.gen {", "} else if l.agreed() && l.closed {"},
			{"pairing/link_live.go", "if l.agreed() && p.GetSequence() >= l.firstPing && p.GetGeneration().Rdma() != l.gen {", "if l.agreed() && l.closed {"},
		},
	},
	{
		name: "up-by-answer", rule: "§2.3: who answered a hello goes up before it is shown that the answer was heard",
		edits: []edit{{"pairing/link_session.go", "\tif l.phase == connecting {\n\t\tl.goUp()\n\t}\n}", "\tif l.phase == connecting || l.phase == answering {\n\t\tl.greeted = true\n\t\tl.goUp()\n\t}\n}"}},
	},
	{
		name: "loss-is-fence", rule: "§2.2: a peer that gossip calls dead is not fenced",
		edits: []edit{{"pairing/link_live.go", "\tl.pending = nil\n\tl.drop(cause)\n\tl.phase = ended", "\tl.pending, l.opened = nil, false\n\tl.drop(cause)\n\tl.phase = ended"}},
	},
	{
		name: "closed-before-fence", rule: "§2.2: a Link closes before its fences have returned",
		edits: []edit{{"pairing/link.go", "\tif len(l.fences) > 0 {\n\t\treturn\n\t}\n\tswitch {", "\tif len(l.fences) > 0 && l.phase != ended {\n\t\treturn\n\t}\n\tswitch {"}},
	},
	{
		name: "fence-leaves-nothing-open", rule: "§9: what a fence could not close is not told",
		edits: []edit{{"pairing/link_session.go", "\tl.emit(FencedHere(ev))", "\tev.Open = nil\n\tl.emit(FencedHere(ev))"}},
	},
	{
		name: "fence-of-nothing-is-done", rule: "§9: a fence of what is not connected is answered without the provider",
		edits: []edit{{"pairing/link_session.go", "\tl.fence(ev.Generation)\n}", "\tl.emit(FencedHere{Generation: ev.Generation})\n}"}},
	},
	{
		name: "fence-not-wanted", rule: "§6.4: a room that wants a fence gets none",
		edits: []edit{{"pairing/link_session.go", "case l.opened && (whichever || ev.Generation == l.gen):\n\t\tl.drop", "case l.opened && (whichever || ev.Generation == l.gen):\n\t\treturn\n\tcase l.closed:\n\t\tl.drop"}},
	},
	{
		name: "fence-by-old-word", rule: "§2.3: a fence that returns, of whatever generation, ends the wait",
		edits: []edit{{"pairing/link_session.go", "if n := slices.Index(l.fences, ev.Generation); n >= 0 {\n\t\tl.fences = slices.Delete(l.fences, n, n+1)", "if n := slices.Index(l.fences, ev.Generation); n >= 0 {\n\t\tl.fences = nil"}},
	},
	{
		name: "redial-undamped", rule: "§2.3: redials are not damped",
		edits: []edit{{"pairing/link_session.go", "wait := min(l.c.Limits.RedialMin<<min(l.attempts, 16), l.c.Limits.RedialMax)", "wait := l.c.Limits.RedialMin / 50"}},
	},
	{
		name: "hello-once", rule: "§1.4: a hello is said once",
		edits: []edit{
			{"pairing/link.go", "if due(l.resend.at) {\n\t\t\tl.unanswered()\n\t\t\tl.sayHello()", "if due(l.resend.at) {\n\t\t\tl.unanswered()\n\t\t\tl.resend.next(l.now, l.c.Limits.ResendMin, l.c.Limits.ResendMax, 0)"},
		},
	},
	{
		name: "answer-not-repeated", rule: "§1.4: a hello that comes again is not answered again",
		edits: []edit{{"pairing/link_hello.go", "\t\tl.sayAck() // it did not hear our answer\n", ""}},
	},
	{
		name: "no-connect-limit", rule: "§7: a generation that does not come up is waited for without a limit",
		edits: []edit{
			{"pairing/link.go", "\tcase answering, connecting:\n\t\tif due(l.limitAt) {\n\t\t\tl.onLimit()\n\t\t}\n", ""},
			{"pairing/link.go", "\tcase answering, connecting:\n\t\td = earlier(d, l.limitAt)\n", ""},
		},
	},
	{
		name: "old-answer-taken-unnoticed", rule: "§2.3: old-answer-taken, and moved-on-unnoticed",
		edits: []edit{
			{"pairing/link_hello.go", "case l.phase == proposing && l.oursIn(g) == l.nonce && g.Number > l.top:", "case l.phase == proposing && g.Number > l.top:"},
			{"pairing/link_live.go", "} else if l.agreed() && p.GetGeneration().Rdma() != l.gen {", "} else if l.agreed() && l.closed {"},
			{"pairing/link_live.go", "if l.agreed() && p.GetSequence() >= l.firstPing && p.GetGeneration().Rdma() != l.gen {", "if l.agreed() && l.closed {"},
		},
	},
	{
		name: "moved-on-unnoticed-without-limit", rule: "§2.3, §7: moved-on-unnoticed, and no-connect-limit",
		edits: []edit{
			{"pairing/link.go", "\tcase answering, connecting:\n\t\tif due(l.limitAt) {\n\t\t\tl.onLimit()\n\t\t}\n", ""},
			{"pairing/link.go", "\tcase answering, connecting:\n\t\td = earlier(d, l.limitAt)\n", ""},
			{"pairing/link_live.go", "} else if l.agreed() && p.GetGeneration().Rdma() != l.gen {", "} else if l.agreed() && l.closed {"},
			{"pairing/link_live.go", "if l.agreed() && p.GetSequence() >= l.firstPing && p.GetGeneration().Rdma() != l.gen {", "if l.agreed() && l.closed {"},
		},
	},
	{
		name: "answer-once-without-limit", rule: "§1.4, §7: answer-not-repeated, and no-connect-limit",
		edits: []edit{
			{"pairing/link.go", "\tcase answering, connecting:\n\t\tif due(l.limitAt) {\n\t\t\tl.onLimit()\n\t\t}\n", ""},
			{"pairing/link.go", "\tcase answering, connecting:\n\t\td = earlier(d, l.limitAt)\n", ""},
			{"pairing/link_hello.go", "\t\tl.sayAck() // it did not hear our answer\n", ""},
		},
	},
	{
		name: "fence-not-wanted-nor-quiet", rule: "§6.2, §6.4: fence-not-wanted, and quiet-not-heard",
		edits: []edit{
			{"pairing/link_session.go", "case l.opened && (whichever || ev.Generation == l.gen):\n\t\tl.drop", "case l.opened && (whichever || ev.Generation == l.gen):\n\t\treturn\n\tcase l.closed:\n\t\tl.drop"},
			{"transfer/receiver_drain.go", "\t\tw.quiet, w.unknown = true, list\n", "\t\tw.unknown = list\n"},
		},
	},
	{
		name: "any-life-taken", rule: "§1.1: other-life-taken, and an engine takes what is for another incarnation of it",
		bug:   "target-incarnation",
		edits: []edit{{"pairing/link_envelope.go", "if from != l.c.Peer || to != l.c.Self {", "if from.Name != l.c.Peer.Name || to.Name != l.c.Self.Name {"}},
	},
	{
		name: "never-suspect", rule: "§2.4: a pair that misses answers is not suspect",
		edits: []edit{{"pairing/link_live.go", "l.missed >= l.c.Limits.SuspectAfter && l.greeted {", "l.missed >= l.c.Limits.SuspectAfter && l.closed {"}},
	},
	{
		name: "suspect-for-ever", rule: "§2.4: a pair that answers again stays suspect",
		edits: []edit{
			{"pairing/link_live.go", "if l.good++; l.suspect && l.good >= l.c.Limits.TrustAfter {", "if l.good++; l.suspect && l.closed {"},
			{"pairing/link_session.go", "\tl.setSuspect(false)\n\tl.emit(Up", "\tl.emit(Up"},
		},
	},
	{
		name: "deaf-is-well", rule: "§2.4: a ping that shows that the peer does not hear us counts as an answer",
		edits: []edit{{"pairing/link_live.go", "return p != nil && p.GetNumberSeen() < l.told[1]", "return p != nil && l.closed"}},
	},
	{
		name: "probe-without-limit", rule: "§2.2: a probe has no limit",
		edits: []edit{{"pairing/link_live.go", "\tl.probeAt = l.now.Add(l.c.Limits.ProbeTimeout)\n", "\tl.probeAt = l.now.Add(1000 * l.c.Limits.ProbeTimeout)\n"}},
	},
	{
		name: "disconnect-unnoticed", rule: "§2.3: a session that breaks is not made again",
		edits: []edit{{"pairing/link_session.go", "if !l.opened || ev.Generation != l.gen {\n\t\treturn\n\t}\n\ttext := \"session lost\"", "if !l.opened || ev.Generation != l.gen || l.phase == up {\n\t\treturn\n\t}\n\ttext := \"session lost\""}},
	},
}

// directoryMutants are faults of pairing.Directory, and of cluster.View below it.
var directoryMutants = []mutant{
	{
		name: "former-holder-not-fenced", rule: "§2.2: a new incarnation is granted before the old one is fenced",
		edits: []edit{{"pairing/roster.go", "for _, u := range s.unfenced {", "for _, u := range s.unfenced[:0] {"}},
	},
	{
		name: "replaced-though-alive", rule: "§2.2: who takes the place of a living engine is not refused",
		edits: []edit{{"pairing/seat.go", "case ev.Alive:\n\t\t\td.turnAway(s)", "case ev.Alive && len(s.newcomers) == 0:\n\t\t\td.turnAway(s)"}},
	},
	{
		name: "newcomer-refused-for-good", rule: "§2.2: who was refused is not considered again",
		edits: []edit{{"pairing/seat.go", "\t\t\ts.asked, s.retryAt = false, time.Time{}\n\t\t\td.settle(s)\n", "\t\t\ts.retryAt = time.Time{}\n"}},
	},
	{
		name: "superseded-heard", rule: "§2.2: a life whose address another one has is listened to",
		edits: []edit{
			{"pairing/catalog.go", "\tif n.superseded {\n\t\treturn // said", "\tif n.superseded && n.up {\n\t\treturn // said"},
			{"pairing/pair.go", "if n.superseded {", "if n.superseded && n.up {"},
		},
	},
	{
		name: "same-address-not-replaced", rule: "§2.2: another incarnation at the same address does not replace the old one",
		edits: []edit{{"pairing/seat.go", "if c.node == s.holder.node || d.supersedes(c.node, s.holder.node) {", "if c.node == s.holder.node {"}},
	},
	{
		name: "loss-not-told", rule: "§6.1: rooms do not hear that an engine is lost",
		edits: []edit{{"pairing/seat.go", "\td.emit(EngineLost{Engine: old.Engine, Cause: cause})\n", ""}},
	},
	{
		name: "pairing-kept", rule: "§2.5: a pairing is not over when a roster changes",
		edits: []edit{{"pairing/pair.go", "if p.told != nil && (!whole || p.told.PrefillRoster != prefill.hash || p.told.DecodeRoster != decode.hash) {", "if p.told != nil && p.name.prefill == \"\" {"}},
	},
	{
		name: "roster-served-in-part", rule: "§2.1: a pairing is kept while a roster is not whole",
		edits: []edit{{"pairing/pair.go", "if p.told != nil && (!whole || p.told.PrefillRoster", "if p.told != nil && whole && (p.told.PrefillRoster"}},
	},
	{
		name: "ready-alone", rule: "§2.1: a pair is ready without the word of the others",
		edits: []edit{{"pairing/pair.go", "case p.word.GetReady() && len(p.waits) == 0:", "case p.word.GetReady():"}},
	},
	{
		name: "ready-for-other-rosters", rule: "§2.1: a pair is ready with a word on other rosters",
		edits: []edit{{"pairing/pair.go", "case !bytes.Equal(w.GetPrefillRoster(), p.word.GetPrefillRoster()) || !bytes.Equal(w.GetDecodeRoster(), p.word.GetDecodeRoster()):", "case len(w.GetPrefillRoster()) == 0:"}},
	},
	{
		name: "siblings-not-asked", rule: "§2.4: an instance is ready although its decider does not reach all its receivers",
		edits: []edit{{"pairing/pair.go", "nodes = append(append(nodes, prefill.nodes...), decode.nodes...)", "nodes = append(nodes, prefill.nodes...)"}},
	},
	{
		name: "suspects-served", rule: "§2.4: new rooms do not wait for a suspect peer",
		edits: []edit{{"pairing/pair.go", "case n.suspect:", "case n.suspect && !n.up:"}},
	},
	{
		name: "waiting-for-ever", rule: "§2.4: rooms that wait for a suspect peer are not told that it answers",
		edits: []edit{{"pairing/pair.go", "\tif p.told != nil && !p.waiting {\n\t\treturn\n\t}\n\tif p.told == nil {", "\tif p.told != nil {\n\t\treturn\n\t}\n\tif p.told == nil {"}},
	},
	{
		name: "catalog-once", rule: "§1.4: a catalog is said once",
		edits: []edit{{"pairing/neighbor.go", "\t\tn.catalog.say(d.now, d.version, &d.c.Limits)\n", "\t\tn.catalog.say(d.now, d.version, &d.c.Limits)\n\t\tn.catalog.acked = d.version\n"}},
	},
	{
		name: "word-once", rule: "§1.4: a word on a pair is said once",
		edits: []edit{{"pairing/neighbor.go", "\t\t\tb.say(d.now, p.word.GetSequence(), &d.c.Limits)\n", "\t\t\tb.say(d.now, p.word.GetSequence(), &d.c.Limits)\n\t\t\tb.acked = p.word.GetSequence()\n"}},
	},
	{
		name: "old-word-counts", rule: "§2.1: the newest word does not count, but the one that comes last",
		edits: []edit{{"pairing/pair.go", "d.unchanged = known.GetSequence() >= w.GetSequence()", "d.unchanged = false"}},
	},
	{
		name: "old-word-of-lower-number", rule: "§2.1, §1.2: old-word-counts, and lower-numbers-taken",
		edits: []edit{
			{"pairing/pair.go", "d.unchanged = known.GetSequence() >= w.GetSequence()", "d.unchanged = false"},
			{"pairing/link_envelope.go", "if e.GetNumber() <= l.taken || l.phase == ended", "if l.phase == ended"},
		},
	},
	{
		name: "forgetting-not-noticed", rule: "§2.1: a node that has forgotten our catalog is not told again",
		edits: []edit{{"pairing/catalog.go", "if c.GetHave() < n.catalog.acked {", "if c.GetHave() > n.catalog.acked {"}},
	},
	{
		name: "newest-incarnation-wins", rule: "§2.2: of two at one address the clock decides, for good",
		edits: []edit{{"cluster/view.go", "\tfor j, c := range v.claims {\n\t\tif !c.up || !clash(m, c.Member) {", "\tfor j, c := range v.claims {\n\t\tif clash(m, c.Member) && c.Incarnation > m.Incarnation {\n\t\t\treturn nil, false\n\t\t}\n\t\tif !c.up || !clash(m, c.Member) {"}},
	},
	{
		name: "both-at-one-address", rule: "§2.2: two lives of a node are there at once",
		edits: []edit{{"cluster/view.go", "func clash(a, b Member) bool { return a.Name == b.Name || samePlace(a, b) }", "func clash(a, b Member) bool { return key(a) == key(b) }"}},
	},
	{
		name: "held-for-ever", rule: "§2.2: who is held is not there when the other is dead",
		edits: []edit{{"cluster/view.go", "return v.settle([]Event{Down{old.Member, g.Reason}})", "return []Event{Down{old.Member, g.Reason}}"}},
	},
}
