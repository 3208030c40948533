package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// toyCloud is the least that is a cloud: machines that are made, started and deleted at once.
type toyCloud struct {
	books *ledger.Ledger
	boot  func(ctx context.Context, g Guest)

	ctx    context.Context // It is the life of the cloud.
	cancel context.CancelFunc
	guests sync.WaitGroup

	mu     sync.Mutex
	next   int
	vms    []*toyVM
	images map[string]bool
	leases map[string]toyLease
	// out are the places that are out of reach; a silent one has true.
	out map[string]bool
}

// toyLease is held by the one session of a provider that may change anything. It is renewed whenever that lists the machines.
type toyLease struct {
	session *ledger.Session
	until   time.Time
}

// toyLeaseTime is how long a lease that is not renewed keeps others away.
const toyLeaseTime = 30 * time.Second

var errLeased = errors.New("another process of the provider holds the lease")

type toyVM struct {
	ledger.Machine

	guest  Guest
	unplug context.CancelFunc
}

func newToyCloud(boot func(ctx context.Context, g Guest)) *toyCloud {
	c := &toyCloud{books: ledger.New(), boot: boot, images: map[string]bool{}, leases: map[string]toyLease{}, out: map[string]bool{}}
	c.ctx, c.cancel = context.WithCancel(context.Background())

	return c
}

func (c *toyCloud) close() {
	c.cancel()
	c.guests.Wait()
}

func (c *toyCloud) Ledger() *ledger.Ledger { return c.books }

func (c *toyCloud) Machines() []ledger.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.machinesLocked()
}

func (c *toyCloud) machinesLocked() (all []ledger.Machine) {
	for _, vm := range c.vms {
		all = append(all, vm.Machine)
	}

	return all
}

func (c *toyCloud) DeleteMachine(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.deleteLocked(id)
}

// SwitchOff switches a machine off, as someone at the cloud's console would.
func (c *toyCloud) SwitchOff(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.stopLocked(id)
}

func (c *toyCloud) AddForeign(kind, name string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.addLocked(ledger.Object{Kind: kind, Name: name, Keep: true}, toyPlaces[0], Guest{UUID: "theirs"}, nil), nil
}

func (c *toyCloud) addLocked(o ledger.Object, place string, g Guest, tags map[string]string) string {
	c.next++
	o.ID = fmt.Sprintf("vm-%d", c.next)
	c.vms = append(c.vms, &toyVM{Machine: ledger.Machine{ID: o.ID, Name: o.Name, UUID: g.UUID, Place: place, Tags: tags}, guest: g})
	c.books.Made(o)

	return o.ID
}

func (c *toyCloud) findLocked(id string) (*toyVM, error) {
	for _, vm := range c.vms {
		if vm.ID == id {
			return vm, nil
		}
	}

	return nil, errors.New("no such machine")
}

func (c *toyCloud) startLocked(id string) error {
	vm, err := c.findLocked(id)
	if err != nil {
		return err
	}

	vm.cut()

	vm.On = true
	vm.Boots++

	var ctx context.Context

	ctx, vm.unplug = context.WithCancel(c.ctx)
	c.guests.Go(func() { c.boot(ctx, vm.guest) })

	return nil
}

func (c *toyCloud) stopLocked(id string) error {
	vm, err := c.findLocked(id)
	if err != nil {
		return err
	}

	vm.cut()

	return nil
}

// restartLocked restarts a machine, once for each word unless it is to happen again.
func (c *toyCloud) restartLocked(id, word string, again bool) error {
	vm, err := c.findLocked(id)
	if err != nil || vm.Tags["restart"] == word && !again {
		return err
	}

	vm.Tags = maps.Clone(vm.Tags)
	vm.Tags["restart"] = word

	return c.startLocked(id)
}

func (c *toyCloud) deleteLocked(id string) error {
	vm, err := c.findLocked(id)
	if err != nil {
		return err
	}

	vm.cut()
	c.vms = slices.DeleteFunc(c.vms, func(o *toyVM) bool { return o == vm })
	c.books.Gone("vm", id)

	return nil
}

