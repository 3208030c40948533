package control_test

import (
	"testing"
	"time"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// inCluster makes a cluster of workers whose machines have joined, and returns the addresses of those by UUID.
func (w *world) inCluster(workers uint32) map[string]string {
	w.t.Helper()

	w.provide()
	w.cluster("demo", 0, workers)
	w.settle()

	addresses := map[string]string{}

	for _, status := range list[*infra.MachineRequestStatus](w) {
		id := status.TypedSpec().Value.Id
		addresses[id] = w.join(id, status.Metadata().ID())
		w.machines.set(addresses[id], true, &talosapi.Report{UUID: id, Stage: talosapi.StageMaintenance})
	}

	w.settle()
	require.Len(w.t, list[*omni.ClusterMachine](w), int(workers))

	return addresses
}

// lostNode makes a cluster of one whose machine is lost in the cloud, and has the provider tear down its status.
func (w *world) lostNode() (id, address string) {
	w.t.Helper()

	for id, address = range w.inCluster(1) {
	}

	w.machines.set(address, false, nil)
	time.Sleep(10 * time.Minute)
	w.teardown(w.onlyStatus().Metadata(), provisioner)
	time.Sleep(time.Hour)

	return id, address
}

// held returns whether Omni still holds the node, its request, and the status that the provider tore down.
func (w *world) held(id string) bool {
	w.t.Helper()

	return has[*omni.MachineSetNode](w, id) && has[*omni.ClusterMachine](w, id) &&
		has[*siderolink.Link](w, id) && len(list[*infra.MachineRequest](w)) == 1
}

func TestMachinesMadeForASetBecomeItsNodes(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		for id := range w.inCluster(2) {
			node := get[*omni.MachineSetNode](w, id)
			require.Empty(t, node.Metadata().Owner())
			require.Equal(t, map[string]string{
				omni.LabelCluster: "demo", omni.LabelMachineSet: "demo-workers", omni.LabelWorkerRole: "",
				omni.LabelManagedByMachineSetNodeController: "",
			}, node.Metadata().Labels().Raw())

			labels := get[*omni.MachineStatus](w, id).Metadata().Labels().Raw()
			require.Equal(t, "demo", labels[omni.LabelCluster])
			require.Contains(t, labels, omni.LabelNoManualAllocation)
			require.NotContains(t, labels, omni.MachineStatusLabelAvailable)
		}

		for _, status := range list[*omni.ClusterMachineRequestStatus](w) {
			require.Contains(t, status.Metadata().Labels().Raw(), omni.LabelMachineRequestInUse)
		}
	})
}

func TestLostNodeIsHeldForEver(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		id, _ := w.lostNode()
		require.True(t, w.held(id))
		require.False(t, w.onlyStatus().Metadata().Finalizers().Empty())
	})
}

func TestLostNodeGoesWhenItComesBackAndIsReset(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		id, address := w.lostNode()
		w.machines.set(address, true, nil)
		w.settle()

		require.Equal(t, talosapi.CommandReset, w.machines.commands(address)[0].Command)
		require.False(t, has[*omni.ClusterMachine](w, id))
		require.False(t, has[*siderolink.Link](w, id))
	})
}

func TestLostNodeGoesWithItsLink(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		id, _ := w.lostNode()
		w.teardown(siderolink.NewLink(id, nil).Metadata(), "")
		time.Sleep(11 * time.Second)

		require.False(t, has[*omni.ClusterMachine](w, id))
		require.False(t, has[*siderolink.Link](w, id))
		require.NotEqual(t, id, w.onlyStatus().TypedSpec().Value.Id, "a replacement is made")
	})
}

func TestLostNodeGoesWhenGivenUp(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		id, _ := w.lostNode()
		w.create(omni.NewNodeForceDestroyRequest(id))
		time.Sleep(11 * time.Second)

		require.False(t, has[*omni.ClusterMachine](w, id))
		require.False(t, has[*siderolink.Link](w, id))
		require.NotEqual(t, id, w.onlyStatus().TypedSpec().Value.Id, "a replacement is made")
	})
}

func TestReachableNodeIsResetWhenItsRequestGoes(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		addresses := w.inCluster(1)
		w.teardown(infra.NewMachineRequest(w.ids()[0]).Metadata(), "")
		w.settle()

		for id, address := range addresses {
			require.Equal(t, talosapi.CommandReset, w.machines.commands(address)[0].Command)
			require.False(t, has[*siderolink.Link](w, id))
		}

		require.Len(t, w.ids(), 1)
	})
}

func TestNodeOfAControllerIsLeftToIt(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide()
		w.loneRequest("lone")
		w.settle()

		id := w.onlyStatus().TypedSpec().Value.Id
		node := omni.NewMachineSetNode(id, omni.NewMachineSet("demo"))
		w.join(id, "lone")
		w.create(node, withOwner("SomeController"))
		w.settle()

		w.teardown(w.onlyStatus().Metadata(), provisioner)
		time.Sleep(time.Hour)
		require.False(t, w.onlyStatus().Metadata().Finalizers().Empty())
		require.True(t, has[*omni.MachineSetNode](w, id))
	})
}

func TestSmallerMachineSetKeepsRequestsUntilNodesHaveLeft(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		addresses := w.inCluster(2)
		w.machines.setDeaf(true)

		for _, address := range addresses {
			w.machines.set(address, false, nil)

			break
		}

		time.Sleep(10 * time.Minute)
		edit(w, "demo-workers", func(set *omni.MachineSet) { set.TypedSpec().Value.MachineAllocation.MachineCount = 1 })
		time.Sleep(time.Minute)

		leaving := ""
		for _, node := range list[*omni.MachineSetNode](w) {
			if node.Metadata().Phase().String() != "running" {
				leaving = node.Metadata().ID()
			}
		}

		require.Contains(t, get[*omni.MachineStatus](w, leaving).Metadata().Labels().Raw(), omni.MachineStatusLabelDisconnected)
		require.Len(t, w.ids(), 2)

		w.create(omni.NewNodeForceDestroyRequest(leaving))
		time.Sleep(time.Minute)
		require.Len(t, w.ids(), 1)
		require.False(t, has[*siderolink.Link](w, leaving))
	})
}

func TestRemovedClusterTakesItsMachines(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.inCluster(2)
		w.teardown(omni.NewCluster("demo").Metadata(), "")
		w.settle()

		require.True(t, get[*omni.Cluster](w, "demo").Metadata().Finalizers().Empty())
		require.Empty(t, list[*omni.MachineSet](w))
		require.Empty(t, list[*omni.MachineRequestSet](w))
		require.Empty(t, list[*infra.MachineRequest](w))
		require.Empty(t, list[*omni.MachineStatus](w))
	})
}

func TestClassWithoutProvisionMakesNoRequests(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.cluster("demo", 0, 2)
		w.settle()
		require.Len(t, w.ids(), 2)

		edit(w, "fake-small", func(class *omni.MachineClass) { class.TypedSpec().Value.AutoProvision = nil })
		w.settle()
		require.Empty(t, w.ids())
		require.False(t, has[*omni.MachineRequestSet](w, "demo-workers"))
	})
}
