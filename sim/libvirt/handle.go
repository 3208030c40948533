package libvirt

import "libvirt.org/go/libvirt"

// handle is a reference to something at the hypervisor, counted as libvirt does. The thing itself may be long gone.
type handle struct {
	conn *Connect
	refs int // It is guarded by h.mu.
}

// newHandle takes a reference to the connection, too. The zero reference is one that nobody waits for: see newHandleLocked.
func newHandle(c *Connect) handle {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()

	return newHandleLocked(c)
}

func newHandleLocked(c *Connect) handle {
	c.refs++

	return handle{conn: c, refs: 1}
}

func (r *handle) ref(invalid libvirt.ErrorNumber, kind string) error {
	r.conn.h.mu.Lock()
	defer r.conn.h.mu.Unlock()

	if r.refs == 0 {
		return invalidHandle(invalid, kind, "Ref")
	}

	r.refs++

	return nil
}

func (r *handle) free(invalid libvirt.ErrorNumber, kind string) error {
	r.conn.h.mu.Lock()
	defer r.conn.h.mu.Unlock()

	if r.refs == 0 {
		return invalidHandle(invalid, kind, "Free")
	}

	if r.refs--; r.refs == 0 {
		r.conn.unrefLocked()
	}

	return nil
}

// valid says that the handle was not freed.
func (r *handle) valid(invalid libvirt.ErrorNumber, kind, method string) error {
	r.conn.h.mu.Lock()
	defer r.conn.h.mu.Unlock()

	if r.refs == 0 {
		return invalidHandle(invalid, kind, method)
	}

	return nil
}

// invalidHandle is the answer to the use of a handle that was freed; libvirt itself says so if it does not crash.
func invalidHandle(invalid libvirt.ErrorNumber, kind, method string) error {
	words := map[libvirt.ErrorNumber]string{
		libvirt.ERR_INVALID_DOMAIN:            "domain",
		libvirt.ERR_INVALID_STORAGE_POOL:      "storage pool",
		libvirt.ERR_INVALID_STORAGE_VOL:       "storage volume",
		libvirt.ERR_INVALID_NETWORK:           "network",
		libvirt.ERR_INVALID_NODE_DEVICE:       "node device",
		libvirt.ERR_INVALID_STREAM:            "stream",
		libvirt.ERR_INVALID_DOMAIN_SNAPSHOT:   "domain snapshot",
		libvirt.ERR_INVALID_DOMAIN_CHECKPOINT: "domain checkpoint",
	}

	return failure(invalid, libvirt.FROM_NONE, "invalid %s pointer in vir%s%s", words[invalid], kind, method)
}
