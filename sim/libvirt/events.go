package libvirt

import (
	"maps"
	"slices"

	"libvirt.org/go/libvirt"
)

// DomainEventGenericCallback is called for an event that says no more than whose it is.
//
// Like all callbacks for events it is called one at a time for each connection, in the order of the events, and may make calls. A
// handle that is passed to it is freed when it returns.
type DomainEventGenericCallback func(c *Connect, d *Domain)

// DomainEventLifecycleCallback is called when a domain is defined, started, stopped, or the like.
type DomainEventLifecycleCallback func(c *Connect, d *Domain, event *libvirt.DomainEventLifecycle)

// DomainEventMetadataChangeCallback is called when a domain's metadata, title or description change.
type DomainEventMetadataChangeCallback func(c *Connect, d *Domain, event *libvirt.DomainEventMetadataChange)

// DomainEventAgentLifecycleCallback is called when a domain's guest agent connects or leaves.
type DomainEventAgentLifecycleCallback func(c *Connect, d *Domain, event *libvirt.DomainEventAgentLifecycle)

// StoragePoolEventLifecycleCallback is called when a pool is defined, started, stopped, or the like.
type StoragePoolEventLifecycleCallback func(c *Connect, p *StoragePool, event *libvirt.StoragePoolEventLifecycle)

// StoragePoolEventGenericCallback is called for an event of a pool that says no more than whose it is.
type StoragePoolEventGenericCallback func(c *Connect, p *StoragePool)

// NetworkEventLifecycleCallback is called when a network is defined, started, stopped, or the like.
type NetworkEventLifecycleCallback func(c *Connect, n *Network, event *libvirt.NetworkEventLifecycle)

type (
	domainEventCallback      func(c *Connect, d *Domain, event any)
	storagePoolEventCallback func(c *Connect, p *StoragePool, event any)
	networkEventCallback     func(c *Connect, n *Network, event any)
)

// callback is a registered callback. One of domain, pool and network is set.
type callback struct {
	kind    eventKind
	object  string // The UUID of the object that it is about, empty for all.
	domain  domainEventCallback
	pool    storagePoolEventCallback
	network networkEventCallback
}

type eventKind int

const (
	lifecycleEvent eventKind = iota
	rebootEvent
	metadataEvent
	agentEvent
	poolLifecycleEvent
	poolRefreshEvent
	networkLifecycleEvent
)

// register adds a callback, which holds the connection open.
func (c *Connect) register(op string, cb callback) (int, error) {
	return call(c, request{op: op}, func() (int, error) {
		c.refs++
		c.lastID++
		c.callbacks[c.lastID] = &cb
		c.listenLocked()

		return c.lastID - 1, nil
	})
}

func (c *Connect) deregister(op string, id int) error {
	return do(c, request{op: op}, func() error {
		if _, ok := c.callbacks[id+1]; !ok {
			return invalidArgument(libvirt.FROM_NONE, "event callback id %d not registered", id)
		}

		delete(c.callbacks, id+1)
		c.unrefLocked()

		return nil
	})
}

func (c *Connect) registerDomain(op string, kind eventKind, d *Domain, f domainEventCallback) (int, error) {
	cb := callback{kind: kind, domain: f}
	if d != nil {
		cb.object = d.uuid
	}

	return c.register(op, cb)
}

// DomainEventLifecycleRegister makes f be called when a domain, or any if d is nil, is defined, started, stopped, or the like.
func (c *Connect) DomainEventLifecycleRegister(d *Domain, f DomainEventLifecycleCallback) (int, error) {
	return c.registerDomain("Connect.DomainEventLifecycleRegister", lifecycleEvent, d, func(c *Connect, d *Domain, event any) {
		f(c, d, event.(*libvirt.DomainEventLifecycle)) //nolint:forcetypeassert // The kind says so.
	})
}

// DomainEventRebootRegister makes f be called when a domain reboots or is reset.
func (c *Connect) DomainEventRebootRegister(d *Domain, f DomainEventGenericCallback) (int, error) {
	return c.registerDomain("Connect.DomainEventRebootRegister", rebootEvent, d, func(c *Connect, d *Domain, _ any) { f(c, d) })
}

// DomainEventMetadataChangeRegister makes f be called when a domain's metadata, title or description change.
func (c *Connect) DomainEventMetadataChangeRegister(d *Domain, f DomainEventMetadataChangeCallback) (int, error) {
	return c.registerDomain("Connect.DomainEventMetadataChangeRegister", metadataEvent, d, func(c *Connect, d *Domain, event any) {
		f(c, d, event.(*libvirt.DomainEventMetadataChange)) //nolint:forcetypeassert // The kind says so.
	})
}

// DomainEventAgentLifecycleRegister makes f be called when a domain's guest agent connects or leaves.
func (c *Connect) DomainEventAgentLifecycleRegister(d *Domain, f DomainEventAgentLifecycleCallback) (int, error) {
	return c.registerDomain("Connect.DomainEventAgentLifecycleRegister", agentEvent, d, func(c *Connect, d *Domain, event any) {
		f(c, d, event.(*libvirt.DomainEventAgentLifecycle)) //nolint:forcetypeassert // The kind says so.
	})
}

