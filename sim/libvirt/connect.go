package libvirt

import (
	"context"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Client is what one process has of the hypervisor. All its connections are one session in the books, which ends for good when
// the process is made to die.
type Client struct {
	h       *Hypervisor
	session *ledger.Session
}

// Client returns the hypervisor as a process of its own sees it.
func (h *Hypervisor) Client() *Client { return &Client{h: h, session: h.ledger.Session()} }

// Connect opens a connection as a process of its own.
func (h *Hypervisor) Connect() (*Connect, error) { return h.Client().Connect() }

// Connect is a connection to the daemon. Handles and callbacks hold it open, as in libvirt.
type Connect struct {
	h      *Hypervisor
	client *Client
	ctx    context.Context // It ends when the connection breaks.
	cancel context.CancelFunc

	// The rest is guarded by h.mu.
	refs      int
	broken    bool
	keepalive time.Duration // How long a silent daemon is waited for; zero is for ever.
	onClose   CloseCallback
	callbacks map[int]*callback
	lastID    int
	queue     []func()
	wake      chan struct{}
	listening bool
}

// CloseCallback is told that a connection broke.
type CloseCallback func(conn *Connect, reason libvirt.ConnectCloseReason)

// Connect opens a connection.
func (c *Client) Connect() (*Connect, error) {
	ctx, cancel := context.WithCancel(c.h.ctx)
	conn := &Connect{
		h: c.h, client: c, ctx: ctx, cancel: cancel, refs: 1,
		callbacks: map[int]*callback{}, wake: make(chan struct{}, 1),
	}

	_, err := call(conn, request{op: "Connect", object: c.h.opts.Hostname}, func() (struct{}, error) {
		c.h.conns[conn] = struct{}{}

		return struct{}{}, nil
	})
	if err == nil {
		return conn, nil
	}

	cancel()

	if code(err) == libvirt.ERR_AUTH_FAILED {
		return nil, err
	}

	return nil, refused()
}

// Close gives up a reference to the connection. It returns 1 if there are more, and 0 if that was the last one, which closes it.
func (c *Connect) Close() (int, error) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()

	if c.refs == 0 {
		return -1, invalidConnection("Close")
	}

	c.unrefLocked()

	return min(c.refs, 1), nil
}

// Ref takes a reference.
func (c *Connect) Ref() error {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()

	if c.refs == 0 {
		return invalidConnection("Ref")
	}

	c.refs++

	return nil
}

func (c *Connect) unrefLocked() {
	if c.refs--; c.refs > 0 {
		return
	}

	delete(c.h.conns, c)
	c.onClose, c.callbacks = nil, nil
	c.cancel()
	c.wakeLocked()
}

// breakOffLocked ends the connection from the daemon's side.
func (c *Connect) breakOffLocked(reason libvirt.ConnectCloseReason) {
	if c.broken {
		return
	}

	c.broken = true
	delete(c.h.conns, c)
	c.cancel()

	if f := c.onClose; f != nil {
		c.queue = append(c.queue, func() { f(c, reason) })
	}

	c.wakeLocked()
}

// RegisterCloseCallback makes f be called when the connection breaks, in the place of another one.
func (c *Connect) RegisterCloseCallback(f CloseCallback) error {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()

	if c.refs == 0 {
		return invalidConnection("RegisterCloseCallback")
	}

	c.onClose = f
	c.listenLocked()

	return nil
}

// UnregisterCloseCallback takes it back.
func (c *Connect) UnregisterCloseCallback() error {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()

	if c.refs == 0 {
		return invalidConnection("UnregisterCloseCallback")
	}

	c.onClose = nil

	return nil
}

// SetKeepAlive makes the connection break when the daemon has been silent for interval seconds, and for another interval after
// each of count probes. An interval of zero or less turns that off.
func (c *Connect) SetKeepAlive(interval int, count uint) error {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()

	if c.refs == 0 {
		return invalidConnection("SetKeepAlive")
	}

	c.keepalive = time.Duration(interval) * time.Second * time.Duration(count+1)

	return nil
}

// IsAlive says, without asking the daemon, whether the connection stands.
func (c *Connect) IsAlive() (bool, error) {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()

	if c.refs == 0 {
		return false, invalidConnection("IsAlive")
	}

	return !c.broken, nil
}

// request is a call to the daemon.
type request struct {
	// op is the method's name ("Domain.Create"), object the name of what it is about, empty for the host itself.
	op, object string
	// body is a document that goes along.
	body string
}

// call makes a call to the daemon: its record, its faults, and effect with the lock held.
func call[T any](c *Connect, r request, effect func() (T, error)) (T, error) {
	var got, zero T

	if err := c.usable(r.op); err != nil {
		return zero, err
	}

	err := c.client.session.CallContext(c.ctx, r.op, r.object, func() error {
		if err := c.reach(); err != nil {
			return err
		}

		if err := sleep(c.ctx, c.h.before(r.op)); err != nil {
			return err
		}

		c.h.mu.Lock()
		defer c.h.mu.Unlock()

		if c.broken || c.h.down || c.h.closed {
			return ledger.ErrDisconnected
		}

		var err error

		got, err = effect()

		if c.broken {
			return ledger.ErrDisconnected
		}

		return err
	})
	if err != nil {
		return zero, c.worded(r, err)
	}

	return got, nil
}

func (c *Connect) usable(op string) error {
	c.h.mu.Lock()
	defer c.h.mu.Unlock()

	switch {
	case c.refs == 0:
		return invalidConnection(op)
	case c.broken:
		return socketClosed()
	default:
		return nil
	}
}

// reach waits until the daemon takes the call.
func (c *Connect) reach() error {
	if err := sleep(c.ctx, c.h.opts.Latency); err != nil {
		return err
	}

	for {
		c.h.mu.Lock()
		frozen, patience := c.h.frozen, c.keepalive
		c.h.mu.Unlock()

		if frozen == nil {
			return nil
		}

		if err := c.await(frozen, patience); err != nil {
			return err
		}
	}
}

// await waits for a daemon that is silent, but not longer than keepalive has it.
func (c *Connect) await(frozen chan struct{}, patience time.Duration) error {
	var silent <-chan time.Time

	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()

		silent = timer.C
	}

	select {
	case <-frozen:
		return nil
	case <-c.ctx.Done():
		return c.ctx.Err()
	case <-silent:
		c.h.mu.Lock()
		defer c.h.mu.Unlock()

		c.breakOffLocked(libvirt.CONNECT_CLOSE_REASON_KEEPALIVE)

		return failure(libvirt.ERR_INTERNAL_ERROR, libvirt.FROM_RPC, "internal error: connection closed due to keepalive timeout")
	}
}

// worded puts what happened to a call into libvirt's words. A reply that does not come is a connection that breaks.
func (c *Connect) worded(r request, err error) error {
	if _, ok := err.(libvirt.Error); ok { //nolint:errorlint // It is never wrapped.
		return err
	}

	if fault, ok := err.(*ledger.FaultError); ok && fault.Kind != ledger.Unavailable { //nolint:errorlint // It is never wrapped.
		return faultInWords(fault, r)
	}

	c.h.mu.Lock()
	defer c.h.mu.Unlock()

	c.breakOffLocked(libvirt.CONNECT_CLOSE_REASON_EOF)

	return endOfFile()
}

// none is the result of calls without one.
type none = struct{}

// do is call without a result.
func do(c *Connect, r request, effect func() error) error {
	_, err := call(c, r, func() (none, error) { return none{}, effect() })

	return err
}
