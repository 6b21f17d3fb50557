package transfer

// Limits is filled by limits.go's author: every limit and timeout of a room, each
// with its reason.
type Limits struct{}
