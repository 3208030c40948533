package control

import (
	"context"
	"slices"
	"time"

	"github.com/cosi-project/runtime/pkg/controller"
	"github.com/cosi-project/runtime/pkg/controller/generic/qtransform"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"go.uber.org/zap"
)

const clusterMachineRequestStatusController = "ClusterMachineRequestStatusController"

// requestControllers follow MachineRequests and what providers write about them.
func requestControllers(opts Options) []controller.QController {
	return []controller.QController{
		&keeper[*omni.MachineRequestSet]{
			name:    requestSetController,
			work:    keepSet,
			release: emptySet,
			mapped: []mapping{
				on[*infra.MachineRequest](toLabel[*omni.MachineRequestSet](omni.LabelMachineRequestSet)),
				on[*machineLabels](toLabel[*omni.MachineRequestSet](omni.LabelMachineRequestSet)),
				on[*infra.Provider](toAll[*omni.MachineRequestSet]()),
				on[*omni.MachineSetNode](qtransform.MapperNone()), // It is only read.
			},
			outputs: []controller.Output{shares[*infra.MachineRequest](), shares[*omni.MachineRequestSetStatus]()},
		},
		&keeper[*infra.MachineRequestStatus]{
			name: "MachineRequestLinkController",
			free: true,
			work: func(ctx context.Context, r controller.QRuntime, status *infra.MachineRequestStatus) error {
				return labelLink(ctx, r, status, opts.Timing.LinkRequeue)
			},
			outputs: []controller.Output{shares[*siderolink.Link]()},
		},
		&keeper[*infra.MachineRequestStatus]{
			name:    "MachineRequestStatusCleanupController",
			release: letGoOfMachine,
			mapped: []mapping{
				on[*omni.MachineSetNode](toStatusOfMachine),
				on[*omni.ClusterMachine](toStatusOfMachine),
			},
			outputs: []controller.Output{shares[*omni.MachineSetNode](), shares[*siderolink.Link]()},
		},
		clusterMachineRequestStatuses(),
		configPatches(),
	}
}

// labelLink matches a machine by the UUID that its provider reports: its link gets the name of the request. A link that is
// not there yet is looked for again after a while.
func labelLink(ctx context.Context, r controller.QRuntime, status *infra.MachineRequestStatus, requeue time.Duration) error {
	id := status.TypedSpec().Value.Id
	if id == "" {
		return nil
	}

	link, ok, err := find[*siderolink.Link](ctx, r, id)
	if err != nil {
		return err
	}

	if !ok {
		return controller.NewRequeueInterval(requeue)
	}

	if link.Metadata().Phase() != resource.PhaseRunning {
		return nil
	}

	return ignoreRace(r.Modify(ctx, siderolink.NewLink(id, nil), func(res resource.Resource) error {
		if res.Metadata().Version().Equal(resource.VersionUndefined) {
			return errNotYet // The link has gone meanwhile.
		}

		res.Metadata().Labels().Set(omni.LabelMachineRequest, status.Metadata().ID())

		if set, ok := status.Metadata().Labels().Get(omni.LabelMachineRequestSet); ok {
			res.Metadata().Labels().Set(omni.LabelMachineRequestSet, set)
		}

		return nil
	}, controller.WithModifyNoOwner()))
}

// letGoOfMachine holds the status of a request that goes away until Omni has let go of the machine: it is taken out of its
// machine set, its cluster has let it go, and its link is torn down, which nobody waits for.
func letGoOfMachine(ctx context.Context, r controller.QRuntime, status *infra.MachineRequestStatus) (bool, error) {
	id := status.TypedSpec().Value.Id
	if id == "" {
		return true, nil
	}

	node, ok, err := find[*omni.MachineSetNode](ctx, r, id)
	if err != nil {
		return false, err
	}

	if ok {
		if node.Metadata().Owner() != "" {
			return false, nil // Whoever owns it has to remove it.
		}

		if gone, err := remove(ctx, r, node.Metadata(), ""); err != nil || !gone {
			return false, err
		}
	}

	if _, ok, err = find[*omni.ClusterMachine](ctx, r, id); err != nil || ok {
		return false, err
	}

	_, err = r.Teardown(ctx, siderolink.NewLink(id, nil).Metadata(), controller.WithOwner(""))

	return true, ignoreNotFound(err)
}

// toStatusOfMachine maps a change of something that has a machine's UUID as id to the status of the machine's request.
func toStatusOfMachine(
	ctx context.Context, _ *zap.Logger, r controller.QRuntime, ptr controller.ReducedResourceMetadata,
) ([]resource.Pointer, error) {
	statuses, err := all[*infra.MachineRequestStatus](ctx, r)
	if err != nil {
		return nil, err
	}

	return pointers(slices.DeleteFunc(statuses, func(status *infra.MachineRequestStatus) bool {
		return status.TypedSpec().Value.Id != ptr.ID()
	})), nil
}

