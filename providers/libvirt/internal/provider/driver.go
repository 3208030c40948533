// Package provider makes Talos machines with libvirt: it implements the driver contract on any hypervisor that libvirt reaches.
// The provider's command imports it.
package provider

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/nocloud"
)

// DefaultShutdownTimeout is that of Config.
const DefaultShutdownTimeout = 2 * time.Minute

// Config is how the driver works. Its zero value manages machines through the local system daemon.
type Config struct {
	connection.Config

	// Version of the provider, recorded in each machine's mark; "devel" when empty.
	Version string
	// ShutdownTimeout is how long a guest may take to shut down or reboot before it is forced; DefaultShutdownTimeout when zero.
	ShutdownTimeout time.Duration
	// KeepImages leaves boot images in the storage pools when the last machine on them is removed.
	KeepImages bool
	// StoragePools are the pools that class data may name; any when empty. Check fails when one of them is missing.
	StoragePools []string
	// Logger gets what no error can carry; nil for none.
	Logger *zap.Logger
}

// Driver makes machines with libvirt. Close has to be called at the end.
type Driver struct {
	config Config
	conn   *connection.Connection

	uploads      flights[image]
	machineLocks locks
	poolLocks    locks

	mu       sync.Mutex
	reserved map[driver.Ref]imageRef
	leaving  map[driver.Ref]*leaving
}

var (
	_ driver.Driver      = (*Driver)(nil)
	_ driver.PowerSwitch = (*Driver)(nil)
	_ driver.Watcher     = (*Driver)(nil)
)

// New returns a driver. It connects with the first call.
func New(config Config) *Driver {
	if config.Version == "" {
		config.Version = "devel"
	}

	if config.ShutdownTimeout == 0 {
		config.ShutdownTimeout = DefaultShutdownTimeout
	}

	if config.Logger == nil {
		config.Logger = zap.NewNop()
	}

	return &Driver{
		config:   config,
		conn:     connection.New(config.Config),
		reserved: map[driver.Ref]imageRef{},
		leaving:  map[driver.Ref]*leaving{},
	}
}

// Close ends the connection.
func (d *Driver) Close() { d.conn.Close() }

// Check says whether libvirt answers, and whether the configured pools are there.
func (d *Driver) Check(ctx context.Context) error {
	if err := connection.Do(ctx, d.conn, "ask libvirt for its version", func(c *libvirt.Connect) error {
		_, err := c.GetLibVersion()

		return err
	}); err != nil {
		return err
	}

	for _, pool := range d.config.StoragePools {
		if err := d.checkPool(ctx, pool); err != nil {
			return fmt.Errorf("configured storage pool: %w", err)
		}
	}

	return nil
}

// Plan checks the class data against itself and against what libvirt has.
func (d *Driver) Plan(ctx context.Context, req driver.Request) (driver.Plan, error) {
	data, err := classdata.Decode[ClassData](req.ClassData)
	if err != nil {
		return driver.Plan{}, err
	}

	if err := checkRequestID(req.RequestID); err != nil {
		return driver.Plan{}, driver.Terminal(err)
	}

	// The seed's own rules, above all for the hostname, hold for any user data.
	if _, err := nocloud.New(nocloud.Config{Hostname: req.RequestID, UserData: "---"}); err != nil {
		return driver.Plan{}, err
	}

	if allowed := d.config.StoragePools; len(allowed) > 0 && !slices.Contains(allowed, data.StoragePool) {
		return driver.Plan{}, driver.Terminalf("storage_pool: this provider may not use %q: want one of %q", data.StoragePool, allowed)
	}

	if err := d.checkPool(ctx, data.StoragePool); err != nil {
		return driver.Plan{}, fmt.Errorf("storage_pool: %w", err)
	}

	for i, nic := range data.NetworkInterfaces {
		if nic.Type == typeNetwork {
			if err := d.checkNetwork(ctx, fmt.Sprintf("network_interfaces[%d].network_name", i), nic.network()); err != nil {
				return driver.Plan{}, err
			}
		}
	}

	h, err := d.host(ctx, data.Arch)
	if err != nil {
		return driver.Plan{}, err
	}

	if data.Firmware == firmwareUEFI && !h.UEFI {
		return driver.Plan{}, driver.Terminalf(
			`firmware: the hypervisor has no UEFI firmware for %s; install it (package ovmf or edk2-ovmf), or set firmware to "bios"`, data.Arch)
	}

	n := namesOf(req.Ref)
	plan := driver.Plan{
		UUID:  req.Identity.UUID,
		Image: &driver.ImageSpec{Platform: "nocloud", Arch: data.Arch, Format: "raw"},
		Names: map[string]string{"pool": data.StoragePool, "domain": n.Domain, "root-volume": n.Root, "seed-volume": n.Seed},
	}

	for i := range data.AdditionalDisks {
		plan.Names[fmt.Sprintf("disk-%d-volume", i+1)] = n.Disk(i)
	}

	b := builder{d: d, req: req, data: data, names: n}
	plan.Phases = []driver.Phase{
		{Name: "ensure-image", Ensure: b.ensureImage},
		{Name: "create-volume", Ensure: b.createVolumes},
		{Name: "create-seed", Ensure: b.locked(b.createSeed)},
		{Name: "define-domain", Ensure: b.locked(b.defineDomain)},
		{Name: "start-domain", Ensure: b.locked(b.startDomain)},
	}

	return plan, nil
}

// lockMachine keeps other work of this process off a machine's objects.
func (d *Driver) lockMachine(ctx context.Context, ref driver.Ref) (release func(), err error) {
	return d.machineLocks.acquire(ctx, fmt.Sprintf("machine %q", ref))
}
