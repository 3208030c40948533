package control

import (
	"context"

	"github.com/cosi-project/runtime/pkg/controller"
	"github.com/cosi-project/runtime/pkg/controller/generic/qtransform"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

var stages = map[talosapi.Stage]machine.MachineStatusEvent_MachineStage{
	talosapi.StageBooting:      machine.MachineStatusEvent_BOOTING,
	talosapi.StageMaintenance:  machine.MachineStatusEvent_MAINTENANCE,
	talosapi.StageRunning:      machine.MachineStatusEvent_RUNNING,
	talosapi.StageRebooting:    machine.MachineStatusEvent_REBOOTING,
	talosapi.StageShuttingDown: machine.MachineStatusEvent_SHUTTING_DOWN,
	talosapi.StageResetting:    machine.MachineStatusEvent_RESETTING,
}

// reportOf returns the last report of a machine, nil if there was none.
func reportOf(ctx context.Context, r controller.Reader, m *omni.Machine) (*talosapi.Report, error) {
	t, ok, err := find[*tunnel](ctx, r, m.TypedSpec().Value.ManagementAddress)
	if err != nil || !ok {
		return nil, err
	}

	return t.TypedSpec().Report, nil
}

// snapshots keeps the last stage and the power stage of each machine.
func snapshots() controller.QController {
	return qtransform.NewQController(qtransform.Settings[*omni.Machine, *omni.MachineStatusSnapshot]{
		Name: "MachineStatusSnapshotController",
		MapMetadataFunc: func(m *omni.Machine) *omni.MachineStatusSnapshot {
			return omni.NewMachineStatusSnapshot(m.Metadata().ID())
		},
		UnmapMetadataFunc: func(snapshot *omni.MachineStatusSnapshot) *omni.Machine {
			return omni.NewMachine(snapshot.Metadata().ID())
		},
		TransformFunc: fillSnapshot,
	},
		qtransform.WithExtraMappedInput[*tunnel](toLabelled[*omni.Machine](omni.MachineAddressLabel)),
		qtransform.WithExtraMappedInput[*infra.MachineStatus](toSameID[*omni.Machine]()),
		qtransform.WithExtraMappedInput[*omni.ClusterMachine](toSameID[*omni.Machine]()),
	)
}

func fillSnapshot(
	ctx context.Context, r controller.Reader, _ *zap.Logger, m *omni.Machine, snapshot *omni.MachineStatusSnapshot,
) error {
	report, err := reportOf(ctx, r, m)
	if err != nil {
		return err
	}

	infraStatus, ok, err := find[*infra.MachineStatus](ctx, r, m.Metadata().ID())
	if err != nil {
		return err
	}

	off := ok && infraStatus.TypedSpec().Value.PowerState == specs.InfraMachineStatusSpec_POWER_STATE_OFF
	if report == nil && !off {
		return errNotYet
	}

	spec := snapshot.TypedSpec().Value
	spec.PowerStage = specs.MachineStatusSnapshotSpec_POWER_STAGE_NONE

	if report != nil {
		spec.MachineStatus = &machine.MachineStatusEvent{Stage: stages[report.Stage]}

		if report.Stage == talosapi.StageShuttingDown && !m.TypedSpec().Value.Connected {
			spec.PowerStage = specs.MachineStatusSnapshotSpec_POWER_STAGE_POWERED_OFF
		}
	}

	if !off {
		return nil
	}

	spec.PowerStage = specs.MachineStatusSnapshotSpec_POWER_STAGE_POWERED_OFF

	if infraStatus.TypedSpec().Value.LastPowerOffId == "" {
		_, inCluster, err := find[*omni.ClusterMachine](ctx, r, m.Metadata().ID())
		if err != nil {
			return err
		}

		if inCluster {
			spec.PowerStage = specs.MachineStatusSnapshotSpec_POWER_STAGE_POWERING_ON
		}
	}

	return nil
}
