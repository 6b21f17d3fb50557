package sim

import "slices"

// bugs are faults of a program of this kind, each of one rule that it could leave out.
// The world then does as such a program would.
var bugs = []string{
	"arrival-before-bytes",
	"attempt-ignored",
	"before-computed",
	"dedupe-by-address",
	"drained-is-quiet",
	"fence-closes-silently",
	"fence-does-nothing",
	"fence-early",
	"free-ignored",
	"free-on-abort",
	"gossip-is-fence",
	"grant-ids-reused",
	"no-tombstone",
	"numbers-restart",
	"open-grants-dropped",
	"pair-kept",
	"partial-forgotten",
	"records-forgotten",
	"release-by-deadline",
	"repost-without-fence",
	"revoke-does-nothing",
	"revoke-lies",
	"sessions-by-name",
	"suspects-kept",
	"target-incarnation",
	"unknown-failure-forgotten",
	"unknown-is-quiet",
	"unpin-early",
	"votes-dropped",
	"waiters-forgotten",
	"window-leak",
}

// Bugs names them.
func Bugs() []string { return slices.Clone(bugs) }

// bug says whether a fault of the program is planted.
func (w *world) bug(name string) bool { return w.options.Bug == name }
