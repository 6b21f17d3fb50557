package remoting

import (
	"context"
	"log/slog"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"
	"go.uber.org/zap/zapcore"
)

// NewSystem makes an actor system that logs its own doings to log, from Warn up. A
// host that brings its own system keeps its own logger.
func NewSystem(log *zap.Logger, options ...actor.ConfigOption) *actor.ActorSystem {
	factory := actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return slog.New(Handler(log)) })
	return actor.NewActorSystem(append([]actor.ConfigOption{factory}, options...)...)
}

// Handler takes the actor framework's log to zap: from Warn up, because at Info it
// tells of each connection and prints whole messages, and nothing higher than
// Warn, because what it calls an error is a peer that went away.
func Handler(log *zap.Logger) slog.Handler {
	core, err := zapcore.NewIncreaseLevelCore(log.Core(), zapcore.WarnLevel)
	if err != nil {
		core = log.Core() // it is above Warn as it is
	}
	return calm{zapslog.NewHandler(core,
		zapslog.WithName("protoactor"),
		zapslog.WithCaller(false),
		zapslog.AddStacktraceAt(slog.LevelError+4))} // never: the handler's stack says nothing
}

type calm struct{ slog.Handler }

// Handle logs a record, at Warn at most.
func (h calm) Handle(ctx context.Context, r slog.Record) error {
	r.Level = min(r.Level, slog.LevelWarn)
	return h.Handler.Handle(ctx, r)
}

// WithAttrs keeps the limit.
func (h calm) WithAttrs(attrs []slog.Attr) slog.Handler { return calm{h.Handler.WithAttrs(attrs)} }

// WithGroup keeps the limit.
func (h calm) WithGroup(name string) slog.Handler { return calm{h.Handler.WithGroup(name)} }
