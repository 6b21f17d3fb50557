package pairing

import (
	"fmt"
	"strings"

	"kvferry/messages"
)

// kindOf says under which kind of trace an effect of a Link is shown.
func kindOf(e LinkEffect) string {
	if _, ok := e.(Transmit); ok {
		return "wire"
	}
	return "link"
}

func printLink(peer messages.Node, e LinkEffect) string {
	switch e := e.(type) {
	case Transmit:
		return printEnvelope(e.Envelope)
	case Connect:
		dial := "listen"
		if e.Dial {
			dial = "dial " + string(e.Endpoint)
		}
		return fmt.Sprintf("connect %s %s by %s: %s", peer, e.Generation, e.Provider, dial)
	case FenceSession:
		return fmt.Sprintf("fence %s %s", peer, e.Generation)
	case Deliver:
		return fmt.Sprintf("deliver from %s: %s", peer, printBody(e.Body))
	case Up:
		return fmt.Sprintf("up %s %s by %s", peer, e.Generation, e.Provider)
	case Down:
		return fmt.Sprintf("down %s %s: %s", peer, e.Generation, e.Cause.GetText())
	case SuspectChanged:
		return fmt.Sprintf("suspect %s: %v", peer, e.Suspect)
	case FencedHere:
		return fmt.Sprintf("fenced %s %s", peer, e.Generation)
	case Lost:
		return fmt.Sprintf("lost %s: %s", peer, e.Cause.GetText())
	case Probed:
		return fmt.Sprintf("probed %s: alive %v", peer, e.Alive)
	case NotSent:
		return fmt.Sprintf("not sent to %s: %s: %s", peer, printBody(e.Body), e.Reason)
	case Misfit:
		return fmt.Sprintf("misfit %s: ours %v: %s: got %s, want %s", peer, e.Ours, e.Field, e.Got, e.Want)
	case ProviderFailed:
		return fmt.Sprintf("provider %s does not reach %s: %s", e.Provider, peer, e.Reason)
	case Left:
		return fmt.Sprintf("left %s: acknowledged %v", peer, e.Acknowledged)
	case Closed:
		return fmt.Sprintf("closed %s", peer)
	}
	panic(fmt.Sprintf("link effect %T", e))
}

func printEnvelope(e *messages.Envelope) string {
	s := fmt.Sprintf("> %s %d ", e.GetTo().Node(), e.GetNumber())
	switch b := e.GetBody().(type) {
	case *messages.Envelope_Hello:
		return s + fmt.Sprintf("hello generation %d nonce %x above %d seen %d", b.Hello.GetGeneration(), b.Hello.GetNonce(), b.Hello.GetNumberAbove(), b.Hello.GetNumberSeen())
	case *messages.Envelope_HelloAck:
		return s + fmt.Sprintf("hello-ack %s by %s version %d", b.HelloAck.GetGeneration().Rdma(), b.HelloAck.GetProvider(), b.HelloAck.GetVersion())
	case *messages.Envelope_Ping:
		return s + fmt.Sprintf("ping %d %s seen %d", b.Ping.GetSequence(), b.Ping.GetGeneration().Rdma(), b.Ping.GetNumberSeen())
	case *messages.Envelope_Pong:
		return s + fmt.Sprintf("pong %d %s", b.Pong.GetSequence(), b.Pong.GetGeneration().Rdma())
	case *messages.Envelope_Bye:
		return s + "bye: " + b.Bye.GetReason()
	case *messages.Envelope_ByeAck:
		return s + "bye-ack"
	case *messages.Envelope_NotFit:
		return s + fmt.Sprintf("not-fit: answers %d: %s: got %s, want %s", b.NotFit.GetNumber(), b.NotFit.GetField(), b.NotFit.GetGot(), b.NotFit.GetWant())
	}
	return s + printBody(unwrap(e))
}

func printBody(body any) string {
	switch b := body.(type) {
	case *messages.Room:
		return fmt.Sprintf("body %d", b.GetRoom())
	case *messages.Catalog:
		return fmt.Sprintf("catalog %d part %d of %d: %d engines, have %d", b.GetVersion(), b.GetPart(), b.GetParts(), len(b.GetEngines()), b.GetHave())
	case *messages.CatalogAck:
		return strings.TrimSuffix(fmt.Sprintf("catalog-ack %d: %s", b.GetVersion(), b.GetRefused()), ": ")
	case *messages.Readiness:
		return fmt.Sprintf("readiness %s+%s %d: ready %v%s", b.GetPrefill(), b.GetDecode(), b.GetSequence(), b.GetReady(), printReasons(b.GetReasons()))
	case *messages.ReadinessAck:
		return fmt.Sprintf("readiness-ack %s+%s %d", b.GetPrefill(), b.GetDecode(), b.GetSequence())
	}
	return fmt.Sprintf("%T", body)
}

func printReasons(rs []*messages.Reason) string {
	s := ""
	for _, r := range rs {
		s += "\n            " + r.GetField() + ": " + r.GetText()
	}
	return s
}

func printDirectory(e DirectoryEffect) string {
	switch e := e.(type) {
	case SendTo:
		return fmt.Sprintf("to %s: %s", e.Node, printBody(e.Body))
	case Attached:
		return fmt.Sprintf("attached %s", e.Engine)
	case Refused:
		return fmt.Sprintf("refused %s: %v", e.Engine, e.Err)
	case PairUp:
		return fmt.Sprintf("pair up %s+%s: %d and %d engines", e.Pairing.Prefill, e.Pairing.Decode, len(e.Pairing.PrefillEngine), len(e.Pairing.DecodeEngine))
	case PairWaiting:
		return fmt.Sprintf("pair waiting %s+%s:%s", e.Prefill, e.Decode, printReasons(e.Reasons))
	case PairUnfit:
		return fmt.Sprintf("pair unfit %s+%s:%s", e.Prefill, e.Decode, printReasons(e.Reasons))
	case PairDown:
		return fmt.Sprintf("pair down %s+%s: %s", e.Prefill, e.Decode, e.Cause.GetText())
	case EngineLost:
		return fmt.Sprintf("engine lost %s: %s", e.Engine, e.Cause.GetText())
	case ProbeNode:
		return fmt.Sprintf("probe %s", e.Node)
	case FenceNode:
		return fmt.Sprintf("fence %s %s: %s", e.Node, e.Generation, e.Reason)
	case Ignored:
		return fmt.Sprintf("ignored from %s: %s: got %s, want %s", e.From, e.Field, e.Got, e.Want)
	}
	panic(fmt.Sprintf("directory effect %T", e))
}
