// Package validation has the rules that the simulated Omni puts to what users and providers write, with the texts of the
// real one where they are known. The errors are bare: the caller wraps them as its transport asks ("failed to validate: ...").
// Package omni imports it and asks it for every write that does not come from Omni's own controllers. The rules of the
// infra-provider namespaces themselves (labels, ids, who may write what) are access rules and not here, except for those of
// MachineRequest.
//
// Not modelled: rules about Clusters, MachineSets, config patches, kernel arguments and everything else that no machine is
// asked for with.
package validation

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
)

// Create returns what is wrong with the creation of res, nil if nothing is. It reads st and never writes.
func Create(ctx context.Context, st state.State, res resource.Resource) []error {
	problems := metadata(nil, res.Metadata())

	switch res := res.(type) {
	case *infra.MachineRequest:
		problems = append(problems, machineRequest(res)...)
	case *omni.MachineRequestSet:
		problems = append(problems, machineRequestSet(ctx, st, res)...)
	case *omni.MachineClass:
		problems = append(problems, machineClass(ctx, st, res)...)
	}

	return problems
}

// Update returns what is wrong with an update of the stored resource to updated, nil if nothing is. A resource in teardown
// may be anything.
func Update(ctx context.Context, st state.State, stored, updated resource.Resource) []error {
	problems := metadata(stored.Metadata(), updated.Metadata())

	if updated.Metadata().Phase() == resource.PhaseTearingDown {
		return problems
	}

	switch updated := updated.(type) {
	case *infra.MachineRequest:
		if old, ok := stored.(*infra.MachineRequest); ok && !old.TypedSpec().Value.EqualVT(updated.TypedSpec().Value) {
			problems = append(problems, errors.New("machine request spec is immutable"))
		}
	case *omni.MachineRequestSet:
		if old, ok := stored.(*omni.MachineRequestSet); ok && sameButCount(old.TypedSpec().Value, updated.TypedSpec().Value) {
			break
		}

		problems = append(problems, machineRequestSet(ctx, st, updated)...)
	case *omni.MachineClass:
		problems = append(problems, machineClass(ctx, st, updated)...)
	case *omni.InfraMachineConfig:
		if old, ok := stored.(*omni.InfraMachineConfig); ok {
			problems = append(problems, infraMachineConfig(old, updated)...)
		}
	}

	return problems
}

// Destroy returns what is wrong with the destruction or teardown of the resource ptr, nil if nothing is.
func Destroy(ctx context.Context, st state.State, ptr resource.Pointer) []error {
	switch ptr.Type() {
	case infra.ProviderType:
		return providerRemoval(ctx, st, ptr.ID())
	case omni.MachineClassType:
		return machineClassRemoval(ctx, st, ptr.ID())
	}

	return nil
}

func machineRequest(request *infra.MachineRequest) []error {
	version := request.TypedSpec().Value.TalosVersion
	if _, err := semver.ParseTolerant(version); err != nil {
		return []error{fmt.Errorf("invalid talos version format: %q", version)}
	}

	return nil
}

// sameButCount returns whether an update of a set changes nothing but its size, which is always good.
func sameButCount(old, updated *specs.MachineRequestSetSpec) bool {
	old, updated = old.CloneVT(), updated.CloneVT()
	old.MachineCount, updated.MachineCount = 0, 0

	return old.EqualVT(updated)
}

func machineRequestSet(ctx context.Context, st state.State, set *omni.MachineRequestSet) []error {
	spec := set.TypedSpec().Value
	if spec.ProviderId == "" {
		return []error{errors.New("provider id can not be empty")}
	}

	problems := providerData(ctx, st, spec.ProviderId, spec.ProviderData)
	problems = append(problems, talosVersion(ctx, st, spec.TalosVersion)...)

	return append(problems, extensions(ctx, st, spec.TalosVersion, spec.Extensions)...)
}

func machineClass(ctx context.Context, st state.State, class *omni.MachineClass) []error {
	spec := class.TypedSpec().Value

	switch {
	case spec.AutoProvision == nil:
		return nil
	case len(spec.MatchLabels) > 0:
		return []error{errors.New("can't set both auto provision and match labels at the same time")}
	case spec.AutoProvision.ProviderId == "":
		return []error{errors.New("providerID can not be empty")}
	}

	return providerData(ctx, st, spec.AutoProvision.ProviderId, spec.AutoProvision.ProviderData)
}

func machineClassRemoval(ctx context.Context, st state.State, id string) []error {
	sets, err := safe.StateListAll[*omni.MachineSet](ctx, st)
	if err != nil {
		return []error{err}
	}

	var users []string

	for set := range sets.All() {
		if allocation := omni.GetMachineAllocation(set); allocation != nil && allocation.Name == id {
			users = append(users, set.Metadata().ID())
		}
	}

	if len(users) > 0 {
		return []error{fmt.Errorf("can not delete the machine class as it is still in use by machine sets: %s", strings.Join(users, ", "))}
	}

	return nil
}

func talosVersion(ctx context.Context, st state.State, version string) []error {
	_, err := safe.StateGetByID[*omni.TalosVersion](ctx, st, version)

	switch {
	case state.IsNotFoundError(err):
		return []error{fmt.Errorf("invalid talos version %q: it is not known to this Omni", version)}
	case err != nil:
		return []error{err}
	}

	return nil
}

func extensions(ctx context.Context, st state.State, version string, wanted []string) []error {
	if len(wanted) == 0 {
		return nil
	}

	available, err := safe.StateGetByID[*omni.TalosExtensions](ctx, st, version)
	if state.IsNotFoundError(err) {
		return nil // There is no such version, which was said.
	}

	if err != nil {
		return []error{err}
	}

	known := map[string]bool{}
	for _, item := range available.TypedSpec().Value.Items {
		known[item.Name] = true
	}

	var problems []error

	for _, name := range wanted {
		if !known[name] {
			problems = append(problems, fmt.Errorf("extension %q is not available for Talos version %q", name, version))
		}
	}

	return problems
}

func infraMachineConfig(old, updated *omni.InfraMachineConfig) []error {
	accepted := specs.InfraMachineConfigSpec_ACCEPTED

	if old.TypedSpec().Value.AcceptanceStatus == accepted && updated.TypedSpec().Value.AcceptanceStatus != accepted {
		return []error{errors.New("an accepted machine cannot be rejected or set back to pending acceptance")}
	}

	return nil
}

func providerRemoval(ctx context.Context, st state.State, id string) []error {
	machines, err := safe.StateListAll[*omni.Machine](ctx, st,
		state.WithLabelQuery(resource.LabelEqual(omni.LabelInfraProviderID, id)))
	if err != nil {
		return []error{err}
	}

	var alive []string

	for machine := range machines.All() {
		if machine.Metadata().Phase() == resource.PhaseRunning {
			alive = append(alive, machine.Metadata().ID())
		}
	}

	if len(alive) > 0 {
		return []error{fmt.Errorf("cannot delete the infra provider %q, as there are %d running machines managed by it: %v",
			id, len(alive), alive)}
	}

	return nil
}
