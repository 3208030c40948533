package memory

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// machine is a VM with what runs in it.
type machine struct {
	VM
	guest *guest
	// hidden is how many lists leave the machine out.
	hidden int
}

// CreateVM makes a machine, switched off. It answers before the machine is stopped, that is, ready to be started.
func (c *Client) CreateVM(ctx context.Context, spec VMSpec) (VM, error) {
	return call(ctx, c, OpCreateVM, spec.Name, spec, func() (VM, error) {
		if spec.Name == "" || spec.Cores <= 0 || spec.MemoryMiB <= 0 || len(spec.VolumeIDs) == 0 {
			return VM{}, invalid("a machine needs a name, a core, memory and a volume to boot from")
		}

		for _, id := range spec.VolumeIDs {
			volume, ok := c.cloud.volumes[id]

			switch {
			case !ok:
				return VM{}, notFound("volume", id)
			case volume.State != Available:
				return VM{}, conflict("volume %q is %s", id, volume.State)
			case volume.VMID != "":
				return VM{}, conflict("volume %q is attached to machine %q", id, volume.VMID)
			}
		}

		if c.cloud.opts.MaxVMs > 0 && len(c.cloud.vms) >= c.cloud.opts.MaxVMs {
			return VM{}, Full()
		}

		m := c.cloud.createVMLocked(spec)

		return m.public(), nil
	})
}

func (c *Cloud) createVMLocked(spec VMSpec) *machine {
	m := &machine{VM: VM{
		ID: c.idLocked("vm"), Name: spec.Name, Cores: spec.Cores, MemoryMiB: spec.MemoryMiB,
		VolumeIDs: slices.Clone(spec.VolumeIDs), UUID: spec.UUID, UserData: spec.UserData, Tags: maps.Clone(spec.Tags),
		State: Creating, CreatedAt: time.Now(),
	}}

	if m.UUID == "" {
		m.UUID = uuid.NewString()
	}

	for _, id := range m.VolumeIDs {
		c.volumes[id].VMID = m.ID
	}

	if image, ok := c.images[c.volumes[m.VolumeIDs[0]].ImageID]; ok {
		m.ImageURL = image.URL
	}

	c.vms[m.ID] = m
	c.ledger.Made(ledger.Object{Kind: "vm", ID: m.ID, Name: m.Name})
	c.publishLocked(m, false)
	c.afterLocked(OpCreateVM, func() { c.enterLocked(m, Stopped) })

	return m
}

// GetVM returns the machine of that id, without its user data.
func (c *Client) GetVM(ctx context.Context, id string) (VM, error) {
	return call(ctx, c, OpGetVM, id, id, func() (VM, error) {
		m, ok := c.cloud.vms[id]
		if !ok {
			return VM{}, notFound("machine", id)
		}

		return m.public(), nil
	})
}

// ListVMs returns the machines that have all of these tags, the oldest first, without their user data.
func (c *Client) ListVMs(ctx context.Context, tags map[string]string) ([]VM, error) {
	return call(ctx, c, OpListVMs, "", tags, func() ([]VM, error) {
		var out []VM

		for _, m := range sorted(c.cloud.vms, func(m *machine) bool { return tagged(m.Tags, tags) }) {
			if m.hidden > 0 {
				m.hidden--

				continue
			}

			out = append(out, m.public())
		}

		return out, nil
	})
}

// DeleteVM deletes a stopped machine and frees its volumes. It answers before the machine is gone.
func (c *Client) DeleteVM(ctx context.Context, id string) error {
	return c.change(ctx, OpDeleteVM, id, Stopped, Deleting, func(m *machine) { c.cloud.dropLocked(m) })
}

// dropLocked takes the machine away, whatever it does.
func (c *Cloud) dropLocked(m *machine) {
	m.guest.stop()
	delete(c.vms, m.ID)

	for _, id := range m.VolumeIDs {
		if volume, ok := c.volumes[id]; ok && volume.VMID == m.ID {
			volume.VMID = ""
		}
	}

	c.ledger.Gone("vm", m.ID)
	c.publishLocked(m, true)
}
