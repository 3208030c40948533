package provider

import (
	"context"
	"fmt"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Remove takes away what any project has of a request, as far as the rack lets it go now. It waits for nothing. What somebody else has
// attached to the instance, the rack lets go of with the instance, and it stays.
func (d *Driver) Remove(ctx context.Context, ref driver.Ref) (bool, error) {
	d.scratch.act()
	d.use.release(ref)

	all, err := d.whereabouts(ctx, ref.ProviderID)
	if err != nil {
		return false, err
	}

	var failed, busy error

	for _, in := range all {
		err := d.removeFrom(ctx, in, ref)

		switch {
		case err == nil:
		case driver.KindOf(err) == driver.KindPending:
			busy = err
		case failed == nil:
			failed = err
		}
	}

	switch {
	case failed != nil:
		return false, failed
	case busy != nil:
		return false, busy
	}

	d.forget(ref)

	return true, nil
}

// removeFrom returns nil once a project has nothing of a request, and Pending after each change: that it is gone is only said by the
// rack's own lists.
func (d *Driver) removeFrom(ctx context.Context, in project, ref driver.Ref) error {
	i, err := d.instance(ctx, in, ref)
	if err == nil {
		err = d.removeInstance(ctx, i)
	}

	if err != nil && !driver.IsNotFound(err) {
		return err
	}

	disks, err := d.rack.Disks(ctx, in.id)
	if err != nil {
		return err
	}

	left := ""

	for _, disk := range disks {
		if of, ours := machine.Owner(ref.ProviderID, machine.KindDisk, string(disk.Name), disk.Description); ours && of == ref {
			err = d.deleteDisk(ctx, disk)
		} else if mark, ours := machine.ScratchMark(ref.ProviderID, string(disk.Name), disk.Description); ours && mark.Ref() == ref {
			switch {
			case d.scratch.dead(mark, disk.TimeCreated):
				err = d.clearScratch(ctx, in, disk)
			case d.scratch.ending(mark):
				err = driver.Pending(soon, "disk %q of an import is cleared away", disk.Name)
			default:
				// Other requests wait for the image.
				continue
			}
		} else {
			continue
		}

		if err != nil && !driver.IsNotFound(err) {
			return err
		}

		left = fmt.Sprintf("disk %q", disk.Name)
	}

	ips, err := d.rack.FloatingIPs(ctx, in.id)
	if err != nil {
		return err
	}

	for _, ip := range ips {
		of, ours := machine.Owner(ref.ProviderID, machine.KindFloatingIP, string(ip.Name), ip.Description)
		if !ours || of != ref {
			continue
		}

		if err := d.releaseAddress(ctx, ip); err != nil && !driver.IsNotFound(err) {
			return err
		}

		left = fmt.Sprintf("floating IP %q", ip.Name)
	}

	if left != "" {
		return driver.Pending(soon, "%s has just been deleted", left)
	}

	return nil
}

// removeInstance takes the next step that the instance's state allows. It is Pending until there is none.
func (d *Driver) removeInstance(ctx context.Context, i oxide.Instance) error {
	switch i.RunState {
	case oxide.InstanceStateStopped, oxide.InstanceStateFailed:
		if err := d.rack.DeleteInstance(ctx, i); err != nil {
			return err
		}

		return driver.Pending(soon, "instance %q is deleted", i.Name)
	case oxide.InstanceStateStopping, oxide.InstanceStateCreating:
		return driver.Pending(pause, "%s", stateOf(i))
	default:
		stopped, err := d.rack.StopInstance(ctx, i)
		if err != nil {
			return fmt.Errorf("%s: %w", stateOf(i), err)
		}

		return driver.Pending(soon, "%s", stateOf(stopped))
	}
}

// deleteDisk deletes a disk of ours that nothing uses. One that is in use is let go of by the deletion of the instance, in a while.
func (d *Driver) deleteDisk(ctx context.Context, disk oxide.Disk) error {
	switch disk.State.State() {
	case oxide.DiskStateStateDetached, oxide.DiskStateStateFaulted:
		return d.rack.DeleteDisk(ctx, disk)
	case oxide.DiskStateStateDestroyed:
		return driver.NotFound("disk %q is destroyed", disk.Name)
	default:
		return driver.Pending(pause, "disk %q is %s", disk.Name, diskState(disk))
	}
}

func diskState(disk oxide.Disk) string {
	if attached, ok := disk.State.AsAttached(); ok {
		return "attached to instance " + attached.Instance
	}

	return string(disk.State.State())
}

// releaseAddress gives a floating IP of ours back, whoever has it now.
func (d *Driver) releaseAddress(ctx context.Context, ip oxide.FloatingIp) error {
	if ip.InstanceId != "" {
		if err := d.rack.DetachFloatingIP(ctx, ip); err != nil {
			return err
		}
	}

	return d.rack.DeleteFloatingIP(ctx, ip)
}
