package sim

// senderMutants are faults of transfer.Sender, and of what both machines of a room share.
var senderMutants = []mutant{
	{
		name: "repost-without-fence", rule: "§4.4: a write that is unknown is posted again at once, not behind a fence",
		edits: []edit{{"transfer/sender_write.go", "if s.fencedBelow[w.target.receiver] > w.generation.Number {", "if s.fencedBelow[w.target.receiver] >= 0 {"}},
	},
	{
		name: "posts-without-limit", rule: "§4.4: a write is posted as often as it fails",
		edits: []edit{{"transfer/sender_write.go", "if w.posts >= s.limits.Posts {", "if w.posts < 0 {"}},
	},
	{
		name: "refused-is-landed", rule: "§9: refused counts as landed",
		edits: []edit{
			{"transfer/sender_write.go", "case rdma.Landed:", "case rdma.Landed, rdma.Refused:"},
			{"transfer/sender_write.go", "\tcase rdma.Refused:\n\t\t// Final. While the room lives its receiver should have taken it.\n\t\tw.state = writeTodo\n\t\ts.fail(s.causeOf(messages.CauseKind_CAUSE_TRANSPORT, \"receiver %s refused a write: %v\", t.receiver, ev.Err))\n", ""},
		},
	},
	{
		name: "partial-not-counted", rule: "§5.1: done leaves out what landed of unknown writes",
		edits: []edit{{"transfer/sender_write.go", "addCapped(counts[i].arrivals, countOf(t.partial, counts[i].stripe))", "addCapped(counts[i].arrivals, 0)"}},
	},
	{
		name: "unknown-is-landed", rule: "§4.4: unknown counts as landed",
		edits: []edit{
			{"transfer/sender_write.go", "case rdma.Landed:", "case rdma.Landed, rdma.Unknown:"},
			{"transfer/sender_write.go", "\tcase rdma.Unknown:\n\t\tt.unknown = addGeneration(t.unknown, ev.Generation)\n\t\tfor _, a", "\tcase 0:\n\t\tfor _, a"},
		},
	},
	{
		name: "window-leak-machine", rule: "§4.2: a write that has completed counts against the window still",
		edits: []edit{{"transfer/sender_write.go", "\tdelete(s.flying, id)\n\treturn w", "\treturn w"}},
	},
	{
		name: "done-before-landed", rule: "§5.1: done is said when everything is posted, not landed",
		edits: []edit{{"transfer/sender_write.go", "t.next == n && t.landed == len(t.writes)", "t.next == n && len(t.todo) == 0"}},
	},
	{
		name: "done-before-last", rule: "§5.1: done is said before the last chunk",
		edits: []edit{{"transfer/sender_write.go", "return n > 0 && s.chunks[n-1].Last && s.chunks[n-1].Layers == 0 && t.next == n", "return n > 0 && t.next == n"}},
	},
	{
		name: "chunk-gap", rule: "§4.1: a gap between chunks is accepted",
		edits: []edit{{"transfer/sender_open.go", "case c.From != before.To:", "case c.From < before.To:"}},
	},
	{
		name: "chunk-start", rule: "§4.1: a first chunk beyond the prefix is accepted",
		edits: []edit{{"transfer/sender_open.go", "case first.From > t.prefix:", "case first.From > t.length:"}},
	},
	{
		name: "chunk-length", rule: "§4.1: a last chunk that ends before the length is accepted",
		edits: []edit{{"transfer/sender_open.go", "case last.Last && last.To != t.length:", "case last.Last && last.To > t.length:"}},
	},
	{
		name: "quiet-without-list", rule: "§6.2: quiet does not name the generations of unknown writes",
		edits: []edit{{"transfer/sender_end.go", "&messages.Quiet{Unknown: wireGenerations(t.unknown)}", "&messages.Quiet{}"}},
	},
	{
		name: "drained-queue-is-quiet", rule: "§6.2: quiet is said when the room's queue is empty, before its writes have completed",
		edits: []edit{{"transfer/sender_end.go", "if !s.posted {", "if len(s.targets) >= 0 {"}},
	},
	{
		name: "completions-are-quiet", rule: "§6.2: quiet is said when every write has completed here, without Quiesce",
		edits: []edit{{"transfer/sender_end.go", "if !s.posted {", "if len(s.flying) == 0 {"}},
	},
	{
		name: "quiesced-list-dropped", rule: "§9: the list that Quiesce returns is dropped",
		edits: []edit{{"transfer/sender_end.go", "for _, g := range ev.Unknown {", "for _, g := range ev.Unknown[:0] {"}},
	},
	{
		name: "unknown-not-kept", rule: "§6.2: the generation of an unknown write is not kept for quiet",
		edits: []edit{{"transfer/sender_write.go", "\t\tt.unknown = addGeneration(t.unknown, ev.Generation)\n", ""}},
	},
	{
		name: "unknown-nowhere", rule: "§6.2: unknown-not-kept, and quiesced-list-dropped",
		edits: []edit{
			{"transfer/sender_write.go", "\t\tt.unknown = addGeneration(t.unknown, ev.Generation)\n", ""},
			{"transfer/sender_end.go", "for _, g := range ev.Unknown {", "for _, g := range ev.Unknown[:0] {"},
		},
	},
	{
		name: "quiet-once", rule: "§1.4: quiet is said once",
		edits: []edit{{"transfer/sender_end.go", "s.repeat(t.receiver, topicQuiet, rdma.GrantID{}, &messages.Quiet{Unknown: wireGenerations(t.unknown)})", "s.send(t.receiver, &messages.Quiet{Unknown: wireGenerations(t.unknown)})"}},
	},
	{
		name: "quiet-not-told", rule: "§6.2: receivers do not hear quiet",
		edits: []edit{{"transfer/sender_end.go", "\t\tif t.gave {", "\t\tif t.gave && t.receiver == (messages.Engine{}) {"}},
	},
	{
		name: "unpin-at-vote", rule: "§6.3: sources are unpinned with the last done, not with the outcome",
		edits: []edit{{"transfer/sender_write.go", "\t\ts.move(SenderVoted)\n", "\t\ts.move(SenderVoted)\n\t\ts.unpin()\n"}},
	},
	{
		name: "unpin-at-done", rule: "§6.3: sources are unpinned with the first done",
		edits: []edit{{"transfer/sender_write.go", "\t\t\tt.done = true\n", "\t\t\tt.done = true\n\t\t\ts.unpin()\n"}},
	},
	{
		name: "unpin-at-failure", rule: "§6.3: sources are unpinned when the room fails, before its writes have ended",
		edits: []edit{{"transfer/sender_end.go", "\ts.localBy.set(s.now.Add(s.limits.Local))\n\ts.emit(Quiesce{})\n}\n\n// quiesceAgain", "\ts.localBy.set(s.now.Add(s.limits.Local))\n\ts.unpin()\n\ts.emit(Quiesce{})\n}\n\n// quiesceAgain"}},
	},
	{
		name: "voted-writer-fails", rule: "§5.4: a writer that has voted fails by itself",
		edits: []edit{{"transfer/sender_end.go", "\tcase SenderVoted:\n\t\tif s.handed == nil {", "\tcase SenderVoted:\n\tcase SenderClosed:\n\t\tif s.handed == nil {"}},
	},
	{
		name: "voted-writer-silent", rule: "§5.4: a writer that has voted does not hand its cause to the decider",
		edits: []edit{{"transfer/sender_end.go", "\t\t\ts.repeat(s.decider(), topicFailed, rdma.GrantID{}, &messages.Failed{Cause: c, Voted: true})\n", ""}},
	},
	{
		name: "writer-guesses", rule: "§5.4: a voted writer whose decider is lost says failed, not unknown",
		edits: []edit{{"transfer/sender_end.go", "s.end(s.unknown(\"the decider %s was lost after this side's vote: %s\", ev.Engine, cause.GetText()))", "s.end(&messages.Outcome{Cause: cause})"}},
	},
	{
		name: "writer-guesses-in-time", rule: "§5.4: a voted writer that hears nothing says failed, not unknown",
		edits: []edit{{"transfer/sender.go", "s.end(s.unknown(\"the decider %s said nothing within the limit after this side's vote\", s.decider()))", "s.end(&messages.Outcome{Cause: s.causeOf(messages.CauseKind_CAUSE_EXPIRED, \"no word\")})"}},
	},
	{
		name: "writer-hopes", rule: "§5.4: a voted writer whose decider is lost says complete, not unknown",
		edits: []edit{{"transfer/sender_end.go", "s.end(s.unknown(\"the decider %s was lost after this side's vote: %s\", ev.Engine, cause.GetText()))", "s.end(&messages.Outcome{Complete: true})"}},
	},
	{
		name: "outcome-of-anybody", rule: "§5.3: a writer takes the outcome of any receiver",
		edits: []edit{{"transfer/sender_end.go", "if len(s.targets) == 0 || from != s.decider() {", "if len(s.targets) == 0 || !s.isReceiver(from) {"}},
	},
	{
		name: "complete-before-vote", rule: "§5.3: a writer that has not voted takes a complete outcome",
		edits: []edit{{"transfer/sender_end.go", "case o.GetComplete() && s.state != SenderVoted:", "case o.GetComplete() && s.ended():"}},
	},
	{
		name: "grant-part-alone", rule: "§3.3: a part of a grant counts alone",
		edits: []edit{{"transfer/sender_grant.go", "case t.got == len(t.parts):", "case t.got > 0:"}},
	},
	{
		name: "digest-not-compared", rule: "§3.3: a grant of another plan is served",
		edits: []edit{{"transfer/sender_grant.go", "if digest != p.digest {", "if len(digest) == 0 {"}},
	},
	{
		name: "roster-not-compared", rule: "§3.3: a grant of another roster generation is served",
		edits: []edit{{"transfer/sender_grant.go", "\tcase p.rosters != s.rosters():\n\t\ts.refuse(t, &p, s.rosterAnswer())\n", ""}},
	},
	{
		name: "roster-and-digest-not-compared", rule: "§3.3: roster-not-compared, and digest-not-compared",
		edits: []edit{
			{"transfer/sender_grant.go", "\tcase p.rosters != s.rosters():\n\t\ts.refuse(t, &p, s.rosterAnswer())\n", ""},
			{"transfer/sender_grant.go", "if digest != p.digest {", "if len(digest) == 0 {"},
		},
	},
	{
		name: "excuse-forgotten", rule: "§3.2: a writer acknowledges that it is excused, and forgets it",
		edits: []edit{{"transfer/sender_grant.go", "\t\tt.state = excused\n\t\ts.send", "\t\ts.send"}},
	},
	{
		name: "declined-ignored", rule: "§3.2: a writer goes on although a receiver has declined",
		edits: []edit{{"transfer/sender_grant.go", "\t\ts.send(from, &messages.DeclinedAck{})\n\t\ts.fail(cleanCause(d.GetCause(), from))", "\t\ts.send(from, &messages.DeclinedAck{})"}},
	},
	{
		name: "failed-ignored", rule: "§3.2: a writer that hears failed tells its caller, and goes on writing",
		edits: []edit{{"transfer/sender_end.go", "\t\ts.cause = o.GetCause()\n\t\ts.acked(from, topicFailed)\n\t\ts.end(o)\n", "\t\ts.cause = o.GetCause()\n\t\ts.acked(from, topicFailed)\n\t\ts.conclude(o, false)\n"}},
	},
	{
		name: "missing-ignored-by-writer", rule: "§5.2: a writer does not post again what the receiver misses",
		edits: []edit{{"transfer/sender_write.go", "if w.state == writeLanded && slices.Contains(list, w.generation) {", "if w.state == writeFlying && slices.Contains(list, w.generation) {"}},
	},
	{
		name: "missing-keeps-vote", rule: "§5.4: a writer whose done is taken back keeps its vote",
		edits: []edit{{"transfer/sender_write.go", "\tif s.state == SenderVoted {\n\t\ts.absoluteBy.set", "\tif s.state == SenderClosed {\n\t\ts.absoluteBy.set"}},
	},
	{
		name: "done-once", rule: "§1.4: done is said once",
		edits: []edit{{"transfer/sender_write.go", "s.repeat(t.receiver, topicDone, t.grant, &messages.Done{", "s.send(t.receiver, &messages.Done{"}},
	},
	{
		name: "new-generation-ignored", rule: "§8: on a new generation nothing is posted again",
		edits: []edit{{"transfer/sender_write.go", "if w.state == writeUnknown {", "if w.state == writeFlying {"}},
	},
	{
		name: "receiver-death-ignored", rule: "§6.1: a writer does not fail when a receiver dies",
		edits: []edit{{"transfer/sender_end.go", "\ts.box.lost(ev.Engine)\n\tif !s.isReceiver(ev.Engine) {", "\ts.box.lost(ev.Engine)\n\tif s.state >= 0 {"}},
	},
	{
		name: "outcome-not-recorded", rule: "§5.3: the engine does not record an outcome",
		edits: []edit{{"transfer/party.go", "\tp.emit(Record{Outcome: o})\n", ""}},
	},
	{
		name: "tombstone-not-left", rule: "§6.5: a room that failed leaves no tombstone",
		edits: []edit{{"transfer/party.go", "\t\tp.emit(Tombstone{Outcome: o})\n", ""}},
	},
	{
		name: "no-trace", rule: "§5.3, §6.5: outcome-not-recorded, and tombstone-not-left",
		edits: []edit{
			{"transfer/party.go", "\tp.emit(Record{Outcome: o})\n", ""},
			{"transfer/party.go", "\t\tp.emit(Tombstone{Outcome: o})\n", ""},
		},
	},
	{
		name: "record-not-answered", rule: "§5.3: for a room that is gone, the decider's engine does not answer a vote",
		edits: []edit{{"transfer/answer.go", "\t\treturn record\n", "\t\treturn nil\n"}},
	},
	{
		name: "gone-room-grants", rule: "§1.3: a grant for a room that is gone is acknowledged as if it were served",
		edits: []edit{{"transfer/answer.go", "return &messages.GrantAck{Id: b.GetId(), Refused: refusal(record)}", "return &messages.GrantAck{Id: b.GetId()}"}},
	},
	{
		name: "early-vote-dropped", rule: "§5.3: a vote that comes before the room is acknowledged, and not kept",
		edits: []edit{{"transfer/early.go", "\tv.votes = append(v.votes, earlyVote{id, from, body, now})\n\tv.shares[from.Instance]++\n", ""}},
	},
	{
		name: "early-vote-stale", rule: "§5.3: of an early voter the first word stands, not that it has failed",
		edits: []edit{{"transfer/early.go", "\t\t\tv.votes[i].body = body\n", ""}},
	},
	{
		name: "lost-peer-resent", rule: "§1.4: messages to a peer that is lost are repeated",
		edits: []edit{{"transfer/outbox.go", "\to.drop(func(k outKey) bool { return k.to != peer })\n", ""}},
	},
	{
		name: "suspect-resent", rule: "§1.4: resends to a suspect peer do not stop",
		edits: []edit{{"transfer/outbox.go", "\to.suspect[peer] = true\n", ""}},
	},
	{
		name: "suspect-silent-after", rule: "§1.4: resends to a peer that was suspect do not go on",
		edits: []edit{{"transfer/outbox.go", "\t\tdelete(o.suspect, peer)\n", ""}},
	},

	// Deadlines that never come.
	{
		name: "no-answer-limit", rule: "§7: a writer waits for grants without a limit",
		edits: []edit{
			{"transfer/sender.go", "at := earliest(s.deadlines(), s.answerBy.at, s.chunkBy.at, s.progressBy.at)", "s.answerBy.clear()\n\tat := earliest(s.deadlines(), s.chunkBy.at, s.progressBy.at)"},
		},
	},
	{
		name: "no-chunk-limit", rule: "§7: a writer that was granted waits for its caller without a limit",
		edits: []edit{
			{"transfer/sender.go", "at := earliest(s.deadlines(), s.answerBy.at, s.chunkBy.at, s.progressBy.at)", "s.chunkBy.clear()\n\tat := earliest(s.deadlines(), s.answerBy.at, s.progressBy.at)"},
		},
	},
	{
		name: "no-progress-limit", rule: "§7: writes stand still without a limit",
		edits: []edit{
			{"transfer/sender.go", "at := earliest(s.deadlines(), s.answerBy.at, s.chunkBy.at, s.progressBy.at)", "s.progressBy.clear()\n\tat := earliest(s.deadlines(), s.answerBy.at, s.chunkBy.at)"},
		},
	},
	{
		name: "no-absolute-limit", rule: "§7: writing has no absolute limit, on either side",
		edits: []edit{{"transfer/party.go", "return earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())", "if p.absoluteBy.isSet() {\n\t\tp.absoluteBy.set(p.absoluteBy.at.Add(time.Hour))\n\t}\n\treturn earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())"}},
	},
	{
		name: "no-vote-limit", rule: "§7: a vote waits for the outcome without a limit, on either side",
		edits: []edit{{"transfer/party.go", "return earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())", "p.voteBy.clear()\n\treturn earliest(p.wordBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next(), p.now.Add(time.Minute))"}},
	},
	{
		name: "no-word-limit", rule: "§7: a room that has failed waits for the decider's word without a limit, on either side",
		edits: []edit{{"transfer/party.go", "return earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())", "if p.wordBy.isSet() {\n\t\tp.wordBy.set(p.now.Add(time.Hour))\n\t}\n\treturn earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())"}},
	},
	{
		name: "no-linger-limit", rule: "§7: a room that has ended tells without a limit, on either side",
		edits: []edit{{"transfer/party.go", "return earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())", "if p.lingerBy.isSet() {\n\t\tp.lingerBy.set(p.now.Add(time.Hour))\n\t}\n\treturn earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())"}},
	},
	{
		name: "lost-peer-resent-without-limit", rule: "§1.4, §7: lost-peer-resent, and no-linger-limit",
		edits: []edit{
			{"transfer/outbox.go", "\to.drop(func(k outKey) bool { return k.to != peer })\n", ""},
			{"transfer/party.go", "return earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())", "if p.lingerBy.isSet() {\n\t\tp.lingerBy.set(p.now.Add(time.Hour))\n\t}\n\treturn earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())"},
		},
	},
	{
		name: "no-local-limit", rule: "§7: the answer of the own node is waited for without a limit, on either side",
		edits: []edit{{"transfer/party.go", "return earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())", "if p.localBy.isSet() {\n\t\tp.localBy.set(p.now.Add(time.Hour))\n\t}\n\treturn earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())"}},
	},
}
