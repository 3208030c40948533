package control

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/controller"
	"github.com/cosi-project/runtime/pkg/controller/generic/qtransform"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/system"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// machineLabels is where LabelsExtractor keeps the labels of a MachineStatus.
type machineLabels = system.ResourceLabels[*omni.MachineStatus]

// machineLabelsInput names machineLabels where only the definition is looked at, without deriving the type each time.
type machineLabelsInput struct{ *machineLabels }

// ResourceDefinition implements meta.ResourceDefinitionProvider.
func (machineLabelsInput) ResourceDefinition() meta.ResourceDefinitionSpec {
	return definitionOf[*machineLabels]()
}

const labelsExtractor = "LabelsExtractor[" + omni.MachineStatusType + "]"

// machineControllers follow Machines up to their MachineStatus.
func machineControllers(opts Options) []controller.QController {
	return []controller.QController{
		snapshots(),
		machineStatuses(),
		&keeper[*omni.MachineStatus]{
			name: labelsExtractor,
			work: extractLabels,
			release: func(ctx context.Context, r controller.QRuntime, status *omni.MachineStatus) (bool, error) {
				return remove(ctx, r, pointerTo[*machineLabels](status.Metadata().ID()), labelsExtractor)
			},
			mapped:  []mapping{on[*machineLabels](toSameID[*omni.MachineStatus]())},
			outputs: []controller.Output{shares[*machineLabels]()},
		},
		newResetter(opts),
		&keeper[*omni.Machine]{
			name:    "MachineCleanupController",
			release: dropNode,
			mapped:  []mapping{on[*omni.MachineSetNode](toSameID[*omni.Machine]())},
			outputs: []controller.Output{shares[*omni.MachineSetNode]()},
		},
		&keeper[*omni.Machine]{name: "MachineJoinConfigController"},
		&keeper[*omni.MachineStatus]{name: "MachineConfigExtractionController"},
		&keeper[*omni.MachineStatus]{name: "KernelArgsStatusController"},
		&keeper[*omni.MachineStatus]{name: "SchematicConfigurationController"},
		&keeper[*omni.MachineStatus]{name: "MachineUpgradeStatusController"},
		&keeper[*omni.MachineStatus]{name: "MachineConfigGenOptionsController", last: true},
	}
}

// dropNode takes a machine that is going out of its machine set.
func dropNode(ctx context.Context, r controller.QRuntime, m *omni.Machine) (bool, error) {
	return remove(ctx, r, omni.NewMachineSetNode(m.Metadata().ID(), omni.NewMachineSet("")).Metadata(), "")
}

// machineStatuses makes the MachineStatus of each Machine.
func machineStatuses() controller.QController {
	return qtransform.NewQController(qtransform.Settings[*omni.Machine, *omni.MachineStatus]{
		Name:              "MachineStatusController",
		MapMetadataFunc:   func(m *omni.Machine) *omni.MachineStatus { return omni.NewMachineStatus(m.Metadata().ID()) },
		UnmapMetadataFunc: func(s *omni.MachineStatus) *omni.Machine { return omni.NewMachine(s.Metadata().ID()) },
		TransformFunc:     fillMachineStatus,
	},
		qtransform.WithExtraMappedInput[*tunnel](toLabelled[*omni.Machine](omni.MachineAddressLabel)),
		qtransform.WithExtraMappedInput[*omni.MachineStatusSnapshot](toSameID[*omni.Machine]()),
		qtransform.WithExtraMappedInput[*infra.MachineStatus](toSameID[*omni.Machine]()),
		qtransform.WithExtraMappedInput[*omni.MachineSetNode](toSameID[*omni.Machine]()),
	)
}

