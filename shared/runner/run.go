package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/siderolabs/omni/client/pkg/client"
	omniclient "github.com/siderolabs/omni/client/pkg/client/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/system"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func (s *settings[C]) run(ctx context.Context, stderr io.Writer) error {
	log := s.logger(stderr)
	defer log.Sync() //nolint:errcheck // nothing is left to tell

	d, closeDriver, err := s.program.New(ctx, s.config, log.Named(s.program.Name))
	if err != nil {
		return fmt.Errorf("%w: %w", errStartup, err)
	}
	defer closeDriver() //nolint:errcheck // the process ends

	omni, err := client.New(s.endpoint,
		client.WithServiceAccount(s.key),
		client.WithInsecureSkipTLSVerify(s.insecure),
		client.WithOmniClientOptions(omniclient.WithProviderID(s.id), omniclient.WithRetryLogger(log.Named("omni"))),
	)
	if err != nil {
		return fmt.Errorf("%w: omni endpoint %q: %w", errStartup, s.endpoint, err)
	}
	defer omni.Close() //nolint:errcheck // the process ends

	if err := s.firstContact(ctx, omni.Omni().State(), d, log); err != nil {
		if ctx.Err() != nil {
			return nil
		}

		return fmt.Errorf("%w: %w", errStartup, err)
	}

	images, err := s.images(ctx, omni)
	if err != nil {
		return fmt.Errorf("%w: %w", errStartup, err)
	}

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	provider, err := lifecycle.New(lifecycle.Config{
		ID: s.id, Name: s.name, Description: s.description, Icon: s.program.Icon, Schema: s.program.Schema,
		Driver: d, Images: images, Logger: log, Metrics: lifecycle.NewMetrics(registry),
		Provisions: s.concurrency, Removals: s.concurrency,
	})
	if err != nil {
		return fmt.Errorf("%w: %w", errStartup, err)
	}

	if s.listen != "" {
		stop, err := serveStatus(ctx, s.listen, registry, provider.Healthy, log)
		if err != nil {
			return fmt.Errorf("%w: %w", errStartup, err)
		}
		defer stop()
	}

	log.Info("provider is running", zap.String("id", s.id), zap.String("omni", s.endpoint), zap.String("version", Version()))

	if err := provider.Run(ctx, omni.Omni().State()); err != nil {
		return err
	}

	log.Info("provider has stopped")

	return nil
}

// firstContact asks Omni and the cloud one question each. What is wrong in the settings shows here, in one line.
func (s *settings[C]) firstContact(ctx context.Context, st state.State, d driver.Driver, log *zap.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, startupTimeout)
	defer cancel()

	if err := d.Check(ctx); err != nil {
		return err
	}

	for {
		_, err := st.Get(ctx, system.NewSysVersion(system.SysVersionID).Metadata())

		switch {
		case err == nil || state.IsNotFoundError(err):
			return nil
		case status.Code(err) == codes.Unauthenticated:
			return fmt.Errorf("omni at %s does not accept the service account key: is it of this Omni, and still valid? `omnictl infraprovider renewkey %s` makes another", s.endpoint, s.id)
		case status.Code(err) != codes.Unavailable && ctx.Err() == nil:
			return fmt.Errorf("omni at %s: %w", s.endpoint, err)
		}

		log.Warn("omni does not answer, trying again", zap.String("endpoint", s.endpoint), zap.Error(err))

		select {
		case <-ctx.Done():
			return fmt.Errorf("omni at %s does not answer: %w", s.endpoint, err)
		case <-time.After(2 * time.Second):
		}
	}
}

func (s *settings[C]) logger(w io.Writer) *zap.Logger {
	level, _ := zapcore.ParseLevel(s.logLevel) //nolint:errcheck // checked when it was read

	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.RFC3339TimeEncoder
	config.EncodeDuration = func(d time.Duration, enc zapcore.PrimitiveArrayEncoder) {
		enc.AppendString(d.Round(time.Millisecond).String())
	}

	encoder := zapcore.NewConsoleEncoder(config)
	if s.logFormat == "json" {
		encoder = zapcore.NewJSONEncoder(config)
	}

	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), level))
}

// serveStatus answers /healthz and /metrics. The answer about health is kept for a while, so that asking often asks the cloud
// no more often, and it names nothing: the reason is in the log and in Omni.
func serveStatus(ctx context.Context, address string, registry *prometheus.Registry, healthy func(context.Context) error, log *zap.Logger) (stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", address, err)
	}

	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.Handle("GET /healthz", &healthHandler{check: healthy, log: log})

	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})

	go func() {
		defer close(done)

		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			log.Error("health and metrics are not served", zap.Error(err))
		}
	}()

	return func() {
		server.Close() //nolint:errcheck,gosec // the process ends
		<-done
	}, nil
}
