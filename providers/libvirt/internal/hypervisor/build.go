package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Builder makes the machine of one request on a host, in the steps that are its methods, in their order. Each may be called again
// after any failure.
type Builder struct {
	h     *Host
	req   driver.Request
	data  machine.ClassData
	names machine.Names
}

// NewBuilder returns what makes the request's machine, which the class data describes.
func (h *Host) NewBuilder(req driver.Request, data machine.ClassData) Builder {
	return Builder{h: h, req: req, data: data, names: machine.NamesOf(req.Ref)}
}

// locked calls f while the removal of the machine, and a second run of its steps, are kept out.
func (b Builder) locked(ctx context.Context, f func(context.Context) error) error {
	release, err := b.h.lockMachine(ctx, b.req.Ref)
	if err != nil {
		return err
	}

	defer release()

	return visible(f(ctx))
}

// visible turns NotFound into a transient error: in a phase it says that a part went missing, not that there is no machine.
func visible(err error) error {
	if driver.IsNotFound(err) {
		return errors.New(err.Error())
	}

	return err
}

// longestDeviceName is what LVM takes for the name of a volume; others take more.
const longestDeviceName = 127

// Objects are the names of what is made for the machine, by their parts. A name that its pool cannot have is a Terminal error.
func (b Builder) Objects(ctx context.Context) (map[string]string, error) {
	pools, err := b.pools(ctx)
	if err != nil {
		return nil, visible(err)
	}

	names := map[string]string{"pool": b.data.StoragePool, "domain": b.names.Domain, "seed-volume": b.names.Seed}

	for i, d := range b.disks(pools) {
		if most := longestDeviceName; !d.pool.overlays && len(d.volume.Name) > most {
			return nil, driver.Terminalf("request id %q is too long for storage pool %q, where names of volumes have at most %d characters: want at most %d in the id",
				b.req.RequestID, d.pool.name, most, len(b.req.RequestID)-len(d.volume.Name)+most)
		}

		if i == 0 {
			names["root-volume"] = d.volume.Name
		} else {
			names[fmt.Sprintf("disk-%d-volume", i)] = d.volume.Name
		}
	}

	return names, nil
}

// EnsureImage puts the boot image into the pool of the system disk.
func (b Builder) EnsureImage(ctx context.Context, t driver.Task) error {
	p, err := b.h.pool(ctx, b.data.StoragePool)
	if err != nil {
		return visible(err)
	}

	_, err = b.h.ensureImage(ctx, p, t)

	return visible(err)
}

// StartDomain makes the machine run.
func (b Builder) StartDomain(ctx context.Context, _ driver.Task) error {
	return b.locked(ctx, func(ctx context.Context) error {
		own, err := b.h.domain(ctx, b.req.Ref)
		if err != nil {
			return err
		}

		return b.h.start(ctx, own)
	})
}

func (b Builder) mark() machine.Mark {
	return machine.NewMark(b.req, b.data, b.h.config.Version, time.Now())
}
