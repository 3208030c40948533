package runner

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/client"
	omniclient "github.com/siderolabs/omni/client/pkg/client/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/system"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// run runs the provider until ctx ends, with what the layers say and with what Omni does.
func (l *layers[C]) run(ctx context.Context, stderr io.Writer) error {
	local := l.local

	level := zap.NewAtomicLevel()
	log := local.logger(stderr, level)
	defer log.Sync() //nolint:errcheck // nothing is left to tell

	omni, err := local.connect(log)
	if err != nil {
		return fmt.Errorf("%w: %w", errStartup, err)
	}
	defer omni.Close() //nolint:errcheck // the process ends

	if err := local.firstContact(ctx, omni.Omni().State(), log, startupTimeout); err != nil {
		if ctx.Err() != nil {
			return nil
		}

		return fmt.Errorf("%w: %w", errStartup, err)
	}

	s := &supervisor[C]{
		layers: l, id: local.Provider.ID, st: omni.Omni().State(), log: log, level: level, status: newStatus(log),
		images: func(ctx context.Context, factory string) (lifecycle.Images, error) { return images(ctx, omni, factory) },
	}

	if err := s.run(ctx, local.Listen); err != nil {
		return err
	}

	log.Info("provider has stopped")

	return nil
}

// connect makes the client of Omni; nothing is called yet.
func (s *settings[C]) connect(log *zap.Logger) (*client.Client, error) {
	omni, err := client.New(s.Omni.Endpoint,
		client.WithServiceAccount(s.key),
		client.WithInsecureSkipTLSVerify(s.Omni.InsecureSkipVerify),
		client.WithOmniClientOptions(omniclient.WithProviderID(s.Provider.ID), omniclient.WithRetryLogger(log.Named("omni"))),
	)
	if err != nil {
		return nil, fmt.Errorf("omni endpoint %q: %w", s.Omni.Endpoint, err)
	}

	return omni, nil
}

// firstContact asks Omni one question. What is wrong in the settings shows here, in one line.
func (s *settings[C]) firstContact(ctx context.Context, st state.State, log *zap.Logger, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	for {
		_, err := st.Get(ctx, system.NewSysVersion(system.SysVersionID).Metadata())

		switch {
		case err == nil || state.IsNotFoundError(err):
			return nil
		case status.Code(err) == codes.Unauthenticated:
			return fmt.Errorf("omni at %s does not accept the service account key: is it of this Omni, and still valid? `omnictl infraprovider renewkey %s` makes another", s.Omni.Endpoint, s.Provider.ID)
		case status.Code(err) != codes.Unavailable && ctx.Err() == nil:
			return fmt.Errorf("omni at %s: %w", s.Omni.Endpoint, err)
		}

		log.Warn("omni does not answer, trying again", zap.String("endpoint", s.Omni.Endpoint), zap.Error(err))

		select {
		case <-ctx.Done():
			return fmt.Errorf("omni at %s does not answer: %w", s.Omni.Endpoint, err)
		case <-time.After(2 * time.Second):
		}
	}
}

// logger returns a logger whose level the caller may change.
func (s *settings[C]) logger(w io.Writer, level zap.AtomicLevel) *zap.Logger {
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339TimeEncoder
	config.EncodeDuration = func(d time.Duration, enc zapcore.PrimitiveArrayEncoder) {
		enc.AppendString(d.Round(time.Millisecond).String())
	}

	encoder := zapcore.NewConsoleEncoder(config)
	if s.Log.Format == "json" {
		encoder = zapcore.NewJSONEncoder(config)
	}

	setLevel(level, s.Log.Level)

	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level))
}

func setLevel(level zap.AtomicLevel, text string) {
	parsed, _ := zapcore.ParseLevel(text) //nolint:errcheck // checked when it was read
	level.SetLevel(parsed)
}
