package control_test

import (
	"testing"
	"time"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/require"
)

func TestSetMakesRequestsOfItsName(t *testing.T) {
	simulate(t, func(w *world) {
		w.requestSet("pool", 2)
		w.settle()

		requests := list[*infra.MachineRequest](w)
		require.Len(t, requests, 2)

		for _, request := range requests {
			require.Regexp(t, `^pool-[a-z0-9]{6}$`, request.Metadata().ID())
			require.Empty(t, request.Metadata().Owner())
			require.Equal(t, map[string]string{
				omni.LabelInfraProviderID: cloud, omni.LabelMachineRequestSet: "pool",
			}, request.Metadata().Labels().Raw())
			require.Equal(t, "1.13.5", request.TypedSpec().Value.TalosVersion)
			require.Equal(t, "size: small", request.TypedSpec().Value.ProviderData)
		}
	})
}

func TestMachineJoinsByUUID(t *testing.T) {
	simulate(t, func(w *world) {
		w.provide()
		w.requestSet("pool", 1)
		w.settle()

		request := list[*infra.MachineRequest](w)[0].Metadata().ID()
		id := get[*infra.MachineRequestStatus](w, request).TypedSpec().Value.Id
		w.link(id, map[string]string{omni.LabelInfraProviderID: cloud})
		w.settle()

		require.NotContains(t, get[*infra.MachineRegistration](w, id).Metadata().Labels().Raw(), omni.LabelMachineRequest)
		require.False(t, has[*omni.Machine](w, id))

		time.Sleep(5 * time.Second)
		w.settle()

		require.Equal(t, request, get[*siderolink.Link](w, id).Metadata().Labels().Raw()[omni.LabelMachineRequest])
		require.Equal(t, request, get[*infra.MachineRegistration](w, id).Metadata().Labels().Raw()[omni.LabelMachineRequest])
		require.Equal(t, request, get[*omni.Machine](w, id).Metadata().Labels().Raw()[omni.LabelMachineRequest])
		require.Equal(t, "pool", get[*omni.MachineStatus](w, id).Metadata().Labels().Raw()[omni.LabelMachineRequestSet])
	})
}
