package conformance

import (
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logWriter looks for secrets in the provider's log, and puts its warnings and errors into the history.
type logWriter struct{ env *env }

func (w logWriter) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))

	if l := w.env.books(); l != nil {
		l.Scan("the provider's log", text)

		if !strings.HasPrefix(text, zapcore.InfoLevel.String()) && !strings.HasPrefix(text, zapcore.DebugLevel.String()) {
			l.Note("provider: %s", text)
		}
	}

	return len(line), nil
}

func (logWriter) Sync() error { return nil }

func newLogger(e *env) *zap.Logger {
	encoder := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{
		LevelKey: "level", MessageKey: "message", EncodeLevel: zapcore.LowercaseLevelEncoder,
		EncodeDuration: zapcore.StringDurationEncoder, ConsoleSeparator: " ",
	})

	return zap.New(zapcore.NewCore(encoder, logWriter{env: e}, zapcore.DebugLevel))
}
