package lifecycle

import (
	"context"
	"fmt"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// ReplaceAnnotation on a machine request without a set asks for a new machine after the old one was lost. Any value that it
// did not have before will do.
const ReplaceAnnotation = "omni-infra.dev/replace"

// loneGrace is how long the machine of a request without a set has to be unknown to Omni before it is taken for removed: after
// a conflict it comes back under another UUID.
const loneGrace = 30 * time.Second

// joined returns the registrations of the request's machine; there is one once it has joined, or two for a moment when its
// UUID changes.
func (p *Provider) joined(id string) []*infra.MachineRegistration {
	return p.registrations.all(func(r *infra.MachineRegistration) bool {
		of, _ := r.Metadata().Labels().Get(omni.LabelMachineRequest)

		return of == id
	})
}

// watchLone looks after a request that no set made. When its machine is removed from Omni nothing tears the request down, so
// the end of the registration is the only sign; the machine in the cloud has to go before it joins again.
func (p *Provider) watchLone(ctx context.Context, request *infra.MachineRequest, joined []*infra.MachineRegistration) error {
	id := request.Metadata().ID()

	if _, ok := request.Metadata().Labels().Get(omni.LabelMachineRequestSet); ok {
		return nil
	}

	rec, ok := p.records.get(id)
	if !ok {
		return nil
	}

	if len(joined) > 0 {
		p.looks.present(id)

		if rec.spec.Joined != "" {
			return nil
		}

		_, err := ensure(ctx, p, p.records, rec, func(r *record) { r.spec.Joined = joined[0].Metadata().ID() })

		return err
	}

	if rec.spec.Joined == "" {
		return nil
	}

	if since := p.looks.absentFor(id); since < loneGrace {
		return driver.Pending(loneGrace-since, "the machine of %q is not registered with Omni any more", id)
	}

	if err := p.markLost(ctx, request, fmt.Sprintf("machine %s was removed from Omni", rec.spec.Joined)); err != nil {
		return err
	}

	return driver.Pending(time.Millisecond, "the machine of %q was removed from Omni", id)
}

// markLost records that a request has lost its machine. What the annotation asked for before that is no wish for a new one.
func (p *Provider) markLost(ctx context.Context, request *infra.MachineRequest, why string) error {
	id := request.Metadata().ID()

	_, err := ensure(ctx, p, p.records, newRecord(p.cfg.ID, id), func(r *record) {
		r.spec.Lost, r.spec.Joined, r.spec.Replaced = why, "", request.Metadata().Annotations().Raw()[ReplaceAnnotation]
	})

	return wrap(err, "record the loss of the machine of %q in Omni", id)
}

// lost keeps a request without a machine until the operator asks for a new one.
func (p *Provider) lost(ctx context.Context, request *infra.MachineRequest, rec *record) error {
	id := request.Metadata().ID()

	if err := p.removeMachine(ctx, id); err != nil {
		return err
	}

	if want := request.Metadata().Annotations().Raw()[ReplaceAnnotation]; want != "" && want != rec.spec.Replaced {
		if released, err := p.release(ctx, id); err != nil || !released {
			return err
		}

		if _, err := ensure(ctx, p, p.records, rec, func(r *record) {
			r.spec.Lost, r.spec.Replaced, r.spec.UUID, r.spec.Names = "", want, "", nil
		}); err != nil {
			return wrap(err, "record the wish for a new machine of %q in Omni", id)
		}

		p.looks.forget(id)

		return driver.Pending(time.Millisecond, "a new machine of %q is made", id)
	}

	_, err := ensure(ctx, p, p.statuses, infra.NewMachineRequestStatus(id), func(s *infra.MachineRequestStatus) {
		copyLabels(s, request)

		spec := s.TypedSpec().Value
		spec.Stage = specs.MachineRequestStatusSpec_FAILED
		spec.Status = "No machine"
		spec.Error = fmt.Sprintf("%s. For a new one, set the annotation %s of machine request %q to a new value, or delete the request", rec.spec.Lost, ReplaceAnnotation, id)
	})

	return wrap(err, "show in Omni that %q has no machine", id)
}
