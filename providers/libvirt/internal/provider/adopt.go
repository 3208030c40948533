package provider

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Adopt takes over the machine of the official libvirt provider that the state tells of, on the host that has it.
func (d *Driver) Adopt(ctx context.Context, f driver.Foreign) (driver.Adoption, error) {
	o, err := machine.ParseOfficial(f)
	if err != nil {
		return driver.Adoption{}, driver.Terminal(err)
	}

	answers := ask(ctx, d.hosts, func(ctx context.Context, h *host) (bool, error) {
		err := h.CheckOfficial(ctx, f, o)

		return err == nil, err
	})

	var (
		having  []*host
		refusal error
		missing error
	)

	for i, a := range answers {
		switch {
		case a.err == nil:
			having = append(having, a.host)
		case driver.IsNotFound(a.err):
			missing, answers[i].err = a.err, nil
		case !errors.Is(a.err, connection.ErrUnreachable):
			refusal = a.err
		}
	}

	switch {
	case len(having) > 1:
		return driver.Adoption{}, driver.Terminalf("the machine with UUID %s, which the official provider recorded, is on several hosts (%s): it is left alone; undefine it where it does not belong",
			o.UUID, namesOf(having))
	case len(having) == 1:
		adoption, err := having[0].Adopt(ctx, f, o)
		if err == nil {
			d.saw(f.Ref, having[0])
		}

		return adoption, err
	case refusal != nil:
		return driver.Adoption{}, refusal
	}

	if err := d.plain(unseenOf(answers)); err != nil {
		return driver.Adoption{}, err
	}

	if o.Defined {
		// It may be elsewhere: another machine in its place could be one too many.
		return driver.Adoption{}, driver.Terminalf("%w. The official provider had made it: is this the host that it was made on? If the machine is gone for good, let Omni replace it: omnictl delete link %s",
			errors.New(missing.Error()), o.UUID)
	}

	return driver.Adoption{}, missing
}

func namesOf(hosts []*host) string {
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = h.Name()
	}

	return strings.Join(names, ", ")
}

// Discard takes away what the official libvirt provider recorded. Nothing is touched while a host says that a part of it is not, or not
// only, the request's: hosts may share a storage pool.
func (d *Driver) Discard(ctx context.Context, f driver.Foreign) (bool, error) {
	o, err := machine.ParseOfficial(f)
	if err != nil {
		return d.discardUnknown(ctx, f, err)
	}

	hosts := d.hosts
	if f.Place != "" {
		h, err := d.at(f.Place)
		if err != nil {
			return false, err
		}

		hosts = []*host{h}
	}

	answers := ask(ctx, hosts, func(ctx context.Context, h *host) (bool, error) { return h.CheckDiscard(ctx, f, o) })
	if _, err := d.all(answers); err != nil {
		return false, err
	}

	// The volumes are where the domain is. Others of these names, on other hosts, are not those that were recorded.
	if having := slices.DeleteFunc(answers, func(a answer[bool]) bool { return !a.value }); len(having) > 0 {
		hosts = make([]*host, len(having))
		for i, a := range having {
			hosts[i] = a.host
		}
	}

	return d.all(ask(ctx, hosts, func(ctx context.Context, h *host) (bool, error) { return h.Discard(ctx, f, o) }))
}

// discardUnknown takes nothing away, as the record cannot be read. It is done when no host has anything of the names that the official
// provider gives, which are no proof of whose it is.
func (d *Driver) discardUnknown(ctx context.Context, f driver.Foreign, unreadable error) (bool, error) {
	answers := ask(ctx, d.hosts, func(ctx context.Context, h *host) ([]string, error) { return h.Namesakes(ctx, f.RequestID) })

	for _, a := range answers {
		if len(a.value) > 0 {
			return false, driver.Terminalf("%w: host %q has %s, which may be what the official provider made: remove or rename it by hand", unreadable, a.host.Name(), strings.Join(a.value, ", "))
		}
	}

	if err := d.plain(unseenOf(answers)); err != nil {
		return false, err
	}

	return true, nil
}

// all says whether every host has said yes. What one that was reached refuses is told first.
func (d *Driver) all(answers []answer[bool]) (bool, error) {
	done := true

	for _, a := range answers {
		if a.err != nil && !errors.Is(a.err, connection.ErrUnreachable) {
			return false, a.err
		}

		done = done && a.value
	}

	if err := d.plain(unseenOf(answers)); err != nil {
		return false, err
	}

	return done, nil
}