// clusterMachineRequestStatuses says how far the requests of a machine set are. It holds every request until all others
// have let go.
func clusterMachineRequestStatuses() controller.QController {
	return qtransform.NewQController(qtransform.Settings[*infra.MachineRequest, *omni.ClusterMachineRequestStatus]{
		Name: clusterMachineRequestStatusController,
		MapMetadataFunc: func(request *infra.MachineRequest) *omni.ClusterMachineRequestStatus {
			return omni.NewClusterMachineRequestStatus(request.Metadata().ID())
		},
		UnmapMetadataFunc: func(status *omni.ClusterMachineRequestStatus) *infra.MachineRequest {
			return infra.NewMachineRequest(status.Metadata().ID())
		},
		TransformFunc: fillRequestStatus,
	},
		qtransform.WithExtraMappedInput[*infra.MachineRequestStatus](toSameID[*infra.MachineRequest]()),
		qtransform.WithExtraMappedInput[*omni.MachineSet](toLabelled[*infra.MachineRequest](omni.LabelMachineRequestSet)),
		qtransform.WithExtraMappedInput[machineLabelsInput](toLabel[*infra.MachineRequest](omni.LabelMachineRequest)),
		qtransform.WithIgnoreTeardownUntil(),
	)
}

func fillRequestStatus(
	ctx context.Context, r controller.Reader, _ *zap.Logger, request *infra.MachineRequest, out *omni.ClusterMachineRequestStatus,
) error {
	setID, _ := request.Metadata().Labels().Get(omni.LabelMachineRequestSet)

	set, ok, err := find[*omni.MachineSet](ctx, r, setID)
	if err != nil {
		return err
	}

	if !ok {
		return errNotYet
	}

	labels := out.Metadata().Labels()
	labels.Set(omni.LabelMachineSet, setID)

	for _, label := range clusterLabels {
		if value, ok := set.Metadata().Labels().Get(label); ok {
			labels.Set(label, value)
		}
	}

	spec := out.TypedSpec().Value
	spec.ProviderId, _ = request.Metadata().Labels().Get(omni.LabelInfraProviderID)

	status, ok, err := find[*infra.MachineRequestStatus](ctx, r, request.Metadata().ID())
	if err != nil {
		return err
	}

	spec.MachineUuid, spec.Error = "", ""

	if !ok {
		spec.Stage = specs.ClusterMachineRequestStatusSpec_PENDING
		spec.Status = "Waiting for the infra provider to start provision"
	} else {
		spec.Error = status.TypedSpec().Value.Error
		spec.Status = status.TypedSpec().Value.Status

		switch status.TypedSpec().Value.Stage {
		case specs.MachineRequestStatusSpec_PROVISIONED:
			spec.Stage = specs.ClusterMachineRequestStatusSpec_PROVISIONED
			spec.Status = "Waiting for the machine to join Omni"
		case specs.MachineRequestStatusSpec_FAILED:
			spec.Stage = specs.ClusterMachineRequestStatusSpec_FAILED
		default:
			spec.Stage = specs.ClusterMachineRequestStatusSpec_PROVISIONING
		}
	}

	if request.Metadata().Phase() != resource.PhaseRunning {
		spec.Stage = specs.ClusterMachineRequestStatusSpec_DEPROVISIONING
	}

	machines, err := labelled[*machineLabels](ctx, r, omni.LabelMachineRequest, request.Metadata().ID())
	if err != nil {
		return err
	}

	inUse := false

	for _, m := range machines {
		spec.MachineUuid = m.Metadata().ID()
		_, inUse = m.Metadata().Labels().Get(omni.LabelCluster)
	}

	setFlag(labels, omni.LabelMachineRequestInUse, inUse)

	return nil
}

// configPatches makes the patch that a provider asked for, once it is known for which machine.
func configPatches() controller.QController {
	return qtransform.NewQController(qtransform.Settings[*infra.ConfigPatchRequest, *omni.ConfigPatch]{
		Name: "ConfigPatchRequestController",
		MapMetadataFunc: func(request *infra.ConfigPatchRequest) *omni.ConfigPatch {
			return omni.NewConfigPatch(request.Metadata().ID())
		},
		UnmapMetadataFunc: func(patch *omni.ConfigPatch) *infra.ConfigPatchRequest {
			return infra.NewConfigPatchRequest(patch.Metadata().ID())
		},
		TransformFunc: fillConfigPatch,
	},
		qtransform.WithExtraMappedInput[*infra.MachineRequestStatus](toLabelled[*infra.ConfigPatchRequest](omni.LabelMachineRequest)),
		qtransform.WithOutputKind(controller.OutputShared),
	)
}

func fillConfigPatch(
	ctx context.Context, r controller.Reader, _ *zap.Logger, request *infra.ConfigPatchRequest, patch *omni.ConfigPatch,
) error {
	id, _ := request.Metadata().Labels().Get(omni.LabelMachineRequest)

	status, ok, err := find[*infra.MachineRequestStatus](ctx, r, id)
	if err != nil {
		return err
	}

	if !ok {
		return errNoOutput
	}

	if status.TypedSpec().Value.Id == "" {
		return errNotYet
	}

	labels := patch.Metadata().Labels()
	for key, value := range request.Metadata().Labels().Raw() {
		labels.Set(key, value)
	}

	labels.Set(omni.LabelSystemPatch, "")
	labels.Set(omni.LabelMachine, status.TypedSpec().Value.Id)

	patch.TypedSpec().Value = request.TypedSpec().Value.CloneVT()

	return nil
}
