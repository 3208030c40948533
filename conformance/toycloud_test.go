package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// toyCloud is the least that is a cloud: machines that are made, started and deleted at once.
type toyCloud struct {
	books *ledger.Ledger
	boot  func(ctx context.Context, g Guest)

	ctx    context.Context // It is the life of the cloud.
	cancel context.CancelFunc
	guests sync.WaitGroup

	mu   sync.Mutex
	next int
	vms  []*toyVM
}

type toyVM struct {
	ledger.Machine

	guest  Guest
	unplug context.CancelFunc
}

func newToyCloud(boot func(ctx context.Context, g Guest)) *toyCloud {
	c := &toyCloud{books: ledger.New(), boot: boot}
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

	var all []ledger.Machine

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

func (c *toyCloud) AddForeign(kind, name string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.addLocked(ledger.Object{Kind: kind, Name: name, Keep: true}, Guest{UUID: "theirs"}, nil), nil
}

func (c *toyCloud) addLocked(o ledger.Object, g Guest, tags map[string]string) string {
	c.next++
	o.ID = fmt.Sprintf("vm-%d", c.next)
	c.vms = append(c.vms, &toyVM{Machine: ledger.Machine{ID: o.ID, Name: o.Name, UUID: g.UUID, Tags: tags}, guest: g})
	c.books.Made(o)

	return o.ID
}

func (c *toyCloud) startLocked(id string) error {
	for _, vm := range c.vms {
		if vm.ID != id {
			continue
		}

		if vm.unplug != nil {
			vm.unplug()
		}

		vm.On = true
		vm.Boots++

		var ctx context.Context

		ctx, vm.unplug = context.WithCancel(c.ctx)
		c.guests.Go(func() { c.boot(ctx, vm.guest) })

		return nil
	}

	return errors.New("no such machine")
}

func (c *toyCloud) deleteLocked(id string) error {
	for i, vm := range c.vms {
		if vm.ID != id {
			continue
		}

		if vm.unplug != nil {
			vm.unplug()
		}

		c.vms = append(c.vms[:i:i], c.vms[i+1:]...)
		c.books.Gone("vm", id)

		return nil
	}

	return errors.New("no such machine")
}

// toyClient is a process's connection.
type toyClient struct {
	cloud   *toyCloud
	session *ledger.Session
}

func (c toyClient) call(op, object string, effect func() error) error {
	return c.session.Call(op, object, func() error {
		c.cloud.mu.Lock()
		defer c.cloud.mu.Unlock()

		return effect()
	})
}

func (c toyClient) list() (all []ledger.Machine, err error) {
	err = c.session.Call("list", "", func() error {
		all = c.cloud.Machines()

		return nil
	})

	return all, err
}

func (c toyClient) create(name string, g Guest, tags map[string]string) (id string, err error) {
	err = c.call("create", name, func() error {
		id = c.cloud.addLocked(ledger.Object{Kind: "vm", Name: name}, g, tags)

		return nil
	})

	return id, err
}

func (c toyClient) start(id string) error {
	return c.call("start", id, func() error { return c.cloud.startLocked(id) })
}

func (c toyClient) delete(id string) error {
	return c.call("delete", id, func() error { return c.cloud.deleteLocked(id) })
}
