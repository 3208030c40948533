package connection

import (
	"libvirt.org/go/libvirt"
)

// EventKind says what an Event is about.
type EventKind int

// The kinds of event.
const (
	// Changed says that a domain was defined, started, stopped, or has gone.
	Changed EventKind = iota
	// Rebooted says that a domain's machine was reset, by its guest or from outside. One reboot may be reported several times.
	Rebooted
	// Lost says that the connection broke: events may be missing.
	Lost
)

// Event is a change that the daemon reported.
type Event struct {
	Kind EventKind
	// Domain is the UUID of the domain, empty for Lost.
	Domain string
}

// Subscribe calls f for every event until cancel is called. f runs on libvirt's event loop: it must return at once and make no
// call to libvirt. Events flow only while the connection is open, which a call brings about.
func (c *Connection) Subscribe(f func(Event)) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()

	key := &f
	c.subscriber[key] = struct{}{}

	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()

		delete(c.subscriber, key)
	}
}

func (c *Connection) report(e Event) {
	c.mu.Lock()

	subscribers := make([]func(Event), 0, len(c.subscriber))
	for f := range c.subscriber {
		subscribers = append(subscribers, *f)
	}

	c.mu.Unlock()

	for _, f := range subscribers {
		f(e)
	}
}

// registerEvents asks for the events of all domains, as far as the driver has them. The callbacks that it returns are
// registered, also when it fails.
func registerEvents(conn Connect, report func(Event)) (callbacks []int, err error) {
	// The UUID is part of the handle: reading it makes no call.
	of := func(kind EventKind, d Domain) {
		if uuid, err := d.GetUUIDString(); err == nil {
			report(Event{Kind: kind, Domain: uuid})
		}
	}

	for _, register := range []func() (int, error){
		func() (int, error) {
			return conn.DomainEventLifecycleRegister(nil,
				func(_ Connect, d Domain, _ *libvirt.DomainEventLifecycle) { of(Changed, d) })
		},
		func() (int, error) {
			return conn.DomainEventRebootRegister(nil, func(_ Connect, d Domain) { of(Rebooted, d) })
		},
	} {
		id, err := register()

		switch {
		case err == nil:
			callbacks = append(callbacks, id)
		case !Is(err, libvirt.ERR_NO_SUPPORT):
			return callbacks, err
		}
	}

	return callbacks, nil
}
