// Package provider makes Talos machines with libvirt: it implements the driver contract on one hypervisor or several. The provider's
// command imports it.
//
//	driver.go  which hosts there are, and the parts of the contract that ask one of them
//	plan.go    what is made for a request
//	place.go   which host makes it
//	adopt.go   machines that the official provider made
//	ask.go     all hosts at once, of which one may be dead
package provider

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// DefaultHost is the name of the only host where the configuration names none.
const DefaultHost = "default"

// Config is how the driver works. Its zero value manages machines through the local system daemon.
type Config struct {
	// Hosts are the hypervisors, by different names. A single one may do without a name.
	Hosts []hypervisor.Config
	// Logger gets what no error can carry; nil for none.
	Logger *zap.Logger
}

// Driver makes machines with libvirt. Close has to be called at the end.
type Driver struct {
	hosts []*host
	log   *zap.Logger

	mu sync.Mutex
	// promised is the room that machines take which are placed, but do not run yet.
	promised map[driver.Ref]promise
	// seen is where each machine was seen last: where it is asked for first.
	seen map[driver.Ref]*host
}

var (
	_ driver.Driver      = (*Driver)(nil)
	_ driver.Placer      = (*Driver)(nil)
	_ driver.PowerSwitch = (*Driver)(nil)
	_ driver.Watcher     = (*Driver)(nil)
	_ driver.Adopter     = (*Driver)(nil)
	_ driver.Addresser   = (*Driver)(nil)
)

// New returns a driver. It connects with the first call.
func New(config Config) *Driver {
	if len(config.Hosts) == 0 {
		config.Hosts = []hypervisor.Config{{}}
	}

	if config.Logger == nil {
		config.Logger = zap.NewNop()
	}

	d := &Driver{log: config.Logger, promised: map[driver.Ref]promise{}, seen: map[driver.Ref]*host{}}

	for _, one := range config.Hosts {
		if one.Name == "" {
			one.Name = DefaultHost
		}

		if one.Logger == nil {
			one.Logger = config.Logger.With(zap.String("host", one.Name))
		}

		d.hosts = append(d.hosts, &host{Host: hypervisor.New(one)})
	}

	return d
}

// Close ends the connections.
func (d *Driver) Close() {
	var wg sync.WaitGroup

	for _, h := range d.hosts {
		wg.Go(h.Close)
	}

	wg.Wait()
}

// Places returns the names of the hosts.
func (d *Driver) Places() []string {
	names := make([]string, len(d.hosts))
	for i, h := range d.hosts {
		names[i] = h.Name()
	}

	return names
}

// at returns the host of that name. The only host is meant also where none is recorded, as for machines that were made before
// there were several.
func (d *Driver) at(place string) (*host, error) {
	if place == "" && len(d.hosts) == 1 {
		return d.hosts[0], nil
	}

	if i := slices.IndexFunc(d.hosts, func(h *host) bool { return h.Name() == place }); i >= 0 {
		return d.hosts[i], nil
	}

	return nil, fmt.Errorf("the machine is at host %q, which is not in this provider's configuration (it has %s): put it back there, under that name",
		place, strings.Join(d.Places(), ", "))
}

// Check says whether the hosts answer and have what the configuration says.
func (d *Driver) Check(ctx context.Context) error {
	unseen := unseenOf(ask(ctx, d.hosts, func(ctx context.Context, h *host) (struct{}, error) { return struct{}{}, h.Check(ctx) }))

	switch {
	case unseen == nil:
		return nil
	case len(d.hosts) == 1:
		return unseen.Places[d.hosts[0].Name()]
	case len(unseen.Places) == len(d.hosts):
		return errors.New("no host can be used: " + unseen.Error())
	default:
		return unseen
	}
}

// Find returns the machine of a request, or what is left of one.
func (d *Driver) Find(ctx context.Context, ref driver.Ref) (driver.Machine, error) {
	_, m, err := d.find(ctx, ref)

	return m, err
}

