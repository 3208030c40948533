package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

// patience is how long a zone may take to answer where the others are asked, too. It is well below the time that the library gives
// to a whole call.
const patience = 8 * time.Second

// Zones makes machines in several clouds that fail apart from each other. It is an example of driver.Placer: a driver for each
// place, and in front of them one that knows whom to ask.
type Zones struct {
	names []string
	zones map[string]*Driver

	mu sync.Mutex
	// quiet is until when each zone wants to be left alone. The library would leave all of them alone.
	quiet map[string]time.Time
}

var (
	_ driver.Driver      = (*Zones)(nil)
	_ driver.Placer      = (*Zones)(nil)
	_ driver.PowerSwitch = (*Zones)(nil)
	_ driver.Watcher     = (*Zones)(nil)
)

// NewZones returns the driver of the clouds that the clients are connected to, by the zones' names.
func NewZones(clients map[string]*cloud.Client) *Zones {
	z := &Zones{names: slices.Sorted(maps.Keys(clients)), zones: map[string]*Driver{}, quiet: map[string]time.Time{}}

	for name, client := range clients {
		z.zones[name] = New(client)
		client.Before = func(ctx context.Context) error {
			if left := z.quietFor(name); left > 0 {
				return driver.Pending(left, "zone %q asks to be left alone for %s", name, left.Round(time.Second))
			}

			return driver.AwaitTurn(ctx)
		}
	}

	return z
}

// Places returns the zones' names.
func (z *Zones) Places() []string { return z.names }

// Place takes the zone in reach that has the fewest machines of the provider. Of several the request's id picks one: a choice that is made
// for many at once, before any has a machine, spreads them too.
func (z *Zones) Place(ctx context.Context, req driver.Request) (string, error) {
	if err := Validate(req.ClassData); err != nil {
		return "", err
	}

	var mu sync.Mutex

	machines := map[string]int{}

	err := z.each(ctx, func(ctx context.Context, name string, d *Driver) error {
		vms, err := d.client.ListVMs(ctx, map[string]string{tagProvider: req.ProviderID})

		mu.Lock()
		defer mu.Unlock()

		if err == nil {
			machines[name] = len(vms)
		}

		return listed(err)
	})
	if len(machines) == 0 {
		return "", err
	}

	return slices.MinFunc(slices.Sorted(maps.Keys(machines)), func(a, b string) int {
		return cmp.Or(cmp.Compare(machines[a], machines[b]), cmp.Compare(draw(req.Ref, a), draw(req.Ref, b)))
	}), nil
}

// draw returns a number that is the zone's for the request.
func draw(ref driver.Ref, zone string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%s", zone, ref) //nolint:errcheck // a hash takes all

	return h.Sum64()
}

// Plan is the zone's.
func (z *Zones) Plan(ctx context.Context, req driver.Request) (driver.Plan, error) {
	return z.zones[req.Place].Plan(ctx, req)
}

// Find asks all zones, and takes the first answer that is a machine.
func (z *Zones) Find(ctx context.Context, ref driver.Ref) (driver.Machine, error) {
	_, m, err := z.find(ctx, ref)

	return m, err
}

