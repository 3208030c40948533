package provider

import (
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"
)

// boot is when an instance was started last, as far as this process can tell.
type boot struct {
	stamp string
	// at is since when the instance was in the state in which it was seen last, moving says that it was one from which it comes back as it was.
	at     time.Time
	moving bool
}

// bootOf tells an instance's boots apart. A rack does not count them, but says since when an instance is in its state, which changes with each
// boot. It also changes when the rack moves or repairs the instance, which then comes back without a boot.
func (d *Driver) bootOf(i oxide.Instance) string {
	if i.TimeRunStateUpdated == nil {
		return ""
	}

	now := boot{stamp: i.TimeRunStateUpdated.UTC().Format(time.RFC3339Nano), at: *i.TimeRunStateUpdated}
	now.moving = i.RunState == oxide.InstanceStateMigrating || i.RunState == oxide.InstanceStateRepairing

	d.mu.Lock()
	defer d.mu.Unlock()

	last, seen := d.boots[i.Id]
	same := last.at.Equal(now.at)
	back := last.moving && i.RunState == oxide.InstanceStateRunning

	if seen && (same || back || now.moving) {
		now.stamp = last.stamp
	}

	d.boots[i.Id] = now

	return now.stamp
}

// forgetBoots drops what is known of instances that are not there any more.
func (d *Driver) forgetBoots(there map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()

	for id := range d.boots {
		if !there[id] {
			delete(d.boots, id)
		}
	}
}
