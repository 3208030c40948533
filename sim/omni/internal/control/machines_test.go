package control_test

import (
	"testing"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/siderolabs/omni/client/pkg/omni/resources/system"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/omni/internal/control"
	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// joined makes a machine of its own, without a provider, with its tunnel up, and returns its address.
func (w *world) joined(report *talosapi.Report) string {
	w.t.Helper()

	address := w.link(machineID, nil)
	w.machines.set(address, true, report)
	w.settle()

	return address
}

func (w *world) labels() map[string]string {
	w.t.Helper()

	return get[*omni.MachineStatus](w, machineID).Metadata().Labels().Raw()
}

func TestMachineOfUnknownRequestIsNoMachine(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide(byToken)
		w.join(machineID, "nonesuch")
		w.settle()
		require.False(t, has[*omni.Machine](w, machineID))

		w.loneRequest("nonesuch")
		w.settle()
		require.Equal(t, machineID, w.onlyStatus().TypedSpec().Value.Id)
		require.True(t, has[*omni.Machine](w, machineID))
	})
}

func TestMachineOfUnreportedProviderIsNoMachine(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.loneRequest("lone")
		w.reported("lone", machineID)
		w.join(machineID, "lone")
		w.settle()
		require.False(t, has[*omni.Machine](w, machineID))

		w.create(infra.NewProviderStatus(cloud))
		w.settle()
		require.True(t, has[*omni.Machine](w, machineID))
	})
}

func TestMachineOfStaticProviderNeedsNoRequest(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		status := infra.NewProviderStatus(cloud)
		status.Metadata().Labels().Set(omni.LabelIsStaticInfraProvider, "")
		w.create(status)
		w.link(machineID, map[string]string{omni.LabelInfraProviderID: cloud})
		w.settle()
		require.Contains(t, get[*omni.Machine](w, machineID).Metadata().Labels().Raw(), omni.LabelIsManagedByStaticInfraProvider)
	})
}

func TestLinkStatusFollowsItsLink(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		address := w.link(machineID, nil)
		w.settle()

		id := machineID + "/" + siderolink.LinkType
		require.Equal(t, address+"/64", get[*siderolink.LinkStatus](w, id).TypedSpec().Value.NodeSubnet)

		w.teardown(siderolink.NewLink(machineID, nil).Metadata(), "")
		w.settle()
		require.False(t, has[*siderolink.LinkStatus](w, id))
	})
}

func TestWhatAMachineReportsIsInItsStatus(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		address := w.joined(&talosapi.Report{
			UUID: machineID, Stage: talosapi.StageMaintenance, TalosVersion: "v1.13.5", Schematic: "abc", Hostname: "vm-1",
			Arch: "amd64", CPUs: 2, MemoryMiB: 4096, Disks: []talosapi.Disk{{Name: "vda", Size: 20e9}},
		})

		spec := get[*omni.MachineStatus](w, machineID).TypedSpec().Value
		require.True(t, spec.Maintenance)
		require.Equal(t, "v1.13.5", spec.TalosVersion)
		require.Equal(t, "abc", spec.Schematic.FullId)
		require.Equal(t, "vm-1", spec.Network.Hostname)
		require.Equal(t, address, spec.ManagementAddress)
		require.Equal(t, specs.MachineStatusSpec_POWER_STATE_ON, spec.PowerState)

		labels := w.labels()
		for key, want := range map[string]string{
			omni.MachineStatusLabelArch: "amd64", omni.MachineStatusLabelCores: "2", omni.MachineStatusLabelMem: "4GiB",
			omni.MachineStatusLabelStorage: "20GB", omni.MachineStatusLabelTalosVersion: "v1.13.5",
			omni.MachineStatusLabelReportingEvents: "", omni.MachineStatusLabelConnected: "",
			omni.MachineStatusLabelReadyToUse: "", omni.MachineStatusLabelAvailable: "",
		} {
			require.Equal(t, want, labels[key], key)
		}

		require.NotContains(t, labels, omni.MachineStatusLabelInstalled)
		require.NotContains(t, labels, omni.MachineAddressLabel)
		require.Equal(t, machine.MachineStatusEvent_MAINTENANCE,
			get[*omni.MachineStatusSnapshot](w, machineID).TypedSpec().Value.MachineStatus.Stage)

		w.machines.set(address, true, &talosapi.Report{Stage: talosapi.StageRunning, Disks: []talosapi.Disk{{Name: "vda"}}})
		w.settle()
		require.Contains(t, w.labels(), omni.MachineStatusLabelInstalled)
		require.False(t, get[*omni.MachineStatus](w, machineID).TypedSpec().Value.Maintenance)
		require.Equal(t, w.labels(), get[*system.ResourceLabels[*omni.MachineStatus]](w, machineID).Metadata().Labels().Raw())
	})
}

func TestMachineWithoutTunnelIsDisconnected(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.link(machineID, nil)
		time.Sleep(59 * time.Second)
		require.Contains(t, w.labels(), omni.MachineStatusLabelConnected)

		time.Sleep(2 * time.Second)
		require.Contains(t, w.labels(), omni.MachineStatusLabelDisconnected)
		require.NotContains(t, w.labels(), omni.MachineStatusLabelReadyToUse)
		require.Equal(t, specs.MachineStatusSpec_POWER_STATE_UNSUPPORTED,
			get[*omni.MachineStatus](w, machineID).TypedSpec().Value.PowerState)
	})
}

