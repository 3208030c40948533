// Package provider is the driver of the Oxide provider: machines that are instances on an Oxide rack.
//
// A rack has no events, no tags and no way to choose an instance's UUID. So machines are looked for by name and known by their
// description, in all projects that the operator allows, and which UUID one has is learned from Omni.
package provider

import (
	"cmp"
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/rack"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/flight"
)

// Config says how the driver works. The zero value of each field but Rack is its default.
type Config struct {
	// Rack is the rack. The driver does not close it.
	Rack *rack.Client
	// Projects are the names or ids of the projects that classes may use; all that the token sees when there is none. Machines that are in
	// others nevertheless, as the configuration was another one, are looked after and removed there.
	Projects []string
	// KeepImages keeps boot images for good. ImageMaxAge is how long those that nothing uses are kept otherwise, 24 hours by default.
	KeepImages  bool
	ImageMaxAge time.Duration
	// SweepInterval is the time between two looks for boot images that nothing uses, 10 minutes by default.
	SweepInterval time.Duration
	// Writers is how many parts of an image are sent at once, by default half of the calls that the rack's client makes at once.
	Writers int
	// Version is that of the provider, which the marks have.
	Version string
	Logger  *zap.Logger
}

// The defaults of Config.
const (
	DefaultImageMaxAge   = 24 * time.Hour
	DefaultSweepInterval = 10 * time.Minute
)

// Driver makes machines on a rack. What it keeps in memory only saves calls.
type Driver struct {
	config Config
	rack   *rack.Client
	log    *zap.Logger

	imports flight.Group[bootImage]
	use     imageUse
	scratch attempts

	// life is that of what no call waits for: sweeps, which end when the driver is closed, and what imports do in the end, which gets a while
	// longer.
	life, sweeping context.Context //nolint:containedctx // They are the driver's own.
	end, endSweeps context.CancelFunc
	background     sync.WaitGroup

	mu sync.Mutex
	// allowed are the projects as they were at allowedAt.
	allowed   []project
	allowedAt time.Time
	former    former
	// seen is the project in which each machine was seen last: where it is asked for first.
	seen map[driver.Ref]string
	// addresses are those of instances, by their ids.
	addresses map[string]addressed
	// boots are those of instances, by their ids.
	boots  map[string]boot
	swept  time.Time
	closed bool
}

var (
	_ driver.Driver      = (*Driver)(nil)
	_ driver.PowerSwitch = (*Driver)(nil)
	_ driver.Addresser   = (*Driver)(nil)
)

// New returns a driver. Close has to be called at its end.
func New(config Config) *Driver {
	config.ImageMaxAge = cmp.Or(config.ImageMaxAge, DefaultImageMaxAge)
	config.SweepInterval = cmp.Or(config.SweepInterval, DefaultSweepInterval)
	config.Writers = cmp.Or(config.Writers, max(1, config.Rack.InFlight()/2))
	config.Version = cmp.Or(config.Version, "unknown")

	if config.Logger == nil {
		config.Logger = zap.NewNop()
	}

	d := &Driver{
		config: config, rack: config.Rack, log: config.Logger, seen: map[driver.Ref]string{}, addresses: map[string]addressed{}, boots: map[string]boot{},
		swept: time.Now(),
	}
	d.life, d.end = context.WithCancel(context.Background())
	d.sweeping, d.endSweeps = context.WithCancel(d.life)

	return d
}

// closeGrace is how long imports that were broken off by the end may take to delete what they have made.
const closeGrace = 3 * time.Second

// Close ends what runs in the background. No other method may be called after it.
func (d *Driver) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()

	d.endSweeps()

	grace := time.AfterFunc(closeGrace, d.end)
	defer grace.Stop()

	d.imports.Wait()
	d.end()
	d.background.Wait()
}

// Check says whether the rack answers and takes the token.
func (d *Driver) Check(ctx context.Context) error { return d.rack.Check(ctx) }

func (d *Driver) saw(ref driver.Ref, project string) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.seen[ref] = project
}

func (d *Driver) lastSeen(ref driver.Ref) string {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.seen[ref]
}

func (d *Driver) forget(ref driver.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()

	delete(d.seen, ref)
}
