// Package rdmatest is the contract of rdma.Provider as a suite. Every provider
// runs it, with each promise of the package doc and of the seam as a subtest.
package rdmatest

import (
	"testing"

	"kvferry/transport/rdma"
)

// Pair makes two providers that can reach each other. The suite closes them.
type Pair func(t *testing.T) (a, b rdma.Provider)

// Run checks that what pair makes keeps the contract.
func Run(t *testing.T, pair Pair) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, w *World)
	}{
		{"BytesAreExactAndNothingElseChanges", bytesAreExact},
		{"BothDirectionsAtOnce", bothDirections},
		{"ArrivalsAddUp", arrivalsAddUp},
		{"ATagWithLittleIsNotKeptWaiting", tagsTakeTurns},

		{"OutsideTheGrantIsRefused", outsideIsRefused},
		{"GrantsAreChecked", grantsAreChecked},
		{"PostTakesAllOrNothing", postTakesAllOrNothing},
		{"FullEnds", fullEnds},
		{"RegionsInUseStay", regionsInUseStay},

		{"NothingLandsAfterRevoked", nothingLandsAfterRevoked},
		{"RevokeIsAlwaysAnswered", revokeIsAlwaysAnswered},
		{"NothingIsReadAfterQuiesced", nothingIsReadAfterQuiesced},
		{"QuiesceIsAlwaysAnswered", quiesceIsAlwaysAnswered},

		{"NothingLandsAfterFencedAtTheReceiver", nothingLandsAfterFenced},
		{"NothingIsReadAfterFencedAtTheSender", nothingIsReadAfterFenced},
		{"FenceIsAlwaysAnswered", fenceIsAlwaysAnswered},
		{"WhatWasUnknownIsPostedAgainUnderTheSameGrant", postedAgain},
		{"EveryWriteCompletesOnceWhenThePeerCloses", peerCloses},
		{"EveryWriteCompletesOnceWhenTheProviderCloses", providerCloses},

		{"GenerationsAreToldApart", generationsAreToldApart},
		{"TheOrderOfConnectIsFree", orderOfConnectIsFree},
		{"ADialToNobodyIsDisconnected", dialToNobody},
		{"AfterCloseOnlyErrClosed", afterClose},
	} {
		t.Run(c.name, func(t *testing.T) {
			leaks := watchLeaks(t)
			a, b := pair(t)
			w := NewWorld(t, a, b)
			c.test(t, w)
			w.Close()
			leaks()
		})
	}
}
