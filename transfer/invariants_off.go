//go:build !invariants

package transfer

const invariants = false
