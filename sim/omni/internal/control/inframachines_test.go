package control_test

import (
	"testing"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

func TestStaticProviderIsToldWhatIsWanted(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		status := infra.NewProviderStatus(cloud)
		status.Metadata().Labels().Set(omni.LabelIsStaticInfraProvider, "")
		w.create(status)

		address := w.link(machineID, map[string]string{omni.LabelInfraProviderID: cloud})
		w.settle()

		machine := get[*infra.Machine](w, machineID)
		require.Equal(t, map[string]string{omni.LabelInfraProviderID: cloud, omni.LabelMachinePendingAccept: ""},
			machine.Metadata().Labels().Raw())
		require.Equal(t, specs.InfraMachineSpec_POWER_STATE_ON, machine.TypedSpec().Value.PreferredPowerState)

		w.machines.set(address, true, &talosapi.Report{Stage: talosapi.StageMaintenance})

		config := omni.NewInfraMachineConfig(machineID)
		config.TypedSpec().Value.AcceptanceStatus = specs.InfraMachineConfigSpec_ACCEPTED
		config.TypedSpec().Value.RequestedRebootId = "reboot-1"
		config.TypedSpec().Value.PowerOffRequestId = "off-1"
		w.create(config)
		w.settle()

		machine = get[*infra.Machine](w, machineID)
		require.NotContains(t, machine.Metadata().Labels().Raw(), omni.LabelMachinePendingAccept)
		require.Equal(t, specs.InfraMachineSpec_POWER_STATE_OFF, machine.TypedSpec().Value.PreferredPowerState)
		require.Equal(t, "reboot-1", machine.TypedSpec().Value.RequestedRebootId)
		require.Empty(t, machine.TypedSpec().Value.PowerOffRequestId)

		cluster := omni.NewCluster("demo")
		cluster.TypedSpec().Value.TalosVersion = "1.13.5"
		w.create(cluster)

		set := omni.NewMachineSet("demo-workers")
		set.Metadata().Labels().Set(omni.LabelCluster, "demo")
		w.create(omni.NewMachineSetNode(machineID, set))
		w.settle()

		machine = get[*infra.Machine](w, machineID)
		require.Equal(t, "demo", machine.Metadata().Labels().Raw()[omni.LabelCluster])
		require.Equal(t, "1.13.5", machine.TypedSpec().Value.ClusterTalosVersion)
		require.Equal(t, "off-1", machine.TypedSpec().Value.PowerOffRequestId)
		require.Empty(t, machine.TypedSpec().Value.WipeId)

		w.teardown(omni.NewMachineSetNode(machineID, set).Metadata(), "")
		w.settle()
		require.NoError(t, w.st.Destroy(w.ctx, omni.NewMachineSetNode(machineID, set).Metadata()))
		w.settle()

		machine = get[*infra.Machine](w, machineID)
		require.NotContains(t, machine.Metadata().Labels().Raw(), omni.LabelCluster)
		require.NotEmpty(t, machine.TypedSpec().Value.WipeId)
		require.Empty(t, machine.TypedSpec().Value.PowerOffRequestId)

		// The provider holds the machine until it is done with it.
		require.NoError(t, w.st.AddFinalizer(w.ctx, machine.Metadata(), cloud))
		w.teardown(siderolink.NewLink(machineID, nil).Metadata(), "")
		time.Sleep(time.Minute)
		require.True(t, has[*siderolink.Link](w, machineID))

		require.NoError(t, w.st.RemoveFinalizer(w.ctx, machine.Metadata(), cloud))
		w.settle()
		require.False(t, has[*siderolink.Link](w, machineID))
		require.False(t, has[*infra.Machine](w, machineID))
	})
}

func TestDynamicProviderHasNoInfraMachines(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide(byToken)
		w.loneRequest("lone")
		w.settle()
		w.join(machineID, "lone")
		w.settle()

		require.True(t, has[*omni.Machine](w, machineID))
		require.Empty(t, list[*infra.Machine](w))
		require.False(t, get[*siderolink.Link](w, machineID).Metadata().Finalizers().Has("InfraMachineController"))
	})
}
