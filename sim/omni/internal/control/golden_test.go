package control_test

import (
	"testing"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/omni/internal/control"
	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

var (
	requestKinds = []string{
		"MachineRequestSets", "MachineRequests", "MachineRequestStatuses", "ConfigPatchRequests", "ConfigPatches",
	}
	machineKinds  = append([]string{"Links", "Machines", "MachineStatuses", "InfraMachineRegistrations"}, requestKinds...)
	providerKinds = []string{"InfraProviders", "ProviderJoinConfigs", "InfraProviderCombinedStatuses", "InfraProviderStatuses"}
)

func patching(s *script) { s.patch = true }

func byToken(s *script) { s.byToken = true }

func TestHistoryOfRequestIsThatOfOmni(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide(patching)
		w.settle()
		w.history.take()

		w.requestSet("pool", 1)
		w.settle()
		w.requireGolden("create", w.history.take(requestKinds...))

		edit(w, "pool", func(set *omni.MachineRequestSet) { set.TypedSpec().Value.MachineCount = 0 })
		w.settle()
		w.requireGolden("scale-to-zero", w.history.take(machineKinds...))
	})
}

func TestHistoryOfMachineByUUIDIsThatOfOmni(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide(patching)
		time.Sleep(86 * time.Second)
		w.requestSet("pool", 1)

		// The link is made four seconds before the next look for it, and two before the next poll.
		time.Sleep(2 * time.Second)
		w.history.take()

		id := w.onlyStatus().TypedSpec().Value.Id
		w.link(id, map[string]string{omni.LabelInfraProviderID: cloud})
		time.Sleep(5 * time.Second)
		w.requireGolden("join-by-uuid", w.history.take(machineKinds...))

		w.teardown(siderolink.NewLink(id, nil).Metadata(), "")
		time.Sleep(11 * time.Second)
		w.requireGolden("link-removed", w.history.take(machineKinds...))
	})
}

func TestHistoryOfMachineByTokenIsThatOfOmni(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide(byToken)
		w.requestSet("enc", 1)
		w.settle()
		w.history.take()

		request := list[*infra.MachineRequest](w)[0].Metadata().ID()
		w.link("d675e391-0be4-449e-825b-9f15d78c89e9", map[string]string{
			omni.LabelInfraProviderID: cloud, omni.LabelMachineRequest: request,
		})
		w.settle()
		w.requireGolden("join-by-token", w.history.take(machineKinds...))
	})
}

func TestHistoryOfStatusTornDownByProviderIsThatOfOmni(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide(patching)
		w.requestSet("pool", 1)
		w.settle()

		status := w.onlyStatus()
		w.join(status.TypedSpec().Value.Id, status.Metadata().ID())
		time.Sleep(6 * time.Second)

		edit(w, status.Metadata().ID(), func(s *infra.MachineRequestStatus) {
			s.TypedSpec().Value.Stage = specs.MachineRequestStatusSpec_FAILED
			s.TypedSpec().Value.Error = "the machine has vanished"
		})
		w.history.take()
		w.teardown(status.Metadata(), provisioner)
		time.Sleep(11 * time.Second)
		w.requireGolden("status-torn-down", w.history.take(machineKinds...))
	})
}

func TestHistoryOfLoneLinkRemovedIsThatOfOmni(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide()
		w.loneRequest("lone-1")
		w.settle()

		id := w.onlyStatus().TypedSpec().Value.Id
		address := w.join(id, "lone-1")
		w.machines.setDeaf(true)
		w.machines.set(address, true, &talosapi.Report{UUID: id, Stage: talosapi.StageBooting})

		status := infra.NewMachineStatus(id)
		status.Metadata().Labels().Set(omni.LabelInfraProviderID, cloud)
		status.Metadata().Labels().Set("rack", "r1")
		w.create(status)
		w.settle()
		w.history.take()

		w.teardown(siderolink.NewLink(id, nil).Metadata(), "")
		time.Sleep(11 * time.Second)
		w.requireGolden("lone-link-removed", w.history.take(machineKinds...))

		require.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.onlyStatus().TypedSpec().Value.Stage)
		require.Len(t, list[*infra.MachineRequest](w), 1)
	})
}

func TestHistoryOfClusterIsThatOfOmni(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide()
		w.history.take()
		w.cluster("demo", 1, 2)
		w.settle()
		w.requireGolden("cluster", w.history.take(append([]string{"ClusterMachineRequestStatuses"}, requestKinds...)...))

		for _, request := range list[*infra.MachineRequest](w) {
			require.Equal(t, []string{"console=ttyS0"}, request.TypedSpec().Value.KernelArgs)
			require.Equal(t, "1.13.5", request.TypedSpec().Value.TalosVersion)
		}
	})
}

func TestHistoryOfProviderIsThatOfOmni(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide(byToken)
		w.requestSet("pool", 0)
		w.requestSet("enc", 1)
		w.settle()
		w.join("d675e391-0be4-449e-825b-9f15d78c89e9", w.onlyStatus().Metadata().ID())
		time.Sleep(60 * time.Second) // The link had no tunnel, and is found disconnected.
		w.settle()
		w.history.take()

		third := infra.NewProvider("thirdcloud")
		w.create(third)
		w.settle()
		w.requireGolden("provider-created", w.history.take(providerKinds...))

		w.teardown(third.Metadata(), "")
		time.Sleep(time.Millisecond)

		for has[*infra.Provider](w, "thirdcloud") && get[*infra.Provider](w, "thirdcloud").Metadata().Finalizers().Empty() {
			require.NoError(t, w.st.Destroy(w.ctx, third.Metadata()))
		}

		time.Sleep(11 * time.Second)
		w.requireGolden("provider-removed", w.history.take(append(machineKinds, providerKinds...)...))
	}, func(opts *control.Options) { opts.ProviderRemovalTakesAllSets = true })
}
