// Package hypervisor makes machines on one host: whatever calls libvirt is here. Package provider makes a driver of several hosts.
package hypervisor

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/flight"
)

// DefaultShutdownTimeout is that of Config.
const DefaultShutdownTimeout = 2 * time.Minute

// Config says which host it is and how to work with it. Its zero value is the local system daemon.
type Config struct {
	connection.Config

	// Name is the host's name in the provider's configuration, by which the place of its machines is recorded.
	Name string
	// Labels are shown on the host's machines.
	Labels map[string]string
	// StoragePools are the pools that class data may name; any when empty. Check fails when one of them is missing.
	StoragePools []string
	// Version of the provider, recorded in each machine's mark; "devel" when empty.
	Version string
	// ShutdownTimeout is how long a guest may take to shut down or reboot before it is forced; DefaultShutdownTimeout when zero.
	ShutdownTimeout time.Duration
	// KeepImages leaves boot images in the storage pools for good.
	KeepImages bool
	// ImageMaxAge is how long boot images that nothing uses stay; DefaultImageMaxAge when zero, no time when negative.
	ImageMaxAge time.Duration
	// SweepInterval is the least time between two looks for such images; DefaultSweepInterval when zero.
	SweepInterval time.Duration
	// Logger gets what no error can carry; nil for none.
	Logger *zap.Logger
}

// Host makes machines on one hypervisor. It keeps nothing that a restart would lose. Its methods do for the machines of one host
// what those of the same names in the driver contract do for all; they may be called from several goroutines. Close has to be
// called at the end.
type Host struct {
	config Config
	conn   *connection.Connection
	// copies is a connection for calls that take libvirt long: an old client library makes one call at a time on each.
	copies *connection.Connection

	uploads      flight.Group[image]
	machineLocks locks
	poolLocks    locks
	deviceLocks  locks

	images imageUse

	// called is what the hypervisor calls itself, nil as long as it has not been asked.
	called atomic.Pointer[string]

	// life ends with Close, which waits for what is in the background.
	life       context.Context //nolint:containedctx // Its end is the host's.
	end        context.CancelFunc
	background sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	swept   time.Time
	leaving map[driver.Ref]*leaving
}

// New returns a host. It connects with the first call.
func New(config Config) *Host {
	if config.Version == "" {
		config.Version = "devel"
	}

	if config.ShutdownTimeout == 0 {
		config.ShutdownTimeout = DefaultShutdownTimeout
	}

	if config.Logger == nil {
		config.Logger = zap.NewNop()
	}

	if config.ImageMaxAge == 0 {
		config.ImageMaxAge = DefaultImageMaxAge
	}

	if config.SweepInterval == 0 {
		config.SweepInterval = DefaultSweepInterval
	}

	h := &Host{config: config, conn: connection.New(config.Config), copies: connection.New(config.Config), swept: time.Now(), leaving: map[driver.Ref]*leaving{}}
	h.life, h.end = context.WithCancel(context.Background())
	h.conn.Subscribe(func(e connection.Event) {
		if e.Kind == connection.Lost {
			h.called.Store(nil)
		}
	})

	return h
}

// Name is that of the configuration.
func (h *Host) Name() string { return h.config.Name }

// Heard returns when the host answered last.
func (h *Host) Heard() time.Time { return h.conn.Heard() }

// unanswered returns the description of a call that is under way and whose description contains fragment.
func (h *Host) unanswered(fragment string) (what string, found bool) {
	if what, found = h.conn.Unanswered(fragment); found {
		return what, true
	}

	return h.copies.Unanswered(fragment)
}

// Close ends the work in the background and the connections.
func (h *Host) Close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()

	h.end()
	h.background.Wait()
	h.conn.Close()
	h.copies.Close()
}

// Check says whether libvirt answers, and whether the configured pools are there.
func (h *Host) Check(ctx context.Context) error {
	if err := connection.Do(ctx, h.conn, "ask libvirt for its version", func(c connection.Connect) error {
		_, err := c.GetLibVersion()

		return err
	}); err != nil {
		return err
	}

	for _, pool := range h.config.StoragePools {
		if err := h.checkPool(ctx, pool, false); err != nil {
			return fmt.Errorf("configured storage pool: %w", err)
		}
	}

	return nil
}

// lockMachine keeps other work of this process off a machine's objects.
func (h *Host) lockMachine(ctx context.Context, ref driver.Ref) (release func(), err error) {
	return h.machineLocks.acquire(ctx, fmt.Sprintf("machine %q", ref))
}
