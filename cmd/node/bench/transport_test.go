package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"kvferry/transport/rdma/verbs"
)

func TestTransport(t *testing.T) {
	for _, provider := range Providers {
		for _, rows := range []Rows{Scattered, Strided} {
			c := TransportConfig{
				Config:   Config{Connections: 2, Pool: 64 << 20, Duration: 20 * time.Millisecond, Rounds: 2, Peer: peerCommand(t)},
				Provider: provider, Blocks: []uint64{2 << 10}, Rows: rows,
			}
			if provider == "mem" {
				c.Blocks = []uint64{2 << 10, 512}
			}
			if err := c.Check(); err != nil {
				t.Fatal(err)
			}
			all, err := MeasureTransport(t.Context(), c)
			if err != nil && strings.Contains(err.Error(), verbs.ErrNoDevice.Error()) {
				continue // the guest of tests/softroce has some
			}
			if err != nil || len(all) != len(c.Blocks) {
				t.Fatalf("%s, %s: %d results: %v", provider, rows, len(all), err)
			}
			for i, r := range all {
				if r.Block != c.Blocks[i] || r.Batch*int(r.Block) != BatchBytes || !(r.GBPerS > 0) || !(r.LimitGBPerS > 0) ||
					r.Fraction != r.GBPerS/r.LimitGBPerS || len(r.Rounds) != 2 || (r.GBPerS64K > 0) != (rows == Strided) {
					t.Errorf("%s, %s: %+v", provider, rows, r)
				}
			}
		}
	}
}

// TestInterruptedAtOnce: a measurement that is told to end does, and its process too.
func TestInterruptedAtOnce(t *testing.T) {
	for _, provider := range []string{"tcp", "shm"} {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		c := TransportConfig{
			Config:   Config{Connections: 2, Pool: 64 << 20, Duration: time.Hour, Rounds: 1, Peer: peerCommand(t)},
			Provider: provider, Blocks: []uint64{4 << 10}, Rows: Scattered,
		}
		start := time.Now()
		_, err := MeasureTransport(ctx, c)
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 30*time.Second {
			t.Errorf("%s: %v after %s", provider, err, time.Since(start))
		}
	}
}

// TestPeerEndsWithItsInput: it does when this process has died, too.
func TestPeerEndsWithItsInput(t *testing.T) {
	p, err := startProcess(t.Context(), peerCommand(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ask(order{Do: doOpen, Provider: "tcp", Connections: 1, Pool: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ask(order{Do: "dance"}); err == nil {
		t.Error("an order that there is not was obeyed")
	}
	start := time.Now()
	if err := p.close(); err != nil || time.Since(start) >= farewell {
		t.Errorf("%v after %s", err, time.Since(start))
	}
	if _, err := p.ask(order{Do: doUsage}); err == nil {
		t.Error("an ended process answers")
	}
}
