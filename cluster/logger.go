package cluster

import (
	"bytes"
	"log"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// bridge is the logger that memberlist gets: its lines "[LEVEL] memberlist: text"
// go to zap at that level.
func bridge(to *zap.Logger) *log.Logger {
	return log.New(bridgeWriter{to.WithOptions(zap.WithCaller(false))}, "", 0)
}

type bridgeWriter struct{ to *zap.Logger }

var bridgeLevels = map[string]zapcore.Level{
	"DEBUG": zapcore.DebugLevel,
	"INFO":  zapcore.InfoLevel,
	"WARN":  zapcore.WarnLevel,
	"ERR":   zapcore.ErrorLevel,
	"ERROR": zapcore.ErrorLevel,
}

// Write logs one line. It never fails.
func (w bridgeWriter) Write(line []byte) (int, error) {
	text, level := bytes.TrimSpace(line), zapcore.InfoLevel
	if len(text) > 0 && text[0] == '[' {
		if end := bytes.IndexByte(text, ']'); end > 0 {
			if l, ok := bridgeLevels[string(text[1:end])]; ok {
				level, text = l, bytes.TrimSpace(text[end+1:])
			}
		}
	}
	text = bytes.TrimPrefix(text, []byte("memberlist: "))
	if entry := w.to.Check(level, string(text)); entry != nil {
		entry.Write()
	}
	return len(line), nil
}