func (z *Zones) find(ctx context.Context, ref driver.Ref) (*Driver, driver.Machine, error) {
	type answer struct {
		zone    *Driver
		machine driver.Machine
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	found, all := make(chan answer, len(z.names)), make(chan error, 1)

	go func() {
		all <- z.each(ctx, func(ctx context.Context, name string, d *Driver) error {
			m, err := d.Find(ctx, ref)
			if err == nil {
				m.Place = name
				found <- answer{zone: d, machine: m}
			}

			if driver.IsNotFound(err) {
				return nil
			}

			return err
		})
	}()

	select {
	case a := <-found:
		return a.zone, a.machine, nil
	case err := <-all:
		if len(found) > 0 {
			a := <-found

			return a.zone, a.machine, nil
		}

		return nil, driver.Machine{}, cmp.Or(err, driver.NotFound("no zone has a machine of %s", ref))
	}
}

// List returns what all zones have that answer.
func (z *Zones) List(ctx context.Context, providerID string) ([]driver.Machine, error) {
	var (
		mu       sync.Mutex
		machines []driver.Machine
	)

	err := z.each(ctx, func(ctx context.Context, name string, d *Driver) error {
		list, err := d.List(ctx, providerID)
		if err != nil {
			return err
		}

		for i := range list {
			list[i].Place = name
		}

		mu.Lock()
		defer mu.Unlock()

		machines = append(machines, list...)

		return nil
	})

	return machines, err
}

// Remove takes away what any zone has. It is done when all of them say so.
func (z *Zones) Remove(ctx context.Context, ref driver.Ref) (bool, error) {
	var (
		mu   sync.Mutex
		busy error
	)

	err := z.each(ctx, func(ctx context.Context, name string, d *Driver) error {
		_, err := d.Remove(ctx, ref)
		if driver.KindOf(err) != driver.KindPending || z.quietFor(name) > 0 {
			return err
		}

		mu.Lock()
		defer mu.Unlock()

		busy = err

		return nil
	})

	return err == nil && busy == nil, cmp.Or(err, busy)
}

// RemoveFrom asks the one zone.
func (z *Zones) RemoveFrom(ctx context.Context, ref driver.Ref, place string) (bool, error) {
	return z.zones[place].Remove(ctx, ref)
}

// Check asks all zones. As long as one answers, machines can be made.
func (z *Zones) Check(ctx context.Context) error {
	err := z.each(ctx, func(ctx context.Context, _ string, d *Driver) error { return d.Check(ctx) })

	if unseen := driver.UnseenOf(err); unseen != nil && len(unseen.Places) == len(z.names) {
		return errors.New("no zone can be reached: " + unseen.Error())
	}

	return err
}

// SetPower is that of the zone that has the machine.
func (z *Zones) SetPower(ctx context.Context, ref driver.Ref, want driver.Power) error {
	d, _, err := z.find(ctx, ref)
	if err != nil {
		return err
	}

	return d.SetPower(ctx, ref, want)
}

// Reboot is that of the zone that has the machine.
func (z *Zones) Reboot(ctx context.Context, ref driver.Ref) error {
	d, _, err := z.find(ctx, ref)
	if err != nil {
		return err
	}

	return d.Reboot(ctx, ref)
}

// Watch passes the events of all zones on. One whose stream breaks is watched anew after a while without the others' noticing; what happens
// there meanwhile is seen by the library's own looks.
func (z *Zones) Watch(ctx context.Context, providerID string, changed func(driver.Ref)) error {
	var wg sync.WaitGroup

	for name, d := range z.zones {
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = z.heed(name, d.Watch(ctx, providerID, changed)) // The next try says more.

				select {
				case <-ctx.Done():
				case <-time.After(patience):
				}
			}
		})
	}

	wg.Wait()

	return ctx.Err()
}

// each asks all zones at once, and returns Unseen with those that did not answer in time.
func (z *Zones) each(ctx context.Context, ask func(ctx context.Context, name string, d *Driver) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		wait error
	)

	unseen := &driver.Unseen{Places: map[string]error{}}

	for name, d := range z.zones {
		wg.Go(func() {
			err := z.heed(name, ask(ctx, name, d))

			mu.Lock()
			defer mu.Unlock()

			switch {
			case err == nil:
			case driver.KindOf(err) == driver.KindPending && z.quietFor(name) <= 0:
				// It is the library that waits, for all zones.
				wait = err
			default:
				unseen.Places[name] = err
			}
		})
	}

	wg.Wait()

	switch {
	case wait != nil:
		return wait
	case len(unseen.Places) > 0:
		return unseen
	default:
		return nil
	}
}

// heed notes that a zone asks to be left alone, if its error says so, and returns the error.
func (z *Zones) heed(name string, err error) error {
	if driver.KindOf(err) == driver.KindThrottled {
		z.mu.Lock()
		defer z.mu.Unlock()

		z.quiet[name] = time.Now().Add(driver.PauseOf(err))
	}

	return err
}

// quietFor returns how long a zone is to be left alone.
func (z *Zones) quietFor(name string) time.Duration {
	z.mu.Lock()
	defer z.mu.Unlock()

	return time.Until(z.quiet[name])
}