func TestMachineIsDisconnectedLongAfterItsTunnelEnded(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		address := w.joined(&talosapi.Report{Stage: talosapi.StageRunning})
		time.Sleep(100 * time.Second)
		w.machines.set(address, false, nil)

		time.Sleep(274 * time.Second)
		require.Contains(t, w.labels(), omni.MachineStatusLabelConnected)

		time.Sleep(31 * time.Second)
		require.Contains(t, w.labels(), omni.MachineStatusLabelDisconnected)

		w.machines.set(address, true, nil)
		time.Sleep(30 * time.Second)
		w.settle()
		require.Contains(t, w.labels(), omni.MachineStatusLabelConnected)
	})
}

func TestVanishedMachineKeepsItsRequest(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide(byToken)
		w.requestSet("pool", 1)
		w.settle()

		request := w.ids()[0]
		address := w.join(machineID, request)
		w.machines.set(address, true, &talosapi.Report{Stage: talosapi.StageRunning})
		w.settle()
		w.machines.set(address, false, nil)
		time.Sleep(time.Hour)

		require.Equal(t, []string{request}, w.ids())
		require.Contains(t, w.labels(), omni.MachineStatusLabelDisconnected)
	})
}

func TestMachineThatShutDownIsPoweredOff(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		address := w.joined(&talosapi.Report{Stage: talosapi.StageShuttingDown})
		w.machines.set(address, false, nil)
		time.Sleep(10 * time.Minute)

		require.Equal(t, specs.MachineStatusSpec_POWER_STATE_OFF, get[*omni.MachineStatus](w, machineID).TypedSpec().Value.PowerState)
		require.Equal(t, specs.MachineStatusSnapshotSpec_POWER_STAGE_POWERED_OFF,
			get[*omni.MachineStatusSnapshot](w, machineID).TypedSpec().Value.PowerStage)
	})
}

func TestInfraMachineStatusShowsOnTheMachine(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide(byToken)
		w.loneRequest("lone")
		w.settle()
		w.join(machineID, "lone")
		time.Sleep(2 * time.Minute)

		status := infra.NewMachineStatus(machineID)
		status.Metadata().Labels().Set(omni.LabelInfraProviderID, cloud)
		status.Metadata().Labels().Set("rack", "r1")
		status.TypedSpec().Value.PowerState = specs.InfraMachineStatusSpec_POWER_STATE_OFF
		w.create(status)
		w.settle()

		require.Equal(t, "r1", w.labels()["omni.sidero.dev/infra-provider/fakecloud/rack"])
		require.Equal(t, specs.MachineStatusSnapshotSpec_POWER_STAGE_POWERED_OFF,
			get[*omni.MachineStatusSnapshot](w, machineID).TypedSpec().Value.PowerStage)
		require.Equal(t, specs.MachineStatusSpec_POWER_STATE_UNSUPPORTED,
			get[*omni.MachineStatus](w, machineID).TypedSpec().Value.PowerState)

		w.teardown(siderolink.NewLink(machineID, nil).Metadata(), "")
		time.Sleep(11 * time.Second)
		require.True(t, has[*infra.MachineStatus](w, machineID), "Omni does not remove it")

		require.NoError(t, w.st.Destroy(w.ctx, status.Metadata()))
		w.join(machineID, "lone")
		w.settle()
		require.NotContains(t, w.labels(), "omni.sidero.dev/infra-provider/fakecloud/rack")
	})
}

func TestReachableMachineIsResetAtOnce(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		address := w.joined(&talosapi.Report{Stage: talosapi.StageRunning})
		w.teardown(siderolink.NewLink(machineID, nil).Metadata(), "")
		w.settle()

		require.False(t, has[*siderolink.Link](w, machineID))
		require.Equal(t, []talosapi.Message{{Command: talosapi.CommandReset}}, w.machines.commands(address))
	})
}

func TestResetIsGivenUp(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.machines.setDeaf(true)
		w.joined(&talosapi.Report{Stage: talosapi.StageRunning})
		w.teardown(siderolink.NewLink(machineID, nil).Metadata(), "")
		time.Sleep(2 * time.Second)
		require.True(t, has[*siderolink.Link](w, machineID))
		time.Sleep(2 * time.Second)
		require.False(t, has[*siderolink.Link](w, machineID))
	}, func(opts *control.Options) { opts.Timing.ResetTimeout = 3 * time.Second })
}

func TestOmniForgetsHowARemovedMachineJoined(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.create(siderolink.NewNodeUniqueToken(machineID))
		w.create(siderolink.NewJoinTokenUsage(machineID))
		w.joined(&talosapi.Report{Stage: talosapi.StageRunning})
		w.teardown(siderolink.NewLink(machineID, nil).Metadata(), "")
		w.settle()

		require.False(t, has[*siderolink.NodeUniqueToken](w, machineID))
		require.False(t, has[*siderolink.JoinTokenUsage](w, machineID))
	})
}
