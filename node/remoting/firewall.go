package remoting

import (
	"context"
	"math/bits"
	"runtime/debug"
	"strings"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// messagePackage is the protobuf package whose messages may cross.
const messagePackage = "kvferry.v1."

// firewall looks at what peers send before the framework acts on it.
type firewall struct {
	prefix  string // of the ids that may be addressed
	max     int    // bytes of one message
	log     *zap.Logger
	dropped atomic.Int64
	closed  atomic.Bool
}

// stream guards the one stream method. What panics below it ends the stream.
func (f *firewall) stream(srv any, s grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() {
		if r := recover(); r != nil {
			f.log.Error("remoting handler panicked", zap.String("method", info.FullMethod),
				zap.Any("reason", r), zap.ByteString("stack", debug.Stack()))
			err = status.Error(codes.Internal, "panic")
		}
	}()
	return next(srv, &guarded{ServerStream: s, firewall: f})
}

// unary refuses: the framework's calls of this kind are for diagnosis, and panic.
func (f *firewall) unary(_ context.Context, _ any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
	return nil, status.Error(codes.Unimplemented, info.FullMethod)
}

// guarded is one incoming stream.
type guarded struct {
	grpc.ServerStream
	firewall *firewall
	peer     string // the address that it says it is from; "" before it did
}

// RecvMsg receives one frame and takes out of it what may not pass.
func (g *guarded) RecvMsg(m any) error {
	if err := g.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if g.firewall.closed.Load() {
		return status.Error(codes.Unavailable, "closing")
	}
	frame, ok := m.(*remote.RemoteMessage)
	if !ok {
		return nil
	}
	switch t := frame.MessageType.(type) {
	case *remote.RemoteMessage_ConnectRequest:
		server := t.ConnectRequest.GetServerConnection()
		if server.GetAddress() == "" || g.peer != "" {
			return status.Error(codes.InvalidArgument, "connect: got no address, or a second one")
		}
		g.peer = server.GetAddress()
	case *remote.RemoteMessage_MessageBatch:
		g.filter(t.MessageBatch)
	}
	return nil
}

func (g *guarded) filter(b *remote.MessageBatch) {
	keep := b.GetEnvelopes()[:0]
	for _, e := range b.GetEnvelopes() {
		if why := g.refuse(b, e); why != "" {
			g.drop(b, e, why)
			continue
		}
		keep = append(keep, e)
	}
	b.Envelopes = keep
}

// drop counts, and logs the 1st, 2nd, 4th, 8th, ... so that nobody fills the log.
func (g *guarded) drop(b *remote.MessageBatch, e *remote.MessageEnvelope, why string) {
	n := g.firewall.dropped.Add(1)
	if bits.OnesCount64(uint64(n)) != 1 {
		return
	}
	g.firewall.log.Warn("message of a peer dropped", zap.String("peer", g.peer), zap.String("why", why),
		zap.String("type", at(b.GetTypeNames(), e.GetTypeId())), zap.String("target", at(b.GetTargets(), e.GetTarget()).GetId()),
		zap.Int64("dropped so far", n))
}

// at is element i, or the zero value where there is none.
func at[T any](all []T, i int32) T {
	var none T
	if i < 0 || int(i) >= len(all) {
		return none
	}
	return all[i]
}

// refuse says why an envelope may not pass; "" lets it.
func (g *guarded) refuse(b *remote.MessageBatch, e *remote.MessageEnvelope) string {
	name := at(b.GetTypeNames(), e.GetTypeId())
	target := at(b.GetTargets(), e.GetTarget())
	switch {
	case g.peer == "":
		return "before the connection was opened"
	case e.GetSerializerId() != 0:
		return "serializer"
	case name == "" || e.GetTypeId() < 0:
		return "no type"
	case !strings.HasPrefix(target.GetId(), g.firewall.prefix):
		return "target"
	case e.GetSender() < 0 || int(e.GetSender()) > len(b.GetSenders()):
		return "sender"
	case e.GetSender() > 0 && b.GetSenders()[e.GetSender()-1].GetAddress() != g.peer:
		return "sender elsewhere"
	case len(e.GetMessageData()) > g.firewall.max:
		return "size"
	}
	if system, who := watching(name, e.GetMessageData()); system {
		if who.GetAddress() != g.peer || who.GetId() == "" {
			return "watch elsewhere"
		}
		return ""
	}
	if !strings.HasPrefix(name, messagePackage) {
		return "type"
	}
	if _, err := protoregistry.GlobalTypes.FindMessageByName(protoreflect.FullName(name)); err != nil {
		return "unknown type"
	}
	return ""
}

// watching says whether this is one of the messages that watching an actor of
// another node consists of, and which actor over there it is about.
func watching(name string, data []byte) (bool, *actor.PID) {
	switch name {
	case "actor.Watch":
		var m actor.Watch
		_ = proto.Unmarshal(data, &m) // a nil PID on error
		return true, m.Watcher
	case "actor.Unwatch":
		var m actor.Unwatch
		_ = proto.Unmarshal(data, &m)
		return true, m.Watcher
	case "actor.Terminated":
		var m actor.Terminated
		_ = proto.Unmarshal(data, &m)
		return true, m.Who
	}
	return false, nil
}
