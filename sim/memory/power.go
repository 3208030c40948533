package memory

import "context"

// StartVM switches a stopped machine on. It answers before the machine runs.
func (c *Client) StartVM(ctx context.Context, id string) error {
	return c.change(ctx, OpStartVM, id, Stopped, Starting, c.cloud.bootLocked)
}

// StopVM switches a running machine off. It answers before the machine is stopped.
func (c *Client) StopVM(ctx context.Context, id string) error {
	return c.change(ctx, OpStopVM, id, Running, Stopping, func(m *machine) {
		m.guest.stop()
		c.cloud.enterLocked(m, Stopped)
	})
}

// RebootVM restarts a running machine. It answers before the machine runs again.
func (c *Client) RebootVM(ctx context.Context, id string) error {
	return c.change(ctx, OpRebootVM, id, Running, Rebooting, func(m *machine) {
		m.guest.stop()
		c.cloud.bootLocked(m)
	})
}

// change takes a machine from one state into another, and calls done with the lock held once the operation's time has passed.
// A machine in any other state is a conflict.
func (c *Client) change(ctx context.Context, op Op, id string, from, via State, done func(*machine)) error {
	_, err := call(ctx, c, op, id, id, func() (struct{}, error) {
		m, ok := c.cloud.vms[id]

		switch {
		case !ok:
			return struct{}{}, notFound("machine", id)
		case m.State != from:
			return struct{}{}, conflict("machine %q is %s, not %s", id, m.State, from)
		}

		c.cloud.enterLocked(m, via)
		c.cloud.afterLocked(op, func() {
			// Someone may have taken the machine away in the meantime.
			if c.cloud.vms[id] == m && m.State == via {
				done(m)
			}
		})

		return struct{}{}, nil
	})

	return err
}

func (c *Cloud) enterLocked(m *machine, s State) {
	if c.vms[m.ID] != m {
		return
	}

	m.State = s
	c.publishLocked(m, false)
}

// guest is one run of Options.Boot.
type guest struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// stop tells the guest to end. It does not wait.
func (g *guest) stop() {
	if g != nil {
		g.cancel()
	}
}

// bootLocked switches the machine on. What ran in it before has ended by the time the new guest starts.
func (c *Cloud) bootLocked(m *machine) {
	m.Boots++
	c.enterLocked(m, Running)

	if c.opts.Boot == nil || c.closed {
		return
	}

	ctx, cancel := context.WithCancel(c.ctx)
	before, now := m.guest, &guest{cancel: cancel, done: make(chan struct{})}
	m.guest = now
	vm := m.clone()

	c.tasks.Go(func() {
		defer close(now.done)
		defer cancel()

		if before != nil {
			<-before.done
		}

		if ctx.Err() == nil {
			c.opts.Boot(ctx, vm)
		}

		if ctx.Err() != nil {
			return
		}

		c.mu.Lock()
		defer c.mu.Unlock()

		if m.guest == now && m.State == Running {
			c.enterLocked(m, Stopped)
		}
	})
}
