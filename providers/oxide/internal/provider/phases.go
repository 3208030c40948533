package provider

import (
	"context"
	"fmt"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/rack"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// pause is how long the rack is left alone while it works on a machine.
const pause = 3 * time.Second

// soon is the pause before something is looked at that has just been changed.
const soon = time.Second

// ensureImage has the Talos image ready from which the boot disk is made. What can be refused is refused before that.
func (m *maker) ensureImage(ctx context.Context, t driver.Task) error {
	// The machine has its disk.
	if m.instance != nil {
		return nil
	}

	if err := machine.CheckUserData(t.Join.UserData); err != nil {
		return driver.Terminal(err)
	}

	image, err := m.bootImage(ctx, t)
	if err != nil {
		return err
	}

	if err := m.data.CheckImage(image.size); err != nil {
		return driver.Terminal(err)
	}

	m.image = image

	return nil
}

// reserveAddresses makes the floating IPs that are the machine's own.
func (m *maker) reserveAddresses(ctx context.Context, _ driver.Task) error {
	if m.instance != nil {
		return nil
	}

	for _, i := range m.data.MadeFloatingIPs() {
		body, err := m.data.FloatingIP(m.ref, m.config.Version, i)
		if err != nil {
			return driver.Terminal(err)
		}

		_, err = m.rack.CreateFloatingIP(ctx, m.project.id, body)
		if rack.Exists(err) {
			err = m.checkFloatingIP(ctx, string(body.Name))
		}

		if err != nil {
			return rack.Terminal(err)
		}
	}

	return nil
}

func (m *maker) checkFloatingIP(ctx context.Context, name string) error {
	found, err := m.rack.FloatingIP(ctx, m.project.id, name)
	if err != nil {
		return err
	}

	if ref, ours := machine.Owner(m.ref.ProviderID, machine.KindFloatingIP, name, found.Description); !ours || ref != m.ref {
		return m.foreign("floating IP", name)
	}

	return nil
}

// createInstance makes the machine in one call, with all that it has, and starts it. It is only done once Plan has seen the instance: the
// machine's configuration has its id.
func (m *maker) createInstance(ctx context.Context, t driver.Task) error {
	if m.instance != nil {
		m.use.release(m.ref)

		return nil
	}

	body, err := m.data.Instance(m.ref, m.config.Version, m.image.id, t.Join.UserData)
	if err != nil {
		return driver.Terminal(err)
	}

	made, err := m.rack.CreateInstance(ctx, m.project.id, body)
	if rack.Exists(err) {
		return m.clearWay(ctx)
	}

	if err != nil {
		return rack.Terminal(err)
	}

	m.saw(m.ref, m.project.id)

	return driver.Pending(soon, "instance %q is %s", made.Name, made.RunState)
}

// clearWay finds out which object has a name that the machine needs: the instance, which an earlier try has made, or disks of one that is
// gone, which go too. What is somebody else's stays.
func (m *maker) clearWay(ctx context.Context) error {
	found, err := m.rack.Instance(ctx, m.project.id, m.names.Instance)

	switch {
	case err == nil && m.owns(found, m.ref):
		return driver.Pending(soon, "instance %q is %s", found.Name, found.RunState)
	case err == nil:
		return m.foreign("instance", m.names.Instance)
	case !driver.IsNotFound(err):
		return err
	}

	names := []string{m.names.Boot}
	for i := range m.data.Disks {
		names = append(names, m.names.Disk(i))
	}

	for _, name := range names {
		disk, err := m.rack.DiskNamed(ctx, m.project.id, name)

		switch {
		case driver.IsNotFound(err):
			continue
		case err != nil:
			return err
		}

		if ref, ours := machine.Owner(m.ref.ProviderID, machine.KindDisk, name, disk.Description); !ours || ref != m.ref {
			return m.foreign("disk", name)
		}

		if err := m.deleteDisk(ctx, disk); err != nil {
			return err
		}
	}

	return driver.Pending(soon, "disks that an earlier machine of %q has left are gone", m.ref.RequestID)
}

// startInstance waits until the machine runs, and starts one that does not.
func (m *maker) startInstance(ctx context.Context, _ driver.Task) error {
	if m.instance == nil {
		return fmt.Errorf("instance %q has not been seen yet", m.names.Instance)
	}

	i := *m.instance

	switch i.RunState {
	case oxide.InstanceStateRunning, oxide.InstanceStateRebooting, oxide.InstanceStateMigrating:
		return nil
	case oxide.InstanceStateStopped:
		if _, err := m.rack.StartInstance(ctx, i); err != nil {
			return err
		}

		return driver.Pending(soon, "instance %q is starting", i.Name)
	case oxide.InstanceStateFailed:
		// What the rack does not start again by itself is stopped before it can be started.
		if _, err := m.rack.StopInstance(ctx, i); err != nil {
			return err
		}

		return fmt.Errorf("instance %q has failed; it is started again", i.Name)
	default:
		return driver.Pending(pause, "%s", stateOf(i))
	}
}

// stateOf says in what state an instance is, and for how long: what hangs shows.
func stateOf(i oxide.Instance) string {
	text := fmt.Sprintf("instance %q is %s", i.Name, i.RunState)

	if at := i.TimeRunStateUpdated; at != nil {
		if since := time.Since(*at).Round(time.Second); since >= time.Minute {
			text += " for " + since.String()
		}
	}

	return text
}

// foreign is the error for an object that has one of our names but was made by somebody else.
func (m *maker) foreign(kind, name string) error {
	return fmt.Errorf("%s %q in project %q is in the way: it was not made by this provider for this request, which leaves it alone; rename or delete it",
		kind, name, m.project.name)
}
