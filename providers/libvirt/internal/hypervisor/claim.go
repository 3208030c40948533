package hypervisor

import (
	"context"
	"slices"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
)

// claim makes the domain, nil for none, one that claims the names of the machine's volumes, and returns it with the volumes that are
// there, by pool. Volumes of the machine's names that are not ours are an error.
func (b Builder) claim(ctx context.Context, own *domain) (*domain, map[string][]string, error) {
	for _, pool := range b.data.Pools() {
		if err := b.h.lookAgain(ctx, pool); err != nil {
			return nil, nil, err
		}
	}

	all, err := b.h.volumesOf(ctx, b.req.Ref)
	if err != nil {
		return nil, nil, err
	}

	present := map[string][]string{}

	for _, pool := range b.data.Pools() {
		if names := all[pool]; len(names) > 0 {
			present[pool] = names
		}
	}

	proof, err := b.h.prove(ctx, b.req.Ref, all, own)
	if err != nil {
		return nil, nil, err
	}

	for _, pool := range b.data.Pools() {
		if names := present[pool]; len(names) > 0 && !proof.holds(pool) {
			return nil, nil, foreignVolume(pool, names[0])
		}
	}

	if own == nil {
		// What is there without a domain has been a machine before: it is not made anew.
		err = b.defineClaim(ctx, len(present) == 0)
	} else if missing := slices.DeleteFunc(b.data.Pools(), own.claims); len(missing) > 0 {
		m := own.mark
		m.DiskPools = append(slices.Clone(m.DiskPools), missing...)
		err = b.h.setMark(ctx, "claim more storage pools for", m)
	}

	if err != nil {
		return nil, nil, err
	}

	own, err = b.h.domain(ctx, b.req.Ref)

	return own, present, err
}

// lookAgain makes libvirt look at what a pool really holds before names there are taken for free.
func (h *Host) lookAgain(ctx context.Context, pool string) error {
	release, err := h.lockPool(ctx, pool)
	if err != nil {
		return err
	}

	defer release()

	return h.refresh(ctx, pool)
}

func (b Builder) defineClaim(ctx context.Context, making bool) error {
	can, err := b.h.capabilities(ctx, b.req, b.data)
	if err != nil {
		return err
	}

	m := b.mark()
	m.Making = making

	desc, err := machine.ClaimXML(b.req, b.data, can, m)
	if err != nil {
		return err
	}

	return b.define(ctx, desc)
}

// setMark changes what the domain of a machine says of itself.
func (h *Host) setMark(ctx context.Context, verb string, m machine.Mark) error {
	element, err := m.Element()
	if err != nil {
		return err
	}

	return h.change(ctx, m.Ref(), verb, func(dom connection.Domain) error {
		return dom.SetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, element, machine.MarkPrefix, machine.MarkNamespace, libvirt.DOMAIN_AFFECT_CONFIG)
	})
}
