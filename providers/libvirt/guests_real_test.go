//go:build real

package libvirt_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
)

// resetTime is how long a machine goes on to report that it is reset after one reset: its firmware resets it again when it finds its
// own memory, which takes its time where the processor is busy.
const resetTime = 10 * time.Second

// event is news of a domain: it started as that run, or was reset, or has gone, or something else.
type event struct {
	uuid        string
	run         int
	reset, gone bool
}

// watch asks for the events of all domains.
func watch(t *testing.T, c *cloud) {
	t.Helper()

	tell := func(d *libvirt.Domain, e event) {
		e.uuid, _ = d.GetUUIDString() // It is part of the handle.
		c.events <- e
	}

	id, err := c.conn.DomainEventLifecycleRegister(nil, func(_ *libvirt.Connect, d *libvirt.Domain, e *libvirt.DomainEventLifecycle) {
		news := event{gone: e.Event == libvirt.DOMAIN_EVENT_UNDEFINED}

		if run, err := d.GetID(); err == nil && e.Event == libvirt.DOMAIN_EVENT_STARTED {
			news.run = int(run)
		}

		tell(d, news)
	})
	require.NoError(t, err)

	c.callbacks = append(c.callbacks, id)

	id, err = c.conn.DomainEventRebootRegister(nil, func(_ *libvirt.Connect, d *libvirt.Domain) { tell(d, event{reset: true}) })
	require.NoError(t, err)

	c.callbacks = append(c.callbacks, id)
}

// follow hears of the domains.
func (c *cloud) follow() {
	for {
		select {
		case <-c.ctx.Done():
			return
		case e := <-c.events:
			c.hear(e)
		}
	}
}

func (c *cloud) hear(e event) {
	d, err := c.conn.LookupDomainByUUIDString(e.uuid)
	if err == nil {
		defer d.Free() //nolint:errcheck // It is only looked at.

		if !c.owns(d, e.uuid) {
			return
		}
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	m := c.machines[e.uuid]

	switch {
	case e.gone:
		c.forgetLocked(e.uuid)
	case err != nil || c.foreign[e.uuid]:
	case e.reset:
		if m != nil && m.stop != nil && time.Since(m.reset) > resetTime {
			c.books.Note("libvirt: %s is reset", m.name)
			c.bootLocked(m)
		}

		if m != nil {
			m.reset = time.Now()
		}
	default:
		name, _ := d.GetName()
		m = c.machineLocked(name, e.uuid)

		c.runsLocked(m, e.run)

		// It may have gone on since. What it does after this look is other news.
		if run := c.runOf(e.uuid); run != 0 {
			c.runsLocked(m, run)
		} else {
			c.haltLocked(m)
		}
	}
}

// reset makes the call that resets a domain, and counts it: the news that libvirt has of resets are too many.
func (c *cloud) reset(uuid string, call func() error) error {
	c.mu.Lock()

	m := c.machines[uuid]
	if m != nil {
		m.reset = time.Now()
	}
	c.mu.Unlock()

	err := call()
	if err != nil || m == nil {
		return err
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.bootLocked(m)

	return nil
}

// runOf returns the number of the domain's present run, 0 for none.
func (c *cloud) runOf(uuid string) int {
	d, err := c.conn.LookupDomainByUUIDString(uuid)
	if err != nil {
		return 0
	}
	defer d.Free() //nolint:errcheck // It is only looked at.

	run, err := d.GetID()
	if err != nil {
		return 0
	}

	return int(run)
}

// runsLocked notes that a machine was seen in a run, 0 for none.
func (c *cloud) runsLocked(m *domain, run int) {
	if run > m.run {
		c.books.Note("libvirt: %s runs", m.name)
		m.run = run
		c.bootLocked(m)
	}
}

func (c *cloud) machineLocked(name, uuid string) *domain {
	m := c.machines[uuid]
	if m == nil {
		c.lives++
		m = &domain{id: fmt.Sprintf("%s:%s/%d", c.place, name, c.lives), name: name, uuid: uuid}
		c.machines[uuid] = m
	}

	return m
}

func (c *cloud) forgetLocked(uuid string) {
	if m := c.machines[uuid]; m != nil {
		c.haltLocked(m)
		delete(c.machines, uuid)
		delete(c.ours, uuid)
	}
}

func (c *cloud) haltLocked(m *domain) {
	if m.stop != nil {
		m.stop()
		m.stop = nil
	}
}

// bootLocked puts a simulated Talos into a machine that has been started or reset.
func (c *cloud) bootLocked(m *domain) {
	m.boots++

	if m.stop != nil {
		m.stop()
	}

	ctx, cancel := context.WithCancel(c.ctx)
	m.stop = cancel

	c.guests.Go(func() {
		userData, err := c.seedOf(m.uuid)
		if err != nil {
			c.books.Note("the guest of %s finds no seed: %v", m.name, err)
		}

		c.world.Boot(ctx, conformance.Guest{UUID: m.uuid, UserData: userData})
	})
}

// seedOf reads what the machine with that UUID is told, where its firmware would.
func (c *cloud) seedOf(uuid string) (string, error) {
	d, err := c.conn.LookupDomainByUUIDString(uuid)
	if err != nil {
		return "", err
	}
	defer d.Free() //nolint:errcheck // It is only looked at.

	text, err := d.GetXMLDesc(0)
	if err != nil {
		return "", err
	}

	var desc libvirtxml.Domain
	if err := desc.Unmarshal(text); err != nil {
		return "", err
	}

	for _, disk := range desc.Devices.Disks {
		if disk.Source == nil || disk.Source.File == nil {
			continue
		}

		image, err := os.Open(disk.Source.File.File)
		if err != nil {
			return "", err
		}
		defer image.Close() //nolint:errcheck // It is only read.

		if volume, err := talos.OpenISO(image); err == nil {
			return string(talos.ReadSeed(volume).UserData), nil
		}
	}

	return "", errors.New("no disk is labelled cidata")
}