// List returns the provider's machines and what is left of others.
func (d *Driver) List(ctx context.Context, providerID string) ([]driver.Machine, error) {
	answers := ask(ctx, d.hosts, func(ctx context.Context, h *host) ([]driver.Machine, error) { return h.List(ctx, providerID) })

	var all []driver.Machine

	for _, a := range answers {
		for _, m := range a.value {
			d.saw(m.Ref, a.host)

			// Another process may have started it.
			if m.Power == driver.PowerOn {
				d.kept(m.Ref)
			}
		}

		all = append(all, a.value...)
	}

	return all, d.plain(unseenOf(answers))
}

// Remove takes away the machine of a request, and what else carries its mark, from all hosts.
func (d *Driver) Remove(ctx context.Context, ref driver.Ref) (bool, error) {
	answers := ask(ctx, d.hosts, func(ctx context.Context, h *host) (bool, error) { return h.Remove(ctx, ref) })
	done := true

	for _, a := range answers {
		if a.err != nil && !errors.Is(a.err, connection.ErrUnreachable) {
			return false, a.err
		}

		done = done && a.value
	}

	if err := d.plain(unseenOf(answers)); err != nil {
		return false, err
	}

	if done {
		d.forget(ref)
	}

	return done, nil
}

// RemoveFrom is Remove for the host where the machine is.
func (d *Driver) RemoveFrom(ctx context.Context, ref driver.Ref, place string) (bool, error) {
	h, err := d.at(place)
	if err != nil {
		return false, err
	}

	done, err := h.Remove(ctx, ref)
	if done {
		d.forget(ref)
	}

	return done, err
}

// SetPower switches the machine.
func (d *Driver) SetPower(ctx context.Context, ref driver.Ref, want driver.Power) error {
	return d.onHost(ctx, ref, func(h *host) error { return h.SetPower(ctx, ref, want) })
}

// Reboot restarts the guest once.
func (d *Driver) Reboot(ctx context.Context, ref driver.Ref) error {
	return d.onHost(ctx, ref, func(h *host) error { return h.Reboot(ctx, ref) })
}

// onHost calls f with the host that has the machine.
func (d *Driver) onHost(ctx context.Context, ref driver.Ref, f func(*host) error) error {
	if h := d.lastSeen(ref); h != nil {
		if err := f(h); !driver.IsNotFound(err) {
			return err
		}
	}

	h, _, err := d.find(ctx, ref)
	if err != nil {
		return err
	}

	return f(h)
}

// find returns the machine of a request and the host that has it.
func (d *Driver) find(ctx context.Context, ref driver.Ref) (*host, driver.Machine, error) {
	answers := ask(ctx, d.hosts, func(ctx context.Context, h *host) (driver.Machine, error) { return h.Find(ctx, ref) },
		// The others have at most what is left of another one.
		func(a answer[driver.Machine]) bool { return a.err == nil && !a.value.Incomplete })

	var (
		best    answer[driver.Machine]
		missing error
	)

	for i, a := range answers {
		switch {
		case driver.IsNotFound(a.err):
			missing, answers[i].err = a.err, nil
		case a.err == nil && a.value.RequestID != "" && (best.host == nil || !a.value.Incomplete):
			best = a
		}
	}

	// Left-overs at one host say nothing of a host that cannot be seen, which may have the machine.
	if err := d.plain(unseenOf(answers)); err != nil && (best.host == nil || best.value.Incomplete) {
		return nil, driver.Machine{}, err
	}

	if best.host != nil {
		d.saw(ref, best.host)

		return best.host, best.value, nil
	}

	return nil, driver.Machine{}, missing
}

// plain returns the error of the only host as it is, and nil for nil.
func (d *Driver) plain(unseen *driver.Unseen) error {
	switch {
	case unseen == nil:
		return nil
	case len(d.hosts) == 1:
		return unseen.Places[d.hosts[0].Name()]
	default:
		return unseen
	}
}

func (d *Driver) saw(ref driver.Ref, h *host) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.seen[ref] = h
}

func (d *Driver) lastSeen(ref driver.Ref) *host {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.seen[ref]
}

// forget drops what is known of a machine that is gone.
func (d *Driver) forget(ref driver.Ref) {
	d.mu.Lock()
	defer d.mu.Unlock()

	delete(d.seen, ref)
	delete(d.promised, ref)
}