func fillMachineStatus(
	ctx context.Context, r controller.Reader, _ *zap.Logger, m *omni.Machine, status *omni.MachineStatus,
) error {
	report, err := reportOf(ctx, r, m)
	if err != nil {
		return err
	}

	spec := status.TypedSpec().Value
	spec.ManagementAddress = m.TypedSpec().Value.ManagementAddress
	spec.Connected = m.TypedSpec().Value.Connected

	if report != nil {
		fillReported(spec, report)
		omni.ReconcileMachineStatusLabels(status)
	}

	labels := status.Metadata().Labels()
	for key, value := range m.Metadata().Labels().Raw() {
		if key != omni.MachineAddressLabel {
			labels.Set(key, value)
		}
	}

	if err := fillInfra(ctx, r, m, status, report); err != nil {
		return err
	}

	if err := fillCluster(ctx, r, status); err != nil {
		return err
	}

	setFlag(labels, omni.MachineStatusLabelConnected, spec.Connected)
	setFlag(labels, omni.MachineStatusLabelDisconnected, !spec.Connected)
	setFlag(labels, omni.MachineStatusLabelReportingEvents, report != nil)
	setFlag(labels, omni.MachineStatusLabelAvailable, spec.Cluster == "")

	_, static := m.Metadata().Labels().Get(omni.LabelIsManagedByStaticInfraProvider)
	off := spec.PowerState == specs.MachineStatusSpec_POWER_STATE_OFF
	setFlag(labels, omni.MachineStatusLabelReadyToUse, spec.Connected || (static && off))

	return nil
}

// fillReported copies what the machine says of itself.
func fillReported(spec *specs.MachineStatusSpec, report *talosapi.Report) {
	installed := report.Stage == talosapi.StageRunning

	spec.Maintenance = report.Stage == talosapi.StageMaintenance
	spec.TalosVersion = report.TalosVersion

	if spec.InitialTalosVersion == "" {
		spec.InitialTalosVersion = report.TalosVersion
	}

	spec.Hardware = &specs.MachineStatusSpec_HardwareStatus{Arch: report.Arch}
	if report.CPUs > 0 {
		spec.Hardware.Processors = []*specs.MachineStatusSpec_HardwareStatus_Processor{{CoreCount: uint32(report.CPUs)}}
	}

	if report.MemoryMiB > 0 {
		spec.Hardware.MemoryModules = []*specs.MachineStatusSpec_HardwareStatus_MemoryModule{{SizeMb: uint32(report.MemoryMiB)}}
	}

	for i, disk := range report.Disks {
		spec.Hardware.Blockdevices = append(spec.Hardware.Blockdevices, &specs.MachineStatusSpec_HardwareStatus_BlockDevice{
			LinuxName: "/dev/" + disk.Name, Name: disk.Name, Size: disk.Size, SystemDisk: installed && i == 0,
		})
	}

	spec.Network = &specs.MachineStatusSpec_NetworkStatus{Hostname: report.Hostname}

	if spec.SecurityState == nil {
		spec.SecurityState = &specs.SecurityState{}
	}

	if report.Schematic != "" {
		initial := spec.GetSchematic().GetInitialSchematic()
		if initial == "" {
			initial = report.Schematic
		}

		spec.Schematic = &specs.MachineStatusSpec_Schematic{FullId: report.Schematic, InitialSchematic: initial}
	}
}

// fillInfra sets the power state, and copies the labels that a provider put on its InfraMachineStatus.
func fillInfra(
	ctx context.Context, r controller.Reader, m *omni.Machine, status *omni.MachineStatus, report *talosapi.Report,
) error {
	infraStatus, ok, err := find[*infra.MachineStatus](ctx, r, m.Metadata().ID())
	if err != nil {
		return err
	}

	spec, labels := status.TypedSpec().Value, status.Metadata().Labels()
	_, static := m.Metadata().Labels().Get(omni.LabelIsManagedByStaticInfraProvider)

	switch {
	case static && ok && infraStatus.TypedSpec().Value.PowerState == specs.InfraMachineStatusSpec_POWER_STATE_OFF:
		spec.PowerState = specs.MachineStatusSpec_POWER_STATE_OFF
	case spec.Connected, static && ok && infraStatus.TypedSpec().Value.PowerState == specs.InfraMachineStatusSpec_POWER_STATE_ON:
		spec.PowerState = specs.MachineStatusSpec_POWER_STATE_ON
	case static:
		spec.PowerState = specs.MachineStatusSpec_POWER_STATE_UNKNOWN
	case report != nil && report.Stage == talosapi.StageShuttingDown:
		spec.PowerState = specs.MachineStatusSpec_POWER_STATE_OFF
	default:
		spec.PowerState = specs.MachineStatusSpec_POWER_STATE_UNSUPPORTED
	}

	for key := range labels.Raw() {
		if strings.HasPrefix(key, omni.InfraProviderLabelPrefix+"/") {
			labels.Delete(key)
		}
	}

	if !ok {
		return nil
	}

	provider, _ := infraStatus.Metadata().Labels().Get(omni.LabelInfraProviderID)

	for key, value := range infraStatus.Metadata().Labels().Raw() {
		if !strings.HasPrefix(key, omni.SystemLabelPrefix) {
			labels.Set(omni.InfraProviderLabelPrefix+"/"+provider+"/"+key, value)
		}
	}

	return nil
}

