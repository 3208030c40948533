package conformance

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/controller/generic"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// talosVersion is what the suite asks for.
const talosVersion = "1.13.5"

// request makes a machine request for the subject's good class data, as an operator does.
func (e *env) request(id string) { e.requestFrom(e.provider, id, e.data) }

// requestFrom makes a machine request for a provider and class data.
func (e *env) requestFrom(provider, id, data string) {
	r := infra.NewMachineRequest(e.full(id))
	r.Metadata().Labels().Set(omni.LabelInfraProviderID, provider)
	r.TypedSpec().Value.TalosVersion = e.talosVersion
	r.TypedSpec().Value.ProviderData = data

	if e.ledger == nil {
		e.watchRequest(provider, e.full(id))
	}

	e.do("make a machine request", func(ctx context.Context) error { return e.state.Create(ctx, r) })
	e.note("operator makes machine request %s of provider %s", e.full(id), provider)
}

// set makes a machine request set of that size, or changes its size.
func (e *env) set(id string, size int32) {
	// Omni checks the class data of a set with the schema that the provider has published.
	e.schema()
	e.do("write a machine request set", func(ctx context.Context) error {
		return safe.StateModify(ctx, e.state, omni.NewMachineRequestSet(e.full(id)), func(r *omni.MachineRequestSet) error {
			spec := r.TypedSpec().Value
			spec.ProviderId, spec.TalosVersion, spec.ProviderData, spec.MachineCount = e.provider, e.talosVersion, e.data, size

			return nil
		})
	})
	e.note("operator sets machine request set %s to %d", e.full(id), size)
}

// annotate sets an annotation of a request.
func (e *env) annotate(id, key, value string) {
	e.do("annotate a machine request", func(ctx context.Context) error {
		_, err := safe.StateUpdateWithConflicts(ctx, e.state, infra.NewMachineRequest(e.full(id)).Metadata(), func(r *infra.MachineRequest) error {
			r.Metadata().Annotations().Set(key, value)

			return nil
		}, state.WithExpectedPhaseAny())

		return err
	})
	e.note("operator annotates %s with %s=%s", e.full(id), key, value)
}

// remove tears a request down. awaitGone waits for its end.
func (e *env) remove(id string) {
	e.tearDown(infra.NewMachineRequest(e.full(id)).Metadata())
	e.note("operator removes machine request %s", e.full(id))
}

func (e *env) tearDown(md *resource.Metadata) {
	e.do("tear a resource down", func(ctx context.Context) error {
		_, err := e.state.Teardown(ctx, md)
		if state.IsNotFoundError(err) {
			return nil
		}

		return err
	})
}

// awaitGone waits until nobody holds on to a request that is torn down, and destroys it. Its machine has to be gone by then:
// the provider's finalizer is its word for that.
func (e *env) awaitGone(id string) {
	e.await("machine request "+id+" is gone", func() (string, bool) {
		held, gone := e.destroy(infra.NewMachineRequest(e.full(id)).Metadata())

		if machines, requests := e.machines(), e.requests(); gone && len(machines) > len(requests) {
			e.fail(fmt.Sprintf("the cloud has no machine of %s when the provider lets go of the request", id), "%s", describe(machines))
		}

		return held, gone
	})
}

// destroy destroys a resource that is torn down, or says who holds on to it.
func (e *env) destroy(md *resource.Metadata) (held string, gone bool) {
	r, err := e.state.Get(e.ctx, md)

	switch {
	case state.IsNotFoundError(err):
		return "", true
	case err != nil:
		return err.Error(), false
	case r.Metadata().Phase() != resource.PhaseTearingDown:
		return "it is not torn down", false
	case !r.Metadata().Finalizers().Empty():
		return fmt.Sprintf("it is held by %v", *r.Metadata().Finalizers()), false
	}

	err = e.state.Destroy(e.ctx, md)

	return fmt.Sprint(err), err == nil || state.IsNotFoundError(err)
}

// full returns the id that Omni has for what a case calls id.
func (e *env) full(id string) string { return e.prefix + id }

// requests returns the ids of all requests, in the form that the other methods take.
func (e *env) requests() []string {
	var ids []string

	for _, r := range list[*infra.MachineRequest](e) {
		ids = append(ids, strings.TrimPrefix(r.Metadata().ID(), e.prefix))
	}

	return ids
}

