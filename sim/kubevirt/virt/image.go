package virt

import (
	"cmp"
	"context"
	"slices"

	kubevirt "kubevirt.io/api/core/v1"
)

// software is what runs in a guest; nil is nothing. A firmware that finds no image stays at its prompt until power is cut.
func (c *Controller) software(g Guest) func(context.Context, Guest) {
	if g.Image != "" {
		return c.opts.Boot
	}

	return func(ctx context.Context, g Guest) {
		if c.opts.Unbootable != nil {
			c.opts.Unbootable(g)
		}

		<-ctx.Done()
	}
}

// image returns the image that the firmware of a machine finds: on the first disk that has one, of those with a boot order, or of all if
// none has an order.
func (c *Controller) image(vmi *kubevirt.VirtualMachineInstance) string {
	disks := slices.Clone(vmi.Spec.Domain.Devices.Disks)

	if slices.ContainsFunc(disks, ordered) {
		disks = slices.DeleteFunc(disks, func(d kubevirt.Disk) bool { return !ordered(d) })
		slices.SortStableFunc(disks, func(a, b kubevirt.Disk) int { return cmp.Compare(*a.BootOrder, *b.BootOrder) })
	}

	for _, disk := range disks {
		for _, v := range vmi.Spec.Volumes {
			if v.Name != disk.Name {
				continue
			}

			if image := c.imageOn(vmi.Namespace, v); image != "" {
				return image
			}
		}
	}

	return ""
}

func ordered(d kubevirt.Disk) bool { return d.BootOrder != nil }

func (c *Controller) imageOn(namespace string, v kubevirt.Volume) string {
	switch {
	case v.ContainerDisk != nil:
		return v.ContainerDisk.Image
	case claimOf(v) != "" && c.opts.Content != nil:
		return c.opts.Content(namespace, claimOf(v))
	default:
		return ""
	}
}
