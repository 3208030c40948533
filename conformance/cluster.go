package conformance

import (
	"context"
	"fmt"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
)

// workers returns the machine set, and the set of machine requests, of a cluster.
func (*env) workers(cluster string) (set string) { return omni.WorkersResourceID(cluster) }

// cluster makes a cluster of that many workers, whose machines are made by the provider, or changes their number.
func (e *env) cluster(id string, workers uint32) {
	e.do("write a cluster", func(ctx context.Context) error {
		class, cluster, set := omni.NewMachineClass(e.full(id)), omni.NewCluster(e.full(id)), omni.NewMachineSet(e.full(e.workers(id)))

		class.TypedSpec().Value.AutoProvision = &specs.MachineClassSpec_Provision{ProviderId: e.provider, ProviderData: e.data}
		cluster.TypedSpec().Value.TalosVersion = talosVersion

		if err := e.state.Create(ctx, class); err != nil && !state.IsConflictError(err) {
			return err
		}

		if err := e.state.Create(ctx, cluster); err != nil && !state.IsConflictError(err) {
			return err
		}

		return safe.StateModify(ctx, e.state, set, func(r *omni.MachineSet) error {
			r.Metadata().Labels().Set(omni.LabelCluster, e.full(id))
			r.Metadata().Labels().Set(omni.LabelWorkerRole, "")
			r.TypedSpec().Value.MachineAllocation = &specs.MachineSetSpec_MachineAllocation{Name: e.full(id), MachineCount: workers}

			return nil
		})
	})
	e.note("operator sets cluster %s to %d workers", id, workers)
}

// awaitNodes waits until a cluster has that many nodes whose machines are up.
func (e *env) awaitNodes(cluster string, size int) {
	e.await(fmt.Sprintf("cluster %s has %d nodes", cluster, size), func() (string, bool) {
		nodes := list[*omni.ClusterMachine](e)

		return fmt.Sprintf("%d nodes", len(nodes)), len(nodes) == size
	})
}

// deleteLink removes a machine from Omni, as omnictl delete link does.
func (e *env) deleteLink(uuid string) {
	e.tearDown(siderolink.NewLink(uuid, nil).Metadata())
	e.note("operator removes machine %s from Omni", uuid)
}

// forceDestroy makes Omni give a node up without waiting for it.
func (e *env) forceDestroy(uuid string) {
	e.do("force a node out", func(ctx context.Context) error {
		return e.state.Create(ctx, omni.NewNodeForceDestroyRequest(uuid))
	})
	e.note("operator forces node %s out", uuid)
}

// removeClusters takes all clusters back and waits for their end.
func (e *env) removeClusters() {
	for _, cluster := range list[*omni.Cluster](e) {
		e.tearDown(cluster.Metadata())
		e.note("operator removes cluster %s", cluster.Metadata().ID())
		e.await("cluster "+cluster.Metadata().ID()+" is gone", func() (string, bool) { return e.destroy(cluster.Metadata()) })
	}

	for _, class := range list[*omni.MachineClass](e) {
		e.tearDown(class.Metadata())
		e.destroy(class.Metadata())
	}
}
