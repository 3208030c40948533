package control

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/cosi-project/runtime/pkg/controller"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
)

const requestSetController = "MachineRequestSetStatusController"

// keepSet makes and removes requests until the set has as many running ones as it should. A request in teardown does not
// count, so its replacement is made at once.
func keepSet(ctx context.Context, r controller.QRuntime, set *omni.MachineRequestSet) error {
	status := omni.NewMachineRequestSetStatus(set.Metadata().ID())
	if err := r.Modify(ctx, status, func(resource.Resource) error { return nil }); err != nil {
		return ignoreRace(err)
	}

	machines, err := labelled[*machineLabels](ctx, r, omni.LabelMachineRequestSet, set.Metadata().ID())
	if err != nil {
		return err
	}

	for _, m := range machines {
		if err = followMachine(ctx, r, m); err != nil {
			return err
		}
	}

	requests, err := labelled[*infra.MachineRequest](ctx, r, omni.LabelMachineRequestSet, set.Metadata().ID())
	if err != nil {
		return err
	}

	if err = finishRequests(ctx, r, set, requests); err != nil {
		return err
	}

	requests = slices.DeleteFunc(requests, inTeardown)
	missing := int(set.TypedSpec().Value.MachineCount) - len(requests)

	for range missing {
		if err = createRequest(ctx, r, set); err != nil {
			return err
		}
	}

	if missing >= 0 {
		return nil
	}

	if err = sortForRemoval(ctx, r, requests, machines); err != nil {
		return err
	}

	for _, request := range requests[:-missing] {
		if _, err = remove(ctx, r, request.Metadata(), ""); err != nil {
			return err
		}
	}

	return nil
}

// emptySet removes the requests of a set that goes away.
func emptySet(ctx context.Context, r controller.QRuntime, set *omni.MachineRequestSet) (bool, error) {
	id := set.Metadata().ID()

	machines, err := labelled[*machineLabels](ctx, r, omni.LabelMachineRequestSet, id)
	if err != nil {
		return false, err
	}

	for _, m := range machines {
		if err = ignoreNotFound(r.RemoveFinalizer(ctx, m.Metadata(), requestSetController)); err != nil {
			return false, err
		}
	}

	requests, err := labelled[*infra.MachineRequest](ctx, r, omni.LabelMachineRequestSet, id)
	if err != nil {
		return false, err
	}

	for _, request := range requests {
		if _, err = r.Teardown(ctx, request.Metadata(), controller.WithOwner("")); ignoreNotFound(err) != nil {
			return false, err
		}
	}

	if err = finishRequests(ctx, r, set, requests); err != nil {
		return false, err
	}

	if requests, err = labelled[*infra.MachineRequest](ctx, r, omni.LabelMachineRequestSet, id); err != nil || len(requests) > 0 {
		return false, err
	}

	return remove(ctx, r, omni.NewMachineRequestSetStatus(id).Metadata(), requestSetController)
}

func inTeardown(request *infra.MachineRequest) bool {
	return request.Metadata().Phase() != resource.PhaseRunning
}

// followMachine holds the labels of a machine that the set's request made; when the machine leaves Omni, so does the request.
func followMachine(ctx context.Context, r controller.QRuntime, m *machineLabels) error {
	if m.Metadata().Phase() == resource.PhaseRunning {
		if m.Metadata().Finalizers().Has(requestSetController) {
			return nil
		}

		return ignoreRace(r.AddFinalizer(ctx, m.Metadata(), requestSetController))
	}

	if !m.Metadata().Finalizers().Has(requestSetController) {
		return nil
	}

	if id, ok := m.Metadata().Labels().Get(omni.LabelMachineRequest); ok {
		if _, err := r.Teardown(ctx, infra.NewMachineRequest(id).Metadata(), controller.WithOwner("")); ignoreNotFound(err) != nil {
			return err
		}
	}

	return ignoreNotFound(r.RemoveFinalizer(ctx, m.Metadata(), requestSetController))
}

// finishRequests destroys those requests in teardown that nothing holds. If the provider is gone, or goes, its hold does
// not count.
func finishRequests(ctx context.Context, r controller.QRuntime, set *omni.MachineRequestSet, requests []*infra.MachineRequest) error {
	_, provided, err := running[*infra.Provider](ctx, r, set.TypedSpec().Value.ProviderId)
	if err != nil {
		return err
	}

	for _, request := range requests {
		finalizers := *request.Metadata().Finalizers()

		if !inTeardown(request) {
			continue
		}

		if !provided {
			foreign := slices.DeleteFunc(slices.Clone(finalizers), func(f resource.Finalizer) bool {
				return f == clusterMachineRequestStatusController
			})

			if len(foreign) > 0 {
				if err := ignoreNotFound(r.RemoveFinalizer(ctx, request.Metadata(), foreign...)); err != nil {
					return err
				}

				continue
			}
		}

		if finalizers.Empty() {
			if err := ignoreNotFound(r.Destroy(ctx, request.Metadata(), controller.WithOwner(""))); err != nil {
				return err
			}
		}
	}

	return nil
}

// createTries bounds the search for a free id.
const createTries = 100

func createRequest(ctx context.Context, r controller.QRuntime, set *omni.MachineRequestSet) error {
	from := set.TypedSpec().Value

	for range createTries {
		request := infra.NewMachineRequest(set.Metadata().ID() + "-" + suffix())
		request.Metadata().Labels().Set(omni.LabelInfraProviderID, from.ProviderId)
		request.Metadata().Labels().Set(omni.LabelMachineRequestSet, set.Metadata().ID())

		spec := request.TypedSpec().Value
		spec.TalosVersion = from.TalosVersion
		spec.Extensions = from.Extensions
		spec.KernelArgs = from.KernelArgs
		spec.MetaValues = from.MetaValues
		spec.ProviderData = from.ProviderData
		spec.GrpcTunnel = from.GrpcTunnel

		if err := r.Create(ctx, request, controller.WithCreateNoOwner()); !state.IsConflictError(err) {
			return err
		}
	}

	return fmt.Errorf("create machine request of set %q: no free id after %d tries", set.Metadata().ID(), createTries)
}

// suffix returns six random characters in the alphabet of Kubernetes names, which has no vowels and nothing that looks alike.
func suffix() string {
	const alphabet = "bcdfghjklmnpqrstvwxz2456789"

	var s [6]byte
	for i := range s {
		s[i] = alphabet[rand.IntN(len(alphabet))]
	}

	return string(s[:])
}

// sortForRemoval puts first what a smaller set loses first: requests whose machine is in no cluster, then workers before
// control planes, then the oldest.
func sortForRemoval(ctx context.Context, r controller.Reader, requests []*infra.MachineRequest, machines []*machineLabels) error {
	const (
		worker = iota + 1
		controlPlane
	)

	use := map[resource.ID]int{}

	for _, m := range machines {
		node, ok, err := find[*omni.MachineSetNode](ctx, r, m.Metadata().ID())
		if err != nil {
			return err
		}

		if !ok {
			continue
		}

		request, _ := m.Metadata().Labels().Get(omni.LabelMachineRequest)
		use[request] = worker

		if _, ok := node.Metadata().Labels().Get(omni.LabelControlPlaneRole); ok {
			use[request] = controlPlane
		}
	}

	slices.SortStableFunc(requests, func(a, b *infra.MachineRequest) int {
		return cmp.Or(
			cmp.Compare(use[a.Metadata().ID()], use[b.Metadata().ID()]),
			a.Metadata().Created().Compare(b.Metadata().Created()),
		)
	})

	return nil
}
