package sim

// receiverMutants are faults of transfer.Receiver.
var receiverMutants = []mutant{
	{
		name: "arrivals-ignored", rule: "§5.2: R has landed by the count of dones, not of arrivals",
		edits: []edit{{"transfer/receiver_land.go", "if countOf(w.counts, need.stripe) < need.arrivals {\n\t\t\treturn false", "if need.arrivals == 0 {\n\t\t\treturn false"}},
	},
	{
		name: "bytes-are-proof", rule: "§5.2: R has landed when it has counted the bytes, without done",
		edits: []edit{
			{"transfer/receiver_land.go", "w.counts = addCount(w.counts, stripe{ev.Generation, ev.Stripe}, ev.Count)", "w.counts = addCount(addCount(w.counts, stripe{ev.Generation, ev.Stripe}, ev.Count), stripe{number: 1 << 31}, ev.Bytes)"},
			{"transfer/receiver_land.go", "all = all && w.isDone && w.arrived()", "all = all && countOf(w.counts, stripe{number: 1 << 31}) >= w.bytes"},
		},
	},
	{
		name: "first-done-is-all", rule: "§5.2: R has landed when one writer is done",
		edits: []edit{{"transfer/receiver_land.go", "all = all && w.isDone && w.arrived()\n\t}\n\tif !all {", "all = all && w.isDone && w.arrived()\n\t\tif w.isDone && w.arrived() {\n\t\t\tbreak\n\t\t}\n\t}\n\tif !all {"}},
	},
	{
		name: "missing-ignored", rule: "§5.2: arrivals that a fence has lost are not asked for again",
		edits: []edit{{"transfer/receiver_land.go", "case len(missing) == 0:", "case len(missing) >= 0:"}},
	},
	{
		name: "excuse-not-waited-for", rule: "§3.2: R votes before whom it excused has acknowledged",
		edits: []edit{{"transfer/receiver_land.go", "all = all && (w.acked || !w.gates)\n", ""}},
	},
	{
		name: "excused-lost-ignored", rule: "§3.2: R goes on when a writer is lost that has not heard that it is excused",
		edits: []edit{{"transfer/receiver_decide.go", "owes := w.named && !w.isDone || w.gates && !w.acked && len(r.receivers) > 1", "owes := w.named && !w.isDone"}},
	},
	{
		name: "writer-death-ignored", rule: "§6.1: R does not fail when a writer dies that owes something",
		edits: []edit{{"transfer/receiver_decide.go", "if owes && r.open() {", "if owes && r.state < 0 {"}},
	},
	{
		name: "receiver-death-ignored-by-receiver", rule: "§6.1: a receiver does not fail when another one dies",
		edits: []edit{{"transfer/receiver_decide.go", "\tif !r.isReceiver(ev.Engine) {\n\t\treturn\n\t}\n\tdecider :=", "\tif r.state >= 0 {\n\t\treturn\n\t}\n\tdecider :="}},
	},
	{
		name: "vote-before-revoke", rule: "§5.2: R votes, and revokes nothing",
		edits: []edit{{"transfer/receiver_land.go", "if w.named && w.state == grantLive {\n\t\t\tr.revoke(w)", "if w.named && w.state == grantInstalling {\n\t\t\tr.revoke(w)"}},
	},
	{
		name: "vote-while-revoking", rule: "§5.2: R votes before its revokes have returned",
		edits: []edit{{"transfer/receiver_decide.go", "\t\tif w.named && w.state == grantRevoking {\n\t\t\treturn\n\t\t}\n\t}\n\tlimit", "\t\tif w.named && w.state == grantInstalling {\n\t\t\treturn\n\t\t}\n\t}\n\tlimit"}},
	},
	{
		name: "meta-not-checked", rule: "§3.3: R does not look at the metadata row",
		edits: []edit{{"transfer/receiver_land.go", "case ev.Room != r.id:", "case ev.Room != r.id && r.state < 0:"}},
	},
	{
		name: "two-deciders", rule: "§5.3: every receiver decides for itself",
		edits: []edit{
			{"transfer/receiver.go", "return len(r.receivers) > 0 && r.decider() == r.self", "return len(r.receivers) > 0"},
			{"transfer/receiver_decide.go", "\tfor _, e := range r.receivers {\n\t\tif !r.votes[e] {\n\t\t\treturn", "\tfor _, e := range r.receivers {\n\t\tif e == r.self && !r.votes[e] {\n\t\t\treturn"},
			{"transfer/sender_end.go", "if len(s.targets) == 0 || from != s.decider() {", "if len(s.targets) == 0 || !s.isReceiver(from) {"},
		},
	},
	{
		name: "decides-alone", rule: "§5.3: the decider completes with its own vote",
		edits: []edit{{"transfer/receiver_decide.go", "\tfor _, e := range r.receivers {\n\t\tif !r.votes[e] {\n\t\t\treturn", "\tfor _, e := range r.receivers {\n\t\tif e == r.self && !r.votes[e] {\n\t\t\treturn"}},
	},
	{
		name: "failed-after-decision", rule: "§5.3: the decider fails a room that it has completed",
		edits: []edit{{"transfer/receiver_decide.go", "\tcase r.outcome != nil:\n\t\tr.retell(from)\n\tdefault:\n\t\tr.send(from, &messages.FailedAck{})", "\tcase r.outcome != nil && r.cause != nil:\n\t\tr.retell(from)\n\tcase r.outcome != nil:\n\t\tr.send(from, &messages.Outcome{Cause: f.GetCause()})\n\tdefault:\n\t\tr.send(from, &messages.FailedAck{})"}},
	},
	{
		name: "failure-not-taken", rule: "§5.3: the decider acknowledges a failure, and forgets it",
		edits: []edit{{"transfer/receiver_decide.go", "\t\tr.fail(cleanCause(f.GetCause(), from))\n", ""}},
	},
	{
		name: "vote-not-taken", rule: "§5.3: the decider acknowledges a vote, and forgets it",
		edits: []edit{{"transfer/receiver_decide.go", "\t\tr.votes[from] = true\n\t\tr.send", "\t\tr.send"}},
	},
	{
		name: "voted-receiver-fails", rule: "§5.4: a receiver that has voted fails by itself",
		edits: []edit{{"transfer/receiver_decide.go", "\tcase r.state == ReceiverVoted:\n\t\tif r.cause == nil {", "\tcase r.state == ReceiverClosed:\n\t\tif r.cause == nil {"}},
	},
	{
		name: "receiver-guesses", rule: "§5.4: a voted receiver whose decider is lost says failed, not unknown",
		edits: []edit{{"transfer/receiver_decide.go", "r.end(r.unknown(\"the decider %s was lost after this side's vote: %s\", ev.Engine, cause.GetText()))", "r.end(&messages.Outcome{Cause: cause})"}},
	},
	{
		name: "receiver-hopes", rule: "§5.4: a voted receiver whose decider is lost says complete, not unknown",
		edits: []edit{{"transfer/receiver_decide.go", "r.end(r.unknown(\"the decider %s was lost after this side's vote: %s\", ev.Engine, cause.GetText()))", "r.complete(&messages.Outcome{Complete: true})"}},
	},
	{
		name: "fails-unheard", rule: "§5.3: a receiver that fails does not tell the decider",
		edits: []edit{{"transfer/receiver_decide.go", "\t\tr.repeat(r.decider(), topicFailed, rdma.GrantID{}, &messages.Failed{Cause: c})\n\t\tr.decline()\n", "\t\tr.decline()\n"}},
	},
	{
		name: "outcome-once", rule: "§1.4: the outcome is told once",
		edits: []edit{{"transfer/receiver_decide.go", "\t\tr.repeat(e, topicOutcome, rdma.GrantID{}, r.outcome)\n", "\t\tr.send(e, r.outcome)\n"}},
	},
	{
		name: "outcome-once-and-not-again", rule: "§1.4, §5.3: outcome-once, and who repeats a vote is not told again",
		edits: []edit{
			{"transfer/receiver_decide.go", "\t\tr.repeat(e, topicOutcome, rdma.GrantID{}, r.outcome)\n", "\t\tr.send(e, r.outcome)\n"},
			{"transfer/receiver_decide.go", "if !r.box.waits(outKey{to: to, topic: topicOutcome}) {", "if r.state < 0 {"},
			{"transfer/answer.go", "\t\treturn record\n", "\t\treturn nil\n"},
		},
	},
	{
		name: "vote-once", rule: "§1.4: landed is said once",
		edits: []edit{{"transfer/receiver_decide.go", "r.repeat(r.decider(), topicLanded, rdma.GrantID{}, &messages.Landed{})", "r.send(r.decider(), &messages.Landed{})"}},
	},
	{
		name: "excuse-once", rule: "§1.4: excused is said once",
		edits: []edit{{"transfer/receiver_open.go", "r.repeat(w.engine, topicExcused, rdma.GrantID{}, &messages.Excused{", "r.send(w.engine, &messages.Excused{"}},
	},
	{
		name: "nobody-excused", rule: "§3.2: engines that nobody elected are not excused",
		edits: []edit{{"transfer/receiver_open.go", "for _, rank := range nobody {", "for _, rank := range nobody[:0] {"}},
	},
	{
		name: "early-vote-forgotten", rule: "§5.3: a vote that comes before the pairing is forgotten",
		edits: []edit{{"transfer/receiver_land.go", "\t\tr.early = append(r.early, ev)\n", ""}},
	},
	{
		name: "foreign-vote-ignored", rule: "§5.4: a vote of an incarnation that is not on the roster fails no room",
		edits: []edit{{"transfer/receiver_land.go", "if other && isVote(ev.Body) && r.state < ReceiverDraining {", "if other && r.state < 0 {"}},
	},
	{
		name: "election-by-own-view", rule: "§3.1: R elects by more than the rosters and the room",
		edits: []edit{{"transfer/receiver_open.go", "DecodeDP: r.self.Rank.DP, Room: r.id.Room})\n\tif r.state == ReceiverTelling", "DecodeDP: r.self.Rank.DP, Room: r.id.Room + uint64(len(r.box.suspect)) + uint64(r.now.Second()%2)})\n\tif r.state == ReceiverTelling"}},
	},
	{
		name: "grant-before-install", rule: "§9: a grant leaves before it is installed",
		edits: []edit{{"transfer/receiver_open.go", "\t\tr.emit(InstallGrant{Grant: w.grant, Writer: w.engine, Ranges: w.ranges})\n", "\t\tw.sent = true\n\t\tr.emit(r.box.put(r.now, outKey{w.engine, topicGrant, w.grant}, func(now time.Time) []any { return r.grantParts(w, now) })...)\n\t\tr.emit(InstallGrant{Grant: w.grant, Writer: w.engine, Ranges: w.ranges})\n"}},
	},
	{
		name: "grants-not-revoked", rule: "§6.2: a receiver whose room has failed elsewhere does not revoke what it granted",
		edits: []edit{{"transfer/receiver_drain.go", "\t\tif w.state == grantLive {\n\t\t\tr.revoke(w)\n\t\t}\n\t\tr.closeQuiet(w)", "\t\tif w.state == grantLive && r.decides() {\n\t\t\tr.revoke(w)\n\t\t}\n\t\tr.closeQuiet(w)"}},
	},
	{
		name: "late-install-kept", rule: "§6.2: a grant that is installed after its room has failed is kept",
		edits: []edit{{"transfer/receiver_open.go", "\tif r.state == ReceiverDraining {\n\t\tr.revoke(w)\n\t\treturn\n\t}\n", "\tif r.state == ReceiverDraining {\n\t\tw.state = grantClosed\n\t\treturn\n\t}\n"}},
	},
	{
		name: "pages-by-deadline", rule: "§6.3: pages are free when the limit of draining has passed",
		edits: []edit{{"transfer/receiver_drain.go", "\t\t\tr.emit(Fence{Peer: w.engine})\n\t\t}\n\t}\n}", "\t\t\tr.emit(Fence{Peer: w.engine})\n\t\t}\n\t\tw.state = grantClosed\n\t}\n\tr.release()\n}"}},
	},
	{
		name: "pages-by-promise", rule: "§6.3: pages are free when the revoke was answered, closed or not",
		edits: []edit{{"transfer/receiver_drain.go", "\tif ev.Closed {\n\t\tw.state", "\tif ev.Closed || r.state == ReceiverDraining {\n\t\tw.state"}},
	},
	{
		name: "quiet-list-ignored", rule: "§6.3: pages are free with quiet, although generations on its list are not fenced",
		edits: []edit{{"transfer/receiver_drain.go", "if !r.fencedHere(w, g) {", "if !r.fencedHere(w, g) && r.state < 0 {"}},
	},
	{
		name: "drain-for-one", rule: "§6.2: one writer that is quiet closes the grants of all",
		edits: []edit{{"transfer/receiver_drain.go", "\t\t\tr.closeQuiet(w)\n\t\t}\n\t}\n\tr.send", "\t\t\tr.closeQuiet(w)\n\t\t\tfor _, o := range r.writers {\n\t\t\t\tif o.state == grantOpen && w.state == grantClosed {\n\t\t\t\t\to.state = grantClosed\n\t\t\t\t}\n\t\t\t}\n\t\t}\n\t}\n\tr.send"}},
	},
	{
		name: "open-after-fence-ignored", rule: "§6.4: pages of a grant that a fence could not close are free",
		edits: []edit{{"transfer/receiver_drain.go", "if open >= 0 {", "if open > len(ev.Open) {"}},
	},
	{
		name: "stuck-forgotten", rule: "§6.4: a fence that has left a grant open counts as one that closed it",
		edits: []edit{{"transfer/receiver_drain.go", "w.stuck == \"\" && g.Number < r.fencedBelow[w.engine]", "g.Number < r.fencedBelow[w.engine]"}},
	},
	{
		name: "no-refence", rule: "§6.4: what a fence could not close is not fenced again",
		edits: []edit{{"transfer/receiver_drain.go", "\tr.fenceBy.set(r.now.Add(r.limits.Refence))\n", "\tr.fenceBy.clear()\n"}},
	},
	{
		name: "late-close-ignored", rule: "§6.4: R does not hear that a grant has closed later",
		edits: []edit{{"transfer/receiver_drain.go", "w.state == grantOpen && ev.Closed // what", "w.state == grantOpen && ev.Closed && r.state < 0 // what"}},
	},
	{
		name: "no-refence-and-late-close-ignored", rule: "§6.4: no-refence, and late-close-ignored",
		edits: []edit{
			{"transfer/receiver_drain.go", "\tr.fenceBy.set(r.now.Add(r.limits.Refence))\n", "\tr.fenceBy.clear()\n"},
			{"transfer/receiver_drain.go", "w.state == grantOpen && ev.Closed // what", "w.state == grantOpen && ev.Closed && r.state < 0 // what"},
		},
	},
	{
		name: "lost-writer-not-fenced", rule: "§6.3: what a lost writer has left open is not fenced",
		edits: []edit{{"transfer/receiver_drain.go", "if r.state == ReceiverDraining && w.lost && w.state == grantOpen {", "if r.state < 0 {"}},
	},
	{
		name: "quiet-not-heard", rule: "§6.2: R acknowledges quiet, and forgets it",
		edits: []edit{{"transfer/receiver_drain.go", "\t\tw.quiet, w.unknown = true, list\n", "\t\tw.unknown = list\n"}},
	},
	{
		name: "fence-not-heard", rule: "§6.3: R does not take a fence for the end of its grants",
		edits: []edit{{"transfer/receiver_drain.go", "if w.state == grantOpen && r.state == ReceiverDraining {\n\t\t\tw.state = grantClosed", "if w.state == grantOpen && r.state < 0 {\n\t\t\tw.state = grantClosed"}},
	},
	{
		name: "no-drain-limit", rule: "§7: grants stay open without a limit",
		edits: []edit{{"transfer/receiver_drain.go", "\tr.fenceBy.set(r.now.Add(r.limits.Drain))\n", "\tr.fenceBy.clear()\n"}},
	},
	{
		name: "quiet-nor-limit", rule: "§6.2, §7: quiet-not-heard, and no-drain-limit",
		edits: []edit{
			{"transfer/receiver_drain.go", "\t\tw.quiet, w.unknown = true, list\n", "\t\tw.unknown = list\n"},
			{"transfer/receiver_drain.go", "\tr.fenceBy.set(r.now.Add(r.limits.Drain))\n", "\tr.fenceBy.clear()\n"},
		},
	},
	{
		name: "loss-nor-limit", rule: "§6.3, §7: lost-writer-not-fenced, and no-drain-limit",
		edits: []edit{
			{"transfer/receiver_drain.go", "if r.state == ReceiverDraining && w.lost && w.state == grantOpen {", "if r.state < 0 {"},
			{"transfer/receiver_drain.go", "\tr.fenceBy.set(r.now.Add(r.limits.Drain))\n", "\tr.fenceBy.clear()\n"},
		},
	},
	{
		name: "quiet-nor-loss-nor-limit", rule: "§6.2, §6.3, §7: quiet-not-heard, lost-writer-not-fenced and no-drain-limit",
		edits: []edit{
			{"transfer/receiver_drain.go", "if r.state == ReceiverDraining && w.lost && w.state == grantOpen {", "if r.state < 0 {"},
			{"transfer/receiver_drain.go", "\t\tw.quiet, w.unknown = true, list\n", "\t\tw.unknown = list\n"},
			{"transfer/receiver_drain.go", "\tr.fenceBy.set(r.now.Add(r.limits.Drain))\n", "\tr.fenceBy.clear()\n"},
		},
	},
	{
		name: "fence-nor-late-close", rule: "§6.3, §6.4: fence-not-heard, and late-close-ignored",
		edits: []edit{
			{"transfer/receiver_drain.go", "if w.state == grantOpen && r.state == ReceiverDraining {\n\t\t\tw.state = grantClosed", "if w.state == grantOpen && r.state < 0 {\n\t\t\tw.state = grantClosed"},
			{"transfer/receiver_drain.go", "w.state == grantOpen && ev.Closed // what", "w.state == grantOpen && ev.Closed && r.state < 0 // what"},
		},
	},
	{
		name: "no-wait-limit", rule: "§7: R waits for prefill without a limit",
		edits: []edit{{"transfer/receiver.go", "return earliest(r.deadlines(), r.waitBy.at, r.stallBy.at, r.fenceBy.at)", "if r.waitBy.isSet() {\n\t\tr.waitBy.set(r.now.Add(time.Hour))\n\t}\n\treturn earliest(r.deadlines(), r.waitBy.at, r.stallBy.at, r.fenceBy.at)"}},
	},
	{
		name: "no-stall-limit", rule: "§7: R waits for the next byte without a limit",
		edits: []edit{{"transfer/receiver.go", "return earliest(r.deadlines(), r.waitBy.at, r.stallBy.at, r.fenceBy.at)", "r.stallBy.clear()\n\treturn earliest(r.deadlines(), r.waitBy.at, r.fenceBy.at)"}},
	},
	{
		name: "no-stall-nor-absolute-limit", rule: "§7: no-stall-limit, and no-absolute-limit",
		edits: []edit{
			{"transfer/receiver.go", "return earliest(r.deadlines(), r.waitBy.at, r.stallBy.at, r.fenceBy.at)", "r.stallBy.clear()\n\treturn earliest(r.deadlines(), r.waitBy.at, r.fenceBy.at)"},
			{"transfer/party.go", "return earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())", "if p.absoluteBy.isSet() {\n\t\tp.absoluteBy.set(p.absoluteBy.at.Add(time.Hour))\n\t}\n\treturn earliest(p.wordBy.at, p.voteBy.at, p.localBy.at, p.lingerBy.at, p.absoluteBy.at, p.box.next())"},
		},
	},
}