// fillCluster says which cluster the machine is in.
func fillCluster(ctx context.Context, r controller.Reader, status *omni.MachineStatus) error {
	node, ok, err := find[*omni.MachineSetNode](ctx, r, status.Metadata().ID())
	if err != nil {
		return err
	}

	spec, labels := status.TypedSpec().Value, status.Metadata().Labels()
	spec.Cluster, spec.Role = "", specs.MachineStatusSpec_NONE

	for _, label := range clusterLabels {
		labels.Delete(label)
	}

	if !ok {
		return nil
	}

	for _, label := range clusterLabels {
		if value, ok := node.Metadata().Labels().Get(label); ok {
			labels.Set(label, value)
		}
	}

	spec.Cluster, _ = labels.Get(omni.LabelCluster)
	spec.Role = specs.MachineStatusSpec_WORKER

	if _, ok := labels.Get(omni.LabelControlPlaneRole); ok {
		spec.Role = specs.MachineStatusSpec_CONTROL_PLANE
	}

	return nil
}

// clusterLabels go from a machine set to its nodes and from those to all that is about them.
var clusterLabels = []string{omni.LabelCluster, omni.LabelMachineSet, omni.LabelControlPlaneRole, omni.LabelWorkerRole}

func setFlag(labels *resource.Labels, key string, on bool) {
	if on {
		labels.Set(key, "")
	} else {
		labels.Delete(key)
	}
}

// extractLabels keeps the labels of a MachineStatus as a resource of their own.
func extractLabels(ctx context.Context, r controller.QRuntime, status *omni.MachineStatus) error {
	labels, err := newMachineLabels(status.Metadata().ID())
	if err != nil {
		return err
	}

	return ignoreRace(r.Modify(ctx, labels, func(res resource.Resource) error {
		*res.Metadata().Labels() = *status.Metadata().Labels()

		return nil
	}))
}

// newMachineLabels does what system.NewResourceLabels does, but derives the type once.
func newMachineLabels(id resource.ID) (*machineLabels, error) {
	labels, md := &machineLabels{}, pointerTo[*machineLabels](id)

	return labels, labels.UnmarshalProto(&md, nil)
}

// resetter tries to reset Talos on a machine that is taken out of Omni. It gives up after a while, as nothing depends on it.
type resetter struct {
	opts Options

	mu    sync.Mutex
	since map[resource.ID]time.Time
}

func newResetter(opts Options) controller.QController {
	t := &resetter{opts: opts, since: map[resource.ID]time.Time{}}

	return &keeper[*omni.MachineStatus]{name: "MachineTeardownController", release: t.reset}
}

const resetRetry = time.Second

func (t *resetter) reset(ctx context.Context, _ controller.QRuntime, status *omni.MachineStatus) (bool, error) {
	id := status.Metadata().ID()

	t.mu.Lock()
	if _, ok := t.since[id]; !ok {
		t.since[id] = time.Now()
	}
	left := t.opts.Timing.ResetTimeout - time.Since(t.since[id])
	t.mu.Unlock()

	if left > 0 && !command(ctx, t.opts.Machines, status.TypedSpec().Value.ManagementAddress, talosapi.CommandReset, "") {
		return false, controller.NewRequeueInterval(min(left, resetRetry))
	}

	t.mu.Lock()
	delete(t.since, id)
	t.mu.Unlock()

	return true, nil
}

// command gives a machine a command and returns whether it got it.
func command(ctx context.Context, machines Machines, address string, what talosapi.Command, value string) bool {
	if machines == nil {
		return false
	}

	if _, up := machines.Report(address); !up {
		return false
	}

	return machines.Command(ctx, address, what, value) == nil
}
