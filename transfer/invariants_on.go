//go:build invariants

package transfer

const invariants = true
