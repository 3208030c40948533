package conformance

import (
	"strings"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logWriter keeps the provider's log, which is searched for secrets in the end, and puts its warnings and errors into the
// history.
type logWriter struct {
	env *env

	mu   sync.Mutex
	text strings.Builder
}

func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.text.Write(line)

	text := strings.TrimSpace(string(line))
	if !strings.HasPrefix(text, zapcore.InfoLevel.String()) && !strings.HasPrefix(text, zapcore.DebugLevel.String()) {
		w.env.note("provider: %s", text)
	}

	return len(line), nil
}

// keep keeps a line of a program's output, and no more than the newest part of a long one.
func (w *logWriter) keep(line string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.text.Len() > maxOutput {
		newest := w.text.String()[maxOutput/2:]
		w.text.Reset()
		w.text.WriteString(newest)
	}

	w.text.WriteString(line)
}

func (*logWriter) Sync() error { return nil }

// String returns the log.
func (w *logWriter) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.text.String()
}

func newLogger(w *logWriter) *zap.Logger {
	encoder := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{
		LevelKey: "level", MessageKey: "message", EncodeLevel: zapcore.LowercaseLevelEncoder,
		EncodeDuration: zapcore.StringDurationEncoder, ConsoleSeparator: " ",
	})

	return zap.New(zapcore.NewCore(encoder, w, zapcore.DebugLevel))
}