// cut takes the machine's power away.
func (vm *toyVM) cut() {
	if vm.unplug != nil {
		vm.unplug()
	}

	vm.On = false
}

// toyClient is a process's connection.
type toyClient struct {
	cloud    *toyCloud
	session  *ledger.Session
	provider string
	// alone clients do not ask for the lease.
	alone bool
}

// close gives up the lease, as the end of a process does in whichever way it comes.
func (c toyClient) close() {
	c.cloud.mu.Lock()
	defer c.cloud.mu.Unlock()

	if c.cloud.leases[c.provider].session == c.session {
		delete(c.cloud.leases, c.provider)
	}
}

// toyFaults are those that a toy cloud plays.
var toyFaults = []ledger.FaultKind{
	ledger.NotFound, ledger.Conflict, ledger.Throttled, ledger.Unavailable, ledger.Full, ledger.Unauthorized, ledger.Echo,
}

// toyTimeout is how long the toy waits for an answer of its cloud.
const toyTimeout = 2 * time.Minute

func (c toyClient) call(ctx context.Context, op, object string, effect func() error) error {
	ctx, cancel := context.WithTimeout(ctx, toyTimeout)
	defer cancel()

	return c.session.CallContext(ctx, op, object, func() error {
		c.cloud.mu.Lock()
		defer c.cloud.mu.Unlock()

		return effect()
	})
}

// change is a call that only the holder of the lease may make.
func (c toyClient) change(ctx context.Context, op, object string, effect func() error) error {
	return c.call(ctx, op, object, func() error {
		if !c.alone && c.cloud.leases[c.provider].session != c.session {
			return errLeased
		}

		return effect()
	})
}

func (c toyClient) list(ctx context.Context) ([]ledger.Machine, error) {
	var all []ledger.Machine

	err := c.call(ctx, "list", "", func() error {
		if lease := c.cloud.leases[c.provider]; !c.alone && lease.session != c.session && time.Now().Before(lease.until) {
			return errLeased
		}

		c.cloud.leases[c.provider] = toyLease{session: c.session, until: time.Now().Add(toyLeaseTime)}
		all = c.cloud.machinesLocked()

		return nil
	})
	if err != nil {
		return nil, err
	}

	return c.inReach(ctx, all)
}

// upload makes sure that there is an image of that name. It stays, for machines to come.
func (c toyClient) upload(ctx context.Context, name string) error {
	return c.change(ctx, "upload", name, func() error {
		if !c.cloud.images[name] {
			c.cloud.images[name] = true
			c.cloud.books.Made(ledger.Object{Kind: "image", ID: name, Keep: true})
		}

		return nil
	})
}

func (c toyClient) create(ctx context.Context, name, place string, g Guest, tags map[string]string) (string, error) {
	var id string

	err := c.change(ctx, "create", name, func() error {
		if err := c.cloud.refusalLocked(place); err != nil {
			return err
		}

		id = c.cloud.addLocked(ledger.Object{Kind: "vm", Name: name}, place, g, tags)

		return nil
	})
	if fault, ok := errors.AsType[*ledger.FaultError](err); ok && fault.Kind == ledger.Echo {
		err = fmt.Errorf("cannot create %+v: %w", g, err)
	}

	if err != nil {
		return "", err
	}

	return id, nil
}

func (c toyClient) start(ctx context.Context, id string) error {
	return c.operate(ctx, "start", id, func() error { return c.cloud.startLocked(id) })
}

func (c toyClient) stop(ctx context.Context, id string) error {
	return c.operate(ctx, "stop", id, func() error { return c.cloud.stopLocked(id) })
}

func (c toyClient) restart(ctx context.Context, id, word string, again bool) error {
	return c.operate(ctx, "restart", id, func() error { return c.cloud.restartLocked(id, word, again) })
}

func (c toyClient) delete(ctx context.Context, id string) error {
	return c.operate(ctx, "delete", id, func() error { return c.cloud.deleteLocked(id) })
}
