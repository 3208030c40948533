package oxide

import (
	"net/http"
	"time"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

// followLocked calls next once the time has passed, unless the instance has changed its state in the meantime.
func (r *Rack) followLocked(i *instance, d time.Duration, next func()) {
	epoch := i.epoch

	r.afterLocked(d, func() {
		if i.epoch == epoch {
			next()
		}
	})
}

func (c *call) startInstance() (int, any, error) {
	i, err := c.instanceOf(true)
	if err != nil {
		return 0, nil, err
	}

	switch i.state {
	case api.InstanceStateStarting, api.InstanceStateRunning, api.InstanceStateRebooting, api.InstanceStateMigrating:
		// It is started already.
	case api.InstanceStateStopped, api.InstanceStateFailed:
		if err := c.startLocked(i); err != nil {
			return 0, nil, err
		}
	default:
		return 0, nil, conflict("instance is in state %s but must be stopped to be started", i.state)
	}

	return http.StatusAccepted, c.viewInstanceLocked(i), nil
}

// startLocked starts a stopped instance.
func (r *Rack) startLocked(i *instance) error {
	for _, d := range r.disksOf(i.id) {
		if d.state == api.DiskStateStateFaulted {
			return internal()
		}
	}

	if err := r.placeLocked(i); err != nil {
		return err
	}

	i.enter(api.InstanceStateStarting)
	r.followLocked(i, r.opts.Durations["instance_start"], func() { r.runLocked(i) })

	return nil
}

func (r *Rack) runLocked(i *instance) {
	i.enter(api.InstanceStateRunning)
	r.bootLocked(i)
}

func (c *call) stopInstance() (int, any, error) {
	i, err := c.instanceOf(true)
	if err != nil {
		return 0, nil, err
	}

	switch i.state {
	case api.InstanceStateStopped, api.InstanceStateStopping:
		// It is done, or under way.
	case api.InstanceStateFailed:
		i.enter(api.InstanceStateStopped)
	default:
		if err := i.changeable(); err != nil {
			return 0, nil, err
		}

		c.stopLocked(i)
	}

	return http.StatusAccepted, c.viewInstanceLocked(i), nil
}

// stopLocked stops an instance that is on.
func (r *Rack) stopLocked(i *instance) {
	i.guest.stop()
	i.enter(api.InstanceStateStopping)
	r.followLocked(i, r.opts.Durations["instance_stop"], func() { i.enter(api.InstanceStateStopped) })
}

func (c *call) rebootInstance() (int, any, error) {
	i, err := c.instanceOf(true)
	if err != nil {
		return 0, nil, err
	}

	if err := i.changeable(); err != nil {
		return 0, nil, err
	}

	switch i.state {
	case api.InstanceStateStopped:
		return 0, nil, invalidRequest("cannot reboot an instance in state %s with no VMM", i.state)
	case api.InstanceStateFailed:
		return 0, nil, invalidRequest("instance state cannot be changed from %s", i.state)
	case api.InstanceStateRunning, api.InstanceStateMigrating:
		c.rebootLocked(i)
	default:
		// The virtual machine hears of it, and has other things to do.
	}

	return http.StatusAccepted, c.viewInstanceLocked(i), nil
}

func (r *Rack) rebootLocked(i *instance) {
	i.guest.stop()
	i.enter(api.InstanceStateRebooting)
	r.followLocked(i, r.opts.Durations["instance_reboot"], func() { r.runLocked(i) })
}

// changeable says why the state cannot be changed.
func (i *instance) changeable() error {
	switch i.state {
	case api.InstanceStateCreating:
		return invalidRequest("cannot change instance state while it is still being created")
	case api.InstanceStateRepairing:
		return invalidRequest("instance state cannot be changed from state %q", i.state)
	default:
		return nil
	}
}

// failLocked is an instance whose virtual machine is lost. It is restarted by itself if its policy allows that, not more often than
// the cooldown does.
func (r *Rack) failLocked(i *instance) {
	i.guest.stop()
	i.enter(api.InstanceStateFailed)

	if i.policy == api.InstanceAutoRestartPolicyNever {
		return
	}

	pause := time.Duration(0)
	if !i.restarted.IsZero() {
		pause = max(0, r.opts.Cooldown-time.Since(i.restarted))
	}

	r.followLocked(i, max(pause, restartDelay), func() {
		i.restarted = time.Now().UTC()

		if err := r.startLocked(i); err != nil {
			r.ledger.Note("instance %s is not restarted: %s", i.id, err)
		}
	})
}

// restartDelay is how long the rack takes to notice that it may restart an instance.
const restartDelay = time.Second
