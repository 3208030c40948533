package runner

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// supervisor keeps a provider running with the configuration of the moment. What needs it is ended in order and started again in
// this process; a configuration that does not work is told of, and the last good one stays in use.
type supervisor[C any] struct {
	layers *layers[C]
	id     string
	st     state.State
	log    *zap.Logger
	level  zap.AtomicLevel
	status *statusPages
	// images returns the source of boot images for a factory.
	images func(ctx context.Context, factory string) (lifecycle.Images, error)

	metrics *lifecycle.Metrics
	// trouble is what is wrong with the configuration in Omni.
	trouble atomic.Pointer[error]

	// settings are those in use, nil before the first; the driver goes with them.
	settings    *settings[C]
	driver      driver.Driver
	closeDriver func() error
	// engine is the provider, or what tells Omni of its health while there is none.
	engine *task
	// provider is the last one that ran, nil before the first.
	provider *lifecycle.Provider
}

// errSettings wraps what only another text from Omni can mend.
var errSettings = errors.New("configuration")

// run runs the provider until ctx ends. It returns an error for what cannot heal by itself. listen is where health is told
// before there is a configuration.
func (s *supervisor[C]) run(ctx context.Context, listen string) error {
	s.metrics = lifecycle.NewMetrics(s.status.registry)
	s.status.trouble = s.troubled
	s.closeDriver = func() error { return nil }

	if err := s.status.serve(ctx, listen); err != nil {
		return fmt.Errorf("%w: %w", errStartup, err)
	}

	defer func() { s.status.stop() }()

	texts := make(chan string)
	follower := start(ctx, func(ctx context.Context) error {
		(&follower{st: s.st, providerID: s.id, log: s.log, texts: texts}).run(ctx)

		return nil
	})

	defer follower.stop() //nolint:errcheck // it ends without one
	defer s.end()

	var (
		text  string
		again <-chan time.Time
		pause time.Duration
	)

	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.engine.ended():
			s.engine = nil

			return err
		case text = <-texts:
			pause = firstPause
		case <-again:
			pause = min(2*pause, mostPause)
		}

		err := s.apply(ctx, text)
		again = nil

		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			s.trouble.Store(nil)

			if idle := s.layers.overridden(text, s.settings); len(idle) > 0 {
				s.log.Warn("settings in Omni are overridden by flags, environment or file", zap.Strings("overridden", idle))
			}
		case s.settings == nil && text == "":
			return fmt.Errorf("%w: %w", errStartup, err)
		default:
			s.refuse(ctx, err)

			if !errors.Is(err, errSettings) {
				again = time.After(pause)
			}
		}
	}
}

// apply puts the text from Omni to use. An error leaves the provider as it was.
func (s *supervisor[C]) apply(ctx context.Context, text string) error {
	next, err := s.layers.settings(text)
	if err != nil {
		return fmt.Errorf("%w: %w", errSettings, err)
	}

	var changed []string

	if s.settings != nil {
		if changed = changes(s.layers.program, s.settings, next); len(changed) == 0 {
			return nil
		}
	}

	listener, err := s.status.listen(ctx, next.Listen)
	if err != nil {
		return err
	}

	if s.settings == nil || s.needsRestart(next) {
		if err := s.restart(ctx, next); err != nil {
			if listener != nil {
				listener.Close() //nolint:errcheck,gosec // nobody was answered there
			}

			return err
		}
	}

	s.status.move(next.Listen, listener)
	setLevel(s.level, next.Log.Level)

	switch {
	case s.settings != nil:
		s.log.Info("configuration has changed", zap.Strings("changed", changed))
	default:
		s.log.Info("provider is running", zap.String("id", s.id), zap.String("omni", next.Omni.Endpoint), zap.Bool("configured_in_omni", text != ""), zap.String("version", Version()))
	}

	s.settings = next

	return nil
}

// needsRestart reports whether more has changed than what the running provider takes in.
func (s *supervisor[C]) needsRestart(next *settings[C]) bool {
	same := next.common
	same.Log, same.Listen = s.settings.Log, s.settings.Listen

	return !reflect.DeepEqual(same, s.settings.common) || !reflect.DeepEqual(next.config, s.settings.config)
}

