package control

import (
	"cmp"
	"context"
	"slices"

	"github.com/cosi-project/runtime/pkg/controller"
	"github.com/cosi-project/runtime/pkg/controller/generic/qtransform"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// clusterControllers follow clusters as far as they ask for machines, and hold those that they have. No Kubernetes comes up.
func clusterControllers(opts Options) []controller.QController {
	return []controller.QController{
		requestSets(),
		&keeper[*omni.Cluster]{
			name: "ClusterController",
			release: func(ctx context.Context, r controller.QRuntime, cluster *omni.Cluster) (bool, error) {
				sets, err := labelled[*omni.MachineSet](ctx, r, omni.LabelCluster, cluster.Metadata().ID())

				return removeAll(ctx, r, sets, err)
			},
			mapped:  []mapping{on[*omni.MachineSet](toLabel[*omni.Cluster](omni.LabelCluster))},
			outputs: []controller.Output{shares[*omni.MachineSet]()},
		},
		&keeper[*omni.MachineSet]{
			name: "MachineSetNodeController",
			work: allocate,
			release: func(ctx context.Context, r controller.QRuntime, set *omni.MachineSet) (bool, error) {
				nodes, err := labelled[*omni.MachineSetNode](ctx, r, omni.LabelMachineSet, set.Metadata().ID())

				return removeAll(ctx, r, nodes, err)
			},
			mapped: []mapping{
				on[*omni.MachineClass](toAll[*omni.MachineSet]()),
				on[*omni.MachineSetNode](toLabel[*omni.MachineSet](omni.LabelMachineSet)),
				on[*machineLabels](toLabel[*omni.MachineSet](omni.LabelMachineRequestSet)),
				on[*infra.MachineRequest](toLabel[*omni.MachineSet](omni.LabelMachineRequestSet)),
			},
			outputs: []controller.Output{shares[*omni.MachineSetNode]()},
		},
		&keeper[*omni.MachineSetNode]{
			name: machineSetStatusController,
			work: admit,
			release: func(ctx context.Context, r controller.QRuntime, node *omni.MachineSetNode) (bool, error) {
				return remove(ctx, r, omni.NewClusterMachine(node.Metadata().ID()).Metadata(), machineSetStatusController)
			},
			mapped:  []mapping{on[*omni.ClusterMachine](toSameID[*omni.MachineSetNode]())},
			outputs: []controller.Output{shares[*omni.ClusterMachine]()},
		},
		&keeper[*omni.ClusterMachine]{
			name: "ClusterMachineConfigStatusController",
			release: func(ctx context.Context, r controller.QRuntime, machine *omni.ClusterMachine) (bool, error) {
				return resetNode(ctx, r, machine.Metadata().ID(), opts.Machines)
			},
			mapped: []mapping{
				on[*omni.Machine](toSameID[*omni.ClusterMachine]()),
				on[*omni.MachineStatus](toSameID[*omni.ClusterMachine]()),
				on[*omni.NodeForceDestroyRequest](toSameID[*omni.ClusterMachine]()),
				on[*tunnel](toMachineAt),
			},
		},
	}
}

const machineSetStatusController = "MachineSetStatusController"

// removeAll removes what a list found.
func removeAll[T resource.Resource](ctx context.Context, r controller.QRuntime, found []T, err error) (allGone bool, _ error) {
	allGone = err == nil

	for _, res := range found {
		gone, err := remove(ctx, r, res.Metadata(), "")
		if err != nil {
			return false, err
		}

		allGone = allGone && gone
	}

	return allGone, err
}

// requestSets makes a request set of each machine set whose machine class has machines made.
func requestSets() controller.QController {
	return qtransform.NewQController(qtransform.Settings[*omni.MachineSet, *omni.MachineRequestSet]{
		Name: machineProvisionController,
		MapMetadataFunc: func(set *omni.MachineSet) *omni.MachineRequestSet {
			return omni.NewMachineRequestSet(set.Metadata().ID())
		},
		UnmapMetadataFunc: func(requests *omni.MachineRequestSet) *omni.MachineSet {
			return omni.NewMachineSet(requests.Metadata().ID())
		},
		TransformFunc: fillRequestSet,
	},
		qtransform.WithExtraMappedInput[*omni.MachineClass](toAll[*omni.MachineSet]()),
		qtransform.WithExtraMappedInput[*omni.Cluster](toLabelled[*omni.MachineSet](omni.LabelCluster)),
		qtransform.WithExtraMappedInput[*omni.MachineSetNode](toLabel[*omni.MachineSet](omni.LabelMachineSet)),
		qtransform.WithOutputKind(controller.OutputShared),
	)
}

func fillRequestSet(
	ctx context.Context, r controller.Reader, _ *zap.Logger, set *omni.MachineSet, requests *omni.MachineRequestSet,
) error {
	provision, count, err := provisionOf(ctx, r, set)
	if err != nil {
		return err
	}

	if provision == nil {
		return errNoOutput
	}

	clusterID, _ := set.Metadata().Labels().Get(omni.LabelCluster)

	cluster, ok, err := find[*omni.Cluster](ctx, r, clusterID)
	if err != nil {
		return err
	}

	if !ok {
		return errNotYet
	}

	// A smaller set keeps its requests until the nodes have left.
	nodes, err := labelled[*omni.MachineSetNode](ctx, r, omni.LabelMachineSet, set.Metadata().ID())
	if err != nil {
		return err
	}

	spec := requests.TypedSpec().Value
	spec.MachineCount = int32(max(count, len(nodes)))
	spec.ProviderId = provision.ProviderId
	spec.TalosVersion = cluster.TypedSpec().Value.TalosVersion
	spec.KernelArgs = provision.KernelArgs
	spec.MetaValues = provision.MetaValues
	spec.ProviderData = provision.ProviderData
	spec.GrpcTunnel = provision.GrpcTunnel

	return nil
}

// provisionOf returns how the machines of a set are made and how many it wants; nil if they are not made for it.
func provisionOf(
	ctx context.Context, r controller.Reader, set *omni.MachineSet,
) (*specs.MachineClassSpec_Provision, int, error) {
	allocation := omni.GetMachineAllocation(set)
	if allocation == nil {
		return nil, 0, nil
	}

	class, ok, err := find[*omni.MachineClass](ctx, r, allocation.Name)
	if err != nil || !ok {
		return nil, 0, err
	}

	return class.TypedSpec().Value.AutoProvision, int(allocation.MachineCount), nil
}

// allocate keeps as many of the machines that were made for the set in it as it should have.
func allocate(ctx context.Context, r controller.QRuntime, set *omni.MachineSet) error {
	provision, count, err := provisionOf(ctx, r, set)
	if err != nil || provision == nil {
		return err
	}

	nodes, err := labelled[*omni.MachineSetNode](ctx, r, omni.LabelMachineSet, set.Metadata().ID())
	if err != nil {
		return err
	}

	machines, err := labelled[*machineLabels](ctx, r, omni.LabelMachineRequestSet, set.Metadata().ID())
	if err != nil {
		return err
	}

	has := len(nodes)

	for _, machine := range machines {
		if has >= count {
			break
		}

		if ok, err := allocatable(ctx, r, machine); err != nil {
			return err
		} else if !ok {
			continue
		}

		node := omni.NewMachineSetNode(machine.Metadata().ID(), set)
		node.Metadata().Labels().Set(omni.LabelManagedByMachineSetNodeController, "")

		if err = r.Create(ctx, node, controller.WithCreateNoOwner()); err != nil {
			return err
		}

		has++
	}

	if has <= count {
		return nil
	}

	return shrink(ctx, r, nodes, machines, has-count)
}

// allocatable returns whether a machine can become a node: it is up, free, and its request stays.
func allocatable(ctx context.Context, r controller.Reader, machine *machineLabels) (bool, error) {
	labels := machine.Metadata().Labels()

	for _, label := range []string{
		omni.MachineStatusLabelAvailable, omni.MachineStatusLabelReadyToUse, omni.MachineStatusLabelReportingEvents,
	} {
		if _, ok := labels.Get(label); !ok {
			return false, nil
		}
	}

	request, _ := labels.Get(omni.LabelMachineRequest)
	_, ok, err := running[*infra.MachineRequest](ctx, r, request)

	if err != nil || !ok || machine.Metadata().Phase() != resource.PhaseRunning {
		return false, err
	}

	_, taken, err := find[*omni.MachineSetNode](ctx, r, machine.Metadata().ID())

	return !taken, err
}

// shrink takes nodes out of a set: disconnected ones first, then the oldest. Nodes that are on their way out count.
func shrink(ctx context.Context, r controller.QRuntime, nodes []*omni.MachineSetNode, machines []*machineLabels, n int) error {
	connected := map[resource.ID]int{}

	for _, machine := range machines {
		if _, ok := machine.Metadata().Labels().Get(omni.MachineStatusLabelConnected); ok {
			connected[machine.Metadata().ID()] = 1
		}
	}

	slices.SortStableFunc(nodes, func(a, b *omni.MachineSetNode) int {
		return cmp.Or(
			cmp.Compare(b.Metadata().Phase(), a.Metadata().Phase()),
			cmp.Compare(connected[a.Metadata().ID()], connected[b.Metadata().ID()]),
			a.Metadata().Created().Compare(b.Metadata().Created()),
		)
	})

	for _, node := range nodes[:n] {
		if _, err := remove(ctx, r, node.Metadata(), ""); err != nil {
			return err
		}
	}

	return nil
}

// admit makes the cluster machine of a node.
func admit(ctx context.Context, r controller.QRuntime, node *omni.MachineSetNode) error {
	return ignoreRace(r.Modify(ctx, omni.NewClusterMachine(node.Metadata().ID()), func(res resource.Resource) error {
		for _, label := range clusterLabels {
			if value, ok := node.Metadata().Labels().Get(label); ok {
				res.Metadata().Labels().Set(label, value)
			}
		}

		return nil
	}))
}

// resetNode resets a machine that leaves its cluster, and waits for it as long as it takes. Only a machine that leaves
// Omni as well, or that an operator gives up, is not waited for.
func resetNode(ctx context.Context, r controller.QRuntime, id resource.ID, machines Machines) (bool, error) {
	machine, ok, err := running[*omni.Machine](ctx, r, id)
	if err != nil || !ok {
		return err == nil, err
	}

	if _, ok, err = running[*omni.MachineStatus](ctx, r, id); err != nil || !ok {
		return err == nil, err
	}

	if _, ok, err = find[*omni.NodeForceDestroyRequest](ctx, r, id); err != nil || ok {
		return err == nil, err
	}

	return command(ctx, machines, machine.TypedSpec().Value.ManagementAddress, talosapi.CommandReset, ""), nil
}

// toMachineAt maps a tunnel to the cluster machine that has its address.
func toMachineAt(
	ctx context.Context, _ *zap.Logger, r controller.QRuntime, ptr controller.ReducedResourceMetadata,
) ([]resource.Pointer, error) {
	machines, err := labelled[*omni.Machine](ctx, r, omni.MachineAddressLabel, ptr.ID())
	if err != nil {
		return nil, err
	}

	var found []resource.Pointer
	for _, machine := range machines {
		found = append(found, omni.NewClusterMachine(machine.Metadata().ID()).Metadata())
	}

	return found, nil
}
