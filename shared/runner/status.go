package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// healthTTL is how long an answer about health is good for.
const healthTTL = 10 * time.Second

// errNoConfig is the health of a provider that has no configuration to run with.
var errNoConfig = errors.New("waiting for a configuration that works")

// statusPages answer /healthz and /metrics. They outlive changes of the configuration. The answer about health is kept for a
// while, so that asking often asks the cloud no more often, and it names nothing: the reason is in the log and in Omni.
type statusPages struct {
	registry *prometheus.Registry
	log      *zap.Logger

	// address is where they are served, empty when they are not; stop ends that.
	address string
	stop    func()

	mu      sync.Mutex
	check   func(context.Context) error
	trouble func() error
	last    time.Time
	err     error
}

func newStatus(log *zap.Logger) *statusPages {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	return &statusPages{registry: registry, log: log, stop: func() {}}
}

// of sets whose health is told; a nil check is that of a provider that does not run.
func (s *statusPages) of(check func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.check, s.last = check, time.Time{}
}

// serve serves at an address instead of where it did; not at all when it is empty. An error leaves everything as it is.
func (s *statusPages) serve(ctx context.Context, address string) error {
	listener, err := s.listen(ctx, address)
	if err != nil {
		return err
	}

	s.move(address, listener)

	return nil
}

// listen opens an address for move, and nothing if that needs none. The caller closes what it does not move to.
func (s *statusPages) listen(ctx context.Context, address string) (net.Listener, error) {
	if address == "" || address == s.address {
		return nil, nil //nolint:nilnil // there is nothing to open
	}

	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", address, err)
	}

	return listener, nil
}

// move serves at an address that listen has opened instead of where it did.
func (s *statusPages) move(address string, listener net.Listener) {
	if address == s.address {
		return
	}

	s.stop()
	s.address, s.stop = address, func() {}

	if listener != nil {
		s.stop = s.answer(listener)
	}
}

func (s *statusPages) answer(listener net.Listener) (stop func()) {
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})

	go func() {
		defer close(done)

		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			s.log.Error("health and metrics are not served", zap.Error(err))
		}
	}()

	return func() {
		server.Close() //nolint:errcheck,gosec // nobody is owed an answer
		<-done
	}
}

func (s *statusPages) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", s.healthz)

	return mux
}

// healthz answers 503 when the provider does not work. One that works on with its last good configuration, or with those of its
// places that are in reach, is healthy and says so: a supervisor that ended it would leave nobody at work.
func (s *statusPages) healthz(w http.ResponseWriter, r *http.Request) {
	err := s.health(r.Context())

	switch {
	case errors.Is(err, errNoConfig):
		http.Error(w, "unhealthy: the provider has no configuration that works", http.StatusServiceUnavailable)
	case driver.UnseenOf(err) != nil:
		w.Write([]byte("ok: some places of the cloud cannot be reached\n")) //nolint:errcheck,gosec // the reader is gone
	case err != nil:
		http.Error(w, "unhealthy", http.StatusServiceUnavailable)
	case s.trouble != nil && s.trouble() != nil:
		w.Write([]byte("ok: the configuration in Omni is wrong, the last good one is in use\n")) //nolint:errcheck,gosec // the reader is gone
	default:
		w.Write([]byte("ok\n")) //nolint:errcheck,gosec // the reader is gone
	}
}

func (s *statusPages) health(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.check == nil {
		return errNoConfig
	}

	if time.Since(s.last) > healthTTL {
		// The answer is for everybody who asks, so it does not end with the one who asked first.
		s.err = s.check(context.WithoutCancel(ctx))
		s.last = time.Now()

		if s.err != nil {
			s.log.Warn("provider is unhealthy", zap.Error(s.err))
		}
	}

	return s.err
}
