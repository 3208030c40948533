package control_test

import (
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/require"
)

const machineID = "9204b267-ab33-4540-8560-5edbff05a540"

// reported writes the status of a request as its provider does.
func (w *world) reported(request, id string, labels ...string) *infra.MachineRequestStatus {
	w.t.Helper()

	status := infra.NewMachineRequestStatus(request)
	status.Metadata().Labels().Set(omni.LabelInfraProviderID, cloud)

	for i := 0; i < len(labels); i += 2 {
		status.Metadata().Labels().Set(labels[i], labels[i+1])
	}

	status.TypedSpec().Value.Id = id
	w.create(status, state.WithCreateOwner(provisioner))

	return status
}

func TestLinkIsLookedForEveryFiveSeconds(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.loneRequest("lone")
		w.reported("lone", machineID, omni.LabelMachineRequestSet, "pool")
		time.Sleep(3 * time.Second)
		w.link(machineID, map[string]string{omni.LabelInfraProviderID: cloud})
		w.settle()
		require.NotContains(t, get[*siderolink.Link](w, machineID).Metadata().Labels().Raw(), omni.LabelMachineRequest)

		time.Sleep(2 * time.Second)
		w.settle()

		labels := get[*siderolink.Link](w, machineID).Metadata().Labels().Raw()
		require.Equal(t, "lone", labels[omni.LabelMachineRequest])
		require.Equal(t, "pool", labels[omni.LabelMachineRequestSet])
		require.Empty(t, get[*siderolink.Link](w, machineID).Metadata().Owner())
	})
}

func TestStatusWithoutRequestIsHeldAndLetGo(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		status := w.reported("stray", "")
		w.settle()
		require.True(t, get[*infra.MachineRequestStatus](w, "stray").Metadata().Finalizers().Has("MachineRequestStatusCleanupController"))

		w.teardown(status.Metadata(), provisioner)
		w.settle()
		require.True(t, get[*infra.MachineRequestStatus](w, "stray").Metadata().Finalizers().Empty())
	})
}

func TestLoneRequestOutlivesItsMachine(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide()
		w.loneRequest("lone")
		w.settle()

		status := w.onlyStatus()
		w.join(status.TypedSpec().Value.Id, "lone")
		w.settle()

		w.teardown(status.Metadata(), provisioner)
		time.Sleep(11 * time.Second)
		w.settle()

		require.False(t, has[*siderolink.Link](w, status.TypedSpec().Value.Id))
		require.Equal(t, []string{"lone"}, w.ids())
		require.Equal(t, resource.PhaseTearingDown, w.onlyStatus().Metadata().Phase())
		require.True(t, w.onlyStatus().Metadata().Finalizers().Empty())
	})
}

func TestMachineComesBackWithoutItsRequest(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide()
		w.loneRequest("lone")
		w.settle()

		id := w.onlyStatus().TypedSpec().Value.Id
		w.link(id, map[string]string{omni.LabelInfraProviderID: cloud})
		time.Sleep(5 * time.Second)
		w.settle()
		require.Contains(t, get[*infra.MachineRegistration](w, id).Metadata().Labels().Raw(), omni.LabelMachineRequest)

		w.teardown(siderolink.NewLink(id, nil).Metadata(), "")
		time.Sleep(11 * time.Second)
		w.settle()
		require.False(t, has[*infra.MachineRegistration](w, id))

		w.link(id, map[string]string{omni.LabelInfraProviderID: cloud})
		w.settle()
		require.NotContains(t, get[*infra.MachineRegistration](w, id).Metadata().Labels().Raw(), omni.LabelMachineRequest)
	})
}

// patchRequest asks for a config patch as the provider of a request does.
func (w *world) patchRequest(id, request string) {
	w.t.Helper()

	res := infra.NewConfigPatchRequest(id)
	res.Metadata().Labels().Set(omni.LabelInfraProviderID, cloud)
	res.Metadata().Labels().Set(omni.LabelMachineRequest, request)
	require.NoError(w.t, res.TypedSpec().Value.SetUncompressedData([]byte("machine: {}")))
	w.create(res, state.WithCreateOwner(provisioner))
	w.settle()
}

func TestPatchIsMadeOnceTheMachineIsNamed(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.loneRequest("lone")
		w.reported("lone", "")
		w.patchRequest("patch", "lone")
		require.False(t, has[*omni.ConfigPatch](w, "patch"))

		edit(w, "lone", func(s *infra.MachineRequestStatus) { s.TypedSpec().Value.Id = machineID })
		w.settle()

		patch := get[*omni.ConfigPatch](w, "patch")
		require.Equal(t, map[string]string{
			omni.LabelInfraProviderID: cloud, omni.LabelMachineRequest: "lone",
			omni.LabelMachine: machineID, omni.LabelSystemPatch: "",
		}, patch.Metadata().Labels().Raw())

		data, err := patch.TypedSpec().Value.GetUncompressedData()
		require.NoError(t, err)
		require.Equal(t, "machine: {}", string(data.Data()))
	})
}

func TestPatchGoesWithTheStatus(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.loneRequest("lone")
		status := w.reported("lone", machineID)
		w.patchRequest("patch", "lone")
		require.True(t, has[*omni.ConfigPatch](w, "patch"))

		w.teardown(status.Metadata(), provisioner)
		w.settle()
		require.NoError(t, w.st.Destroy(w.ctx, status.Metadata(), state.WithDestroyOwner(provisioner)))
		w.settle()
		require.False(t, has[*omni.ConfigPatch](w, "patch"))
	})
}

func TestClusterRequestStatusFollowsTheProvider(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.cluster("demo", 0, 1)
		w.settle()

		id := w.ids()[0]
		check := func(stage specs.ClusterMachineRequestStatusSpec_Stage, status string) {
			t.Helper()

			spec := get[*omni.ClusterMachineRequestStatus](w, id).TypedSpec().Value
			require.Equal(t, stage, spec.Stage)
			require.Equal(t, status, spec.Status)
			require.Equal(t, cloud, spec.ProviderId)
		}

		check(specs.ClusterMachineRequestStatusSpec_PENDING, "Waiting for the infra provider to start provision")

		report := func(stage specs.MachineRequestStatusSpec_Stage, text string) {
			edit(w, id, func(s *infra.MachineRequestStatus) {
				s.TypedSpec().Value.Stage, s.TypedSpec().Value.Status = stage, text
			})
			w.settle()
		}

		w.reported(id, "")
		report(specs.MachineRequestStatusSpec_PROVISIONING, "Running Step: \"a\" (1/2)")
		check(specs.ClusterMachineRequestStatusSpec_PROVISIONING, "Running Step: \"a\" (1/2)")

		report(specs.MachineRequestStatusSpec_FAILED, "")
		check(specs.ClusterMachineRequestStatusSpec_FAILED, "")

		report(specs.MachineRequestStatusSpec_PROVISIONED, "Provision Complete")
		check(specs.ClusterMachineRequestStatusSpec_PROVISIONED, "Waiting for the machine to join Omni")

		require.NoError(t, w.st.AddFinalizer(w.ctx, infra.NewMachineRequest(id).Metadata(), provisioner))
		w.teardown(infra.NewMachineRequest(id).Metadata(), "")
		w.settle()
		require.Equal(t, specs.ClusterMachineRequestStatusSpec_DEPROVISIONING,
			get[*omni.ClusterMachineRequestStatus](w, id).TypedSpec().Value.Stage)
	})
}

func TestRequestOutsideAClusterHasNoClusterStatus(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.requestSet("pool", 1)
		w.settle()
		require.Empty(t, list[*omni.ClusterMachineRequestStatus](w))
	})
}
