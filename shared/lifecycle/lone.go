package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// ReplaceAnnotation on a machine request without a set asks for a new machine after the old one was lost. Any value that it
// did not have before will do.
const ReplaceAnnotation = "omni-infra.dev/replace"

// idleWish returns what is asked of a request in the wrong place, or nil.
func idleWish(request *infra.MachineRequest) error {
	set, ok := request.Metadata().Labels().Get(omni.LabelMachineRequestSet)
	if !ok || request.Metadata().Annotations().Raw()[ReplaceAnnotation] == "" {
		return nil
	}

	return fmt.Errorf("annotation %s has no effect: this request is of the set %q. To have its machine replaced, delete the machine from Omni (omnictl delete link UUID)",
		ReplaceAnnotation, set)
}

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
// the end of the registration is the only sign; the machine in the cloud has to go before it joins again. One that was quicker
// is known by its registration, which is younger than the one it had.
func (p *Provider) watchLone(ctx context.Context, request *infra.MachineRequest, joined []*infra.MachineRegistration) error {
	id := request.Metadata().ID()

	if _, ok := request.Metadata().Labels().Get(omni.LabelMachineRequestSet); ok {
		return nil
	}

	// A machine that another library made carries no mark: it could not be removed.
	rec, ok := p.records.get(id)
	if !ok || !rec.ours() {
		return nil
	}

	if len(joined) > 0 {
		p.looks.present(id)

		registration := pick(joined, rec.spec.Joined)
		uuid, at := registration.Metadata().ID(), registration.Metadata().Created()

		if uuid == rec.spec.Joined && rec.spec.JoinedAt != 0 && at.UnixNano() > rec.spec.JoinedAt {
			if again, err := p.joinedAgain(ctx, uuid, at); err != nil {
				return err
			} else if again {
				return p.removedFromOmni(ctx, request, uuid)
			}
		}

		_, err := p.keep(ctx, id, func(r *recordSpec) { r.Joined, r.JoinedAt = uuid, at.UnixNano() })

		return err
	}

	if rec.spec.Joined == "" {
		return nil
	}

	if since := p.looks.absentFor(id); since < loneGrace {
		return driver.Pending(loneGrace-since, "the machine of %q is not registered with Omni any more", id)
	}

	return p.removedFromOmni(ctx, request, rec.spec.Joined)
}

// pick returns the registration to go by: that with the recorded UUID while there is one, else the youngest. After a change of the
// UUID the old one may stay for as long as its link does.
func pick(joined []*infra.MachineRegistration, recorded string) *infra.MachineRegistration {
	return slices.MaxFunc(joined, func(a, b *infra.MachineRegistration) int {
		switch recorded {
		case a.Metadata().ID():
			return 1
		case b.Metadata().ID():
			return -1
		}

		return a.Metadata().Created().Compare(b.Metadata().Created())
	})
}

// registrationLag is how much older Omni's Machine may be than the registration of the same link.
const registrationLag = time.Minute

// joinedAgain reports whether the machine of a registration that was made at a time, and takes the place of an older one, has
// joined anew. Omni's Machine comes and goes with the machine's link; one that has lived on says that only the registration
// was made again, which is no reason to remove anything.
func (p *Provider) joinedAgain(ctx context.Context, uuid string, at time.Time) (bool, error) {
	machine, err := call(ctx, p.cfg.CallTimeout, "reading from Omni", func(ctx context.Context) (resource.Resource, error) {
		return p.st.Get(ctx, omni.NewMachine(uuid).Metadata())
	})

	switch {
	case state.IsNotFoundError(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read machine %q in Omni: %w", uuid, err)
	}

	return machine.Metadata().Created().After(at.Add(-registrationLag)), nil
}

func (p *Provider) removedFromOmni(ctx context.Context, request *infra.MachineRequest, uuid string) error {
	if err := p.markLost(ctx, request, fmt.Sprintf("machine %s was removed from Omni", uuid)); err != nil {
		return err
	}

	return driver.Pending(time.Millisecond, "the machine of %q was removed from Omni", request.Metadata().ID())
}

// markLost records that a request has lost its machine. What the annotation asked for before that is no wish for a new one.
func (p *Provider) markLost(ctx context.Context, request *infra.MachineRequest, why string) error {
	id := request.Metadata().ID()

	_, err := p.keep(ctx, id, func(r *recordSpec) {
		r.Lost, r.Joined, r.JoinedAt, r.Replaced = why, "", 0, request.Metadata().Annotations().Raw()[ReplaceAnnotation]
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

		if _, err := p.keep(ctx, id, func(r *recordSpec) {
			r.Lost, r.Replaced, r.UUID, r.Names, r.Place = "", want, "", nil, ""
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
