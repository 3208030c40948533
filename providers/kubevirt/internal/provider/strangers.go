package provider

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// noStrangersDisks refuses to make a virtual machine while somebody else's DataVolume or claim has the name of one of its disks: KubeVirt
// and CDI would take it for the machine's own, boot from it, and delete it with the machine.
func (m *maker) noStrangersDisks(ctx context.Context, vm *kubevirtv1.VirtualMachine) error {
	for _, disk := range vm.Spec.DataVolumeTemplates {
		if err := notForeign(ctx, m, vm.Namespace, "DataVolume", m.cluster.DataVolumes(), disk.Name); err != nil {
			return err
		}

		if err := notForeign(ctx, m, vm.Namespace, "volume claim", m.cluster.Claims(), disk.Name); err != nil {
			return err
		}
	}

	return nil
}

// notForeign returns nil when there is no such object, or it is the request's.
func notForeign[T metav1.Object](ctx context.Context, m *maker, namespace, what string, kind cluster.Kind[T], name string) error {
	o, err := kind.Get(ctx, namespace, name)

	switch {
	case driver.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case machine.Owns(m.req.Ref, o):
		return nil
	case o.GetDeletionTimestamp() != nil:
		return driver.Pending(pause, "%s", going(what, o))
	}

	// Older importers do not put a DataVolume's labels on its claim.
	ours, err := m.ownedByOurs(ctx, m.req.Ref, namespace, o)
	if err != nil || ours {
		return err
	}

	return foreign(what, o)
}
