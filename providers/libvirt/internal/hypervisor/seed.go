package hypervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/nocloud"
)

// CreateSeed makes the seed anew until the machine runs: what a crash has left of it may be only a part, and Omni may have
// changed the join configuration.
func (b Builder) CreateSeed(ctx context.Context, t driver.Task) error {
	return b.locked(ctx, func(ctx context.Context) error { return b.createSeed(ctx, t) })
}

func (b Builder) createSeed(ctx context.Context, t driver.Task) error {
	name := b.data.StoragePool

	// The domain is the claim on the seed's name.
	own, err := b.h.domain(ctx, b.req.Ref)

	switch {
	case err != nil:
		return err
	case own.active():
		return nil
	case !own.claims(name):
		return fmt.Errorf("domain %q does not say that it has volumes in storage pool %q", own.name, name)
	}

	p, err := b.h.pool(ctx, name)
	if err != nil {
		return err
	}

	seed, err := nocloud.New(nocloud.Config{Hostname: b.req.Identity.Hostname, UserData: t.Join.UserData})
	if err != nil {
		return err
	}

	content, err := machine.MarkSeed(seed.ISO(), b.mark())
	if err != nil {
		return err
	}

	release, err := b.h.lockPool(ctx, name)
	if err != nil {
		return err
	}

	defer release()

	if err := b.h.deleteSeed(ctx, p, b.names.Seed); err != nil {
		return err
	}

	v := machine.NewVolume{Name: b.names.Seed, Format: "raw", Capacity: emptyVolume}
	if !p.overlays {
		v.Capacity, v.Whole = uint64((len(content)+smallVolume-1)/smallVolume*smallVolume), p.whole
	}

	if err := b.h.createVolume(ctx, name, v); err != nil {
		return err
	}

	err = b.h.upload(ctx, target{pool: name, name: b.names.Seed, fixed: !p.overlays}, bytes.NewReader(content), func(uint64) {})
	if errors.Is(err, errKeepsNoBytes) {
		return nil
	}

	return err
}