// restart starts the provider with other settings. The new one's parts are made, and its cloud is asked, before the old one ends.
// The driver stays when its own settings do: what it keeps in memory outlives a change of everything else.
func (s *supervisor[C]) restart(ctx context.Context, next *settings[C]) (err error) {
	d, closeDriver := s.driver, s.closeDriver

	if s.settings == nil || !reflect.DeepEqual(next.config, s.settings.config) {
		if d, closeDriver, err = s.layers.program.open(ctx, next.config, s.log); err != nil {
			return err
		}

		defer func() {
			if err != nil {
				closeDriver() //nolint:errcheck // it was not used
			}
		}()
	}

	images, err := s.images(ctx, next.ImageFactory)
	if err != nil {
		return err
	}

	cfg := s.config(next)
	cfg.Driver, cfg.Images, cfg.After = d, images, s.provider

	provider, err := lifecycle.New(cfg)
	if err != nil {
		return err
	}

	if err := s.engine.stop(); err != nil {
		s.log.Warn("provider has not ended in order", zap.Error(err))
	}

	s.engine = start(ctx, func(ctx context.Context) error { return provider.Run(ctx, s.st) })
	s.provider = provider

	// This waits for an answer about the health of the old one, which uses its driver.
	s.status.of(provider.Healthy)

	if d != s.driver {
		s.closeDriver() //nolint:errcheck // it is not used any more
	}

	s.driver, s.closeDriver = d, closeDriver

	return nil
}

func (s *supervisor[C]) config(next *settings[C]) lifecycle.Config {
	return lifecycle.Config{
		ID: s.id, Name: next.Provider.Name, Description: next.Provider.Description,
		Icon: s.layers.program.Icon, Schema: s.layers.program.Schema,
		Logger: s.log, Metrics: s.metrics, Trouble: s.troubled,
		Provisions: next.Provider.Concurrency, Removals: next.Provider.Concurrency,
		Sweep: lifecycle.SweepMode(next.Provider.Sweep), LeaseDuration: time.Duration(next.Provider.LeaseSeconds) * time.Second,
		GonePlaces: next.Provider.GonePlaces,
	}
}

// refuse tells of a configuration that does not work. While there is no provider, its health is told without one.
func (s *supervisor[C]) refuse(ctx context.Context, err error) {
	if before := s.troubled(); before == nil || before.Error() != err.Error() {
		s.log.Error("configuration is not taken", zap.Error(err), zap.Bool("last_good_one_in_use", s.settings != nil))
	}

	s.trouble.Store(&err)

	if s.engine == nil {
		s.engine = start(ctx, func(ctx context.Context) error {
			return lifecycle.Heartbeat(ctx, lifecycle.Config{ID: s.id, Logger: s.log}, s.st, func(context.Context) error { return s.troubled() })
		})
	}
}

func (s *supervisor[C]) troubled() error {
	if err := s.trouble.Load(); err != nil {
		return *err
	}

	return nil
}

// end ends the provider and closes its driver.
func (s *supervisor[C]) end() {
	if err := s.engine.stop(); err != nil {
		s.log.Warn("provider has not ended in order", zap.Error(err))
	}

	s.closeDriver() //nolint:errcheck // the process ends
}

// task is something that runs until it is stopped.
type task struct {
	cancel context.CancelFunc
	done   chan error
}

func start(ctx context.Context, f func(context.Context) error) *task {
	ctx, cancel := context.WithCancel(ctx)
	t := &task{cancel: cancel, done: make(chan error, 1)}

	go func() { t.done <- f(ctx) }()

	return t
}

// ended delivers how the task has ended by itself; a nil task never does.
func (t *task) ended() <-chan error {
	if t == nil {
		return nil
	}

	return t.done
}

// stop ends the task and returns what it returned.
func (t *task) stop() error {
	if t == nil {
		return nil
	}

	t.cancel()

	return <-t.done
}