// DomainEventDeregister takes a callback for domains back.
func (c *Connect) DomainEventDeregister(id int) error {
	return c.deregister("Connect.DomainEventDeregister", id)
}

// StoragePoolEventLifecycleRegister makes f be called when a pool, or any if p is nil, is defined, started, stopped, or the like.
func (c *Connect) StoragePoolEventLifecycleRegister(p *StoragePool, f StoragePoolEventLifecycleCallback) (int, error) {
	cb := callback{kind: poolLifecycleEvent, pool: func(c *Connect, p *StoragePool, event any) {
		f(c, p, event.(*libvirt.StoragePoolEventLifecycle)) //nolint:forcetypeassert // The kind says so.
	}}
	if p != nil {
		cb.object = p.uuid
	}

	return c.register("Connect.StoragePoolEventLifecycleRegister", cb)
}

// StoragePoolEventRefreshRegister makes f be called when a pool is refreshed.
func (c *Connect) StoragePoolEventRefreshRegister(p *StoragePool, f StoragePoolEventGenericCallback) (int, error) {
	cb := callback{kind: poolRefreshEvent, pool: func(c *Connect, p *StoragePool, _ any) { f(c, p) }}
	if p != nil {
		cb.object = p.uuid
	}

	return c.register("Connect.StoragePoolEventRefreshRegister", cb)
}

// StoragePoolEventDeregister takes a callback for pools back.
func (c *Connect) StoragePoolEventDeregister(id int) error {
	return c.deregister("Connect.StoragePoolEventDeregister", id)
}

// NetworkEventLifecycleRegister makes f be called when a network, or any if n is nil, is defined, started, stopped, or the like.
func (c *Connect) NetworkEventLifecycleRegister(n *Network, f NetworkEventLifecycleCallback) (int, error) {
	cb := callback{kind: networkLifecycleEvent, network: func(c *Connect, n *Network, event any) {
		f(c, n, event.(*libvirt.NetworkEventLifecycle)) //nolint:forcetypeassert // The kind says so.
	}}
	if n != nil {
		cb.object = n.uuid
	}

	return c.register("Connect.NetworkEventLifecycleRegister", cb)
}

// NetworkEventDeregister takes a callback for networks back.
func (c *Connect) NetworkEventDeregister(id int) error {
	return c.deregister("Connect.NetworkEventDeregister", id)
}

// tellLocked sends an event to all connections that asked for it. run calls one callback with a handle of that connection.
func (h *Hypervisor) tellLocked(kind eventKind, object string, run func(c *Connect, cb *callback)) {
	for c := range h.conns {
		for _, id := range slices.Sorted(maps.Keys(c.callbacks)) {
			cb := c.callbacks[id]
			if cb.kind != kind || cb.object != "" && cb.object != object {
				continue
			}

			c.queue = append(c.queue, func() {
				h.mu.Lock()
				still := c.callbacks[id] == cb
				h.mu.Unlock()

				if still {
					run(c, cb)
				}
			})
			c.wakeLocked()
		}
	}
}

func (h *Hypervisor) domainEventLocked(m *machine, kind eventKind, event any) {
	uuid, name, id := m.uuid, m.name, m.id

	h.tellLocked(kind, uuid, func(c *Connect, cb *callback) {
		d := &Domain{handle: newHandle(c), uuid: uuid, name: name, id: id}
		cb.domain(c, d, event)
		_ = d.Free() // The callback may have freed it.
	})
}

func (h *Hypervisor) lifecycleLocked(m *machine, event libvirt.DomainEventType, detail int) {
	h.domainEventLocked(m, lifecycleEvent, &libvirt.DomainEventLifecycle{Event: event, Detail: detail})
}

func (h *Hypervisor) poolEventLocked(p *pool, kind eventKind, event any) {
	uuid, name := p.uuid, p.name

	h.tellLocked(kind, uuid, func(c *Connect, cb *callback) {
		handle := &StoragePool{handle: newHandle(c), uuid: uuid, name: name}
		cb.pool(c, handle, event)
		_ = handle.Free() // The callback may have freed it.
	})
}

func (h *Hypervisor) networkEventLocked(n *network, event libvirt.NetworkEventLifecycleType) {
	uuid, name := n.uuid, n.name

	h.tellLocked(networkLifecycleEvent, uuid, func(c *Connect, cb *callback) {
		handle := &Network{handle: newHandle(c), uuid: uuid, name: name}
		cb.network(c, handle, &libvirt.NetworkEventLifecycle{Event: event})
		_ = handle.Free() // The callback may have freed it.
	})
}

// listenLocked starts the connection's event loop.
func (c *Connect) listenLocked() {
	if c.listening || c.h.closed {
		return
	}

	c.listening = true
	c.h.tasks.Go(c.listen)
}

func (c *Connect) listen() {
	for {
		c.h.mu.Lock()

		var next func()

		if len(c.queue) > 0 {
			next, c.queue = c.queue[0], c.queue[1:]
		}

		ended := c.refs == 0 || c.broken
		if next == nil && ended {
			c.listening = false
		}

		c.h.mu.Unlock()

		switch {
		case next != nil:
			next()
		case ended:
			return
		default:
			<-c.wake
		}
	}
}

func (c *Connect) wakeLocked() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}
