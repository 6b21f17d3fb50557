package node

import (
	"context"
	"fmt"
	"strings"
	"time"

	"kvferry/actors/registry"
	"kvferry/pairing"
)

// statusWait is how long an error waits for its text.
const statusWait = time.Second

// Status is what a node knows of engines and pairs.
type Status struct {
	Pairs   []pairing.PairStatus
	Engines []pairing.EngineStatus
}

// Status asks the registry.
func (n *Node) Status(ctx context.Context) (Status, error) {
	return ask(ctx, n, n.registry, func(reply func(Status)) any {
		return &registry.Status{Reply: func(pairs []pairing.PairStatus, engines []pairing.EngineStatus) {
			reply(Status{Pairs: pairs, Engines: engines})
		}}
	})
}

// WaitPaired waits until two instances, of which one has an engine on this node,
// work together. An error is the context's, with what is missing until then.
func (n *Node) WaitPaired(ctx context.Context, prefill, decode string) error {
	_, err := ask(ctx, n, n.registry, func(reply func(struct{})) any {
		return &registry.AwaitPair{Prefill: prefill, Decode: decode, Ready: func() { reply(struct{}{}) }, Over: func() bool { return ctx.Err() != nil }}
	})
	if err == nil || ctx.Err() == nil {
		return err
	}
	// The caller's time is over, and the answer is one message away.
	now, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusWait)
	defer cancel()
	status, statusErr := n.Status(now)
	if statusErr != nil {
		return fmt.Errorf("wait for %s and %s to be paired: %w", prefill, decode, err)
	}
	return fmt.Errorf("wait for %s and %s to be paired: %w: %s", prefill, decode, err, missing(status, prefill, decode))
}

// missing says why two instances are not paired.
func missing(s Status, prefill, decode string) string {
	for _, p := range s.Pairs {
		if p.Prefill != prefill || p.Decode != decode {
			continue
		}
		text := fmt.Sprintf("%s: %d of %d prefill engines, %d of %d decode engines", p.State, p.PrefillHave, p.PrefillWant, p.DecodeHave, p.DecodeWant)
		var reasons []string
		for _, r := range p.Reasons {
			reasons = append(reasons, r.GetText())
		}
		if len(reasons) > 0 {
			text += ": " + strings.Join(reasons, "; ")
		}
		return text
	}
	return "no engine of one of them is known"
}
