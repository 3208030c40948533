package control

import (
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// discreet is a core that takes nothing from the controller of join tokens, as the ids that it works on are the tokens.
type discreet struct{ zapcore.Core }

// With implements zapcore.Core.
func (c discreet) With(fields []zapcore.Field) zapcore.Core {
	for _, field := range fields {
		if field.Key == "controller" && field.String == joinTokenStatusController {
			return zapcore.NewNopCore()
		}
	}

	return discreet{c.Core.With(fields)}
}

// withoutTokens returns a logger for the controllers that writes to l, nil for none.
func withoutTokens(l *zap.Logger) *zap.Logger {
	if l == nil {
		return zap.NewNop()
	}

	return l.WithOptions(zap.WrapCore(func(core zapcore.Core) zapcore.Core { return discreet{core} }))
}
