package virt

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"
)

var errNoDomain = errors.New("domain not found")

// Boots returns how often the guest of a machine was started or restarted, by the UID of the machine.
func (c *Controller) Boots(machine string) int {
	c.mu.Lock()
	defer c.mu.Unlock()

	if of := c.lasting[types.UID(machine)]; of != nil {
		return of.boots
	}

	return 0
}

// pause stops the processors of an instance, or lets them go on.
func (c *Controller) pause(uid types.UID, paused bool) error {
	d := c.domain(uid)
	if d == nil {
		return errNoDomain
	}

	if paused {
		d.paused.Store(pausedByUser)
	} else {
		c.resume(d)
	}

	c.instances.Add(d.key)

	return nil
}

// reset restarts an instance, at once or once its guest has shut down.
func (c *Controller) reset(uid types.UID) error {
	d := c.domain(uid)
	if d == nil {
		return errNoDomain
	}

	c.restart(d, d.run.Load())

	return nil
}

// PowerOff lets the guest of a machine shut down by itself, as somebody inside would.
func (c *Controller) PowerOff(namespace, name string) error {
	vmi := c.vmis.Get(namespace, name)
	if vmi == nil {
		return errNoDomain
	}

	d := c.domain(vmi.UID)
	if d == nil {
		return errNoDomain
	}

	c.shutDown(d, false)

	return nil
}

// Power calls start or stop of a machine, as virtctl does.
func (c *Controller) Power(ctx context.Context, namespace, name string, on bool) error {
	call := c.apiStop
	if on {
		call = c.apiStart
	}

	_, err := call(ctx, namespace, name, nil)

	return err
}