// status returns what the provider says of a request; an empty one if it says nothing.
func (e *env) status(id string) *specs.MachineRequestStatusSpec {
	s, err := safe.StateGetByID[*infra.MachineRequestStatus](e.ctx, e.state, e.full(id))
	if err != nil {
		return &specs.MachineRequestStatusSpec{}
	}

	return s.TypedSpec().Value
}

// awaitProvisioned waits until the provider says that the request has its machine, and returns the machine.
func (e *env) awaitProvisioned(id string) ledger.Machine {
	e.await("machine request "+id+" is provisioned", func() (string, bool) {
		s := e.status(id)

		return fmt.Sprintf("stage %s, status %q, error %q", s.GetStage(), s.GetStatus(), s.GetError()),
			s.GetStage() == specs.MachineRequestStatusSpec_PROVISIONED
	})

	return e.machine()
}

// awaitJoined waits until the request's machine is known to Omni and matched with the request, and returns its UUID.
func (e *env) awaitJoined(id string) (uuid string) {
	e.await("the machine of "+id+" has joined Omni and is matched with the request", func() (string, bool) {
		s := e.status(id)

		for _, m := range list[*omni.Machine](e) {
			if request, ok := m.Metadata().Labels().Get(omni.LabelMachineRequest); ok && request == e.full(id) {
				uuid = m.Metadata().ID()

				return fmt.Sprintf("machine %s is there, the request's status says %q", uuid, s.GetId()), s.GetId() == uuid
			}
		}

		return fmt.Sprintf("%d machines joined, none is matched with %s; stage %s, status %q, error %q",
			len(list[*siderolink.Link](e)), id, s.GetStage(), s.GetStatus(), s.GetError()), false
	})

	return uuid
}

// machines returns the cloud's machines but those of somebody else; none where the suite cannot see the cloud.
func (e *env) machines() []ledger.Machine {
	if e.cloud == nil {
		return nil
	}

	var own []ledger.Machine

	for _, m := range e.cloud.Machines() {
		if !e.foreign[m.ID] && !e.isNeighbours(m) {
			own = append(own, m)
		}
	}

	return own
}

// machine returns the only machine, which has to be on.
func (e *env) machine() ledger.Machine {
	all := e.machines()
	if len(all) != 1 || !all[0].On {
		e.fail("the cloud has exactly one machine, and it is on", "%s", describe(all))
	}

	return all[0]
}

func describe(machines []ledger.Machine) string {
	text := fmt.Sprintf("%d machines", len(machines))

	for _, m := range machines {
		text += fmt.Sprintf("\n%s %q on=%t", m.ID, m.Name, m.On)
	}

	return text
}

// do calls Omni as an operator.
func (e *env) do(what string, f func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(e.ctx, time.Minute)
	defer cancel()

	if err := f(ctx); err != nil {
		panic(fmt.Errorf("%s: %w", what, err))
	}
}

// concerns reports whether a resource is of this case. An Omni that was there already has those of others, of the same kinds, and
// nobody here may touch them.
func (e *env) concerns(r resource.Resource) bool {
	name := r.Metadata().ID()

	switch r := r.(type) {
	case *omni.MachineRequestSet:
		return strings.HasPrefix(name, e.prefix) && e.knows(r.TypedSpec().Value.ProviderId)
	case *omni.ClusterMachine:
		name, _ = r.Metadata().Labels().Get(omni.LabelCluster)
	case *omni.Cluster, *omni.MachineClass, *infra.MachineRequest, *infra.MachineRequestStatus:
	default:
		name = e.prefix
	}

	provider, ok := r.Metadata().Labels().Get(omni.LabelInfraProviderID)

	return strings.HasPrefix(name, e.prefix) && (!ok || e.knows(provider))
}

// list returns all resources of a kind that are of the case, or of nobody in particular.
func list[T generic.ResourceWithRD](e *env) []T {
	var all []T

	e.do("list resources", func(ctx context.Context) error {
		items, err := safe.StateListAll[T](ctx, e.state)
		if err != nil {
			return err
		}

		for item := range items.All() {
			if e.concerns(item) {
				all = append(all, item)
			}
		}

		return nil
	})

	return all
}
