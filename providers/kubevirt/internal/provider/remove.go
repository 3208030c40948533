package provider

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Remove deletes the virtual machine, and with it all that it owns. Once it has gone, all else that is the request's is deleted too, and
// waited for: an instance can outlive its virtual machine, and a claim its DataVolume.
func (d *Driver) Remove(ctx context.Context, ref driver.Ref) (bool, error) {
	d.images.release(ref)
	d.told.forget(ref)
	d.progress.forget(ref)

	var left atomic.Bool

	err := d.each(ctx, func(ctx context.Context, namespace string) error {
		err := d.removeFrom(ctx, ref, namespace)
		if err != nil {
			left.Store(true)
		}

		return err
	})
	if err != nil {
		return false, fmt.Errorf("remove machine of %s: %w", ref, err)
	}

	return !left.Load(), nil
}

// removeFrom returns nil once the namespace has nothing of the machine.
func (d *Driver) removeFrom(ctx context.Context, ref driver.Ref, namespace string) error {
	// While the virtual machine is there, what it owns goes by itself.
	if err := d.removeMachine(ctx, ref, namespace); err != nil {
		return err
	}

	names := machine.NamesOf(ref)

	return worst([]error{
		remove(ctx, d, ref, namespace, "instance", d.cluster.Instances(), []string{names.VM}),
		remove(ctx, d, ref, namespace, "DataVolume", d.cluster.DataVolumes(), nil),
		d.removeClaims(ctx, ref, namespace),
		remove(ctx, d, ref, namespace, "secret", d.cluster.Secrets(), []string{names.Secret}),
	})
}

// removeMachine deletes the virtual machine, which stays until all that it owns has gone.
func (d *Driver) removeMachine(ctx context.Context, ref driver.Ref, namespace string) error {
	vms, err := d.cluster.VirtualMachines().List(ctx, namespace, listOf(ref))
	if err != nil {
		return err
	}

	vms = owned(ref, vms)

	for _, vm := range vms {
		if vm.DeletionTimestamp != nil {
			continue
		}

		// One that was replaced meanwhile is looked at again.
		if err := d.cluster.VirtualMachines().DeleteWhole(ctx, vm); err != nil && !cluster.Conflicts(err) {
			return err
		}
	}

	if len(vms) == 0 {
		return nil
	}

	text := going("virtual machine", vms[0])

	if vms[0].DeletionTimestamp != nil {
		instance, err := d.lastOf(ctx, ref, vms[0])
		if err != nil {
			return err
		}

		if instance != nil {
			text += fmt.Sprintf("; its instance%s has not gone (%s)", at(instance), cmp.Or(instance.Status.Phase, "not begun"))
		}
	}

	return driver.Pending(pause, "%s", text)
}

// lastOf returns the instance of a virtual machine that is being deleted, nil when it has none.
func (d *Driver) lastOf(ctx context.Context, ref driver.Ref, vm *kubevirtv1.VirtualMachine) (*kubevirtv1.VirtualMachineInstance, error) {
	mirror := d.mirrorsOf(ref.ProviderID, vm.Namespace).instances
	if absent(mirror, vm.Name) {
		return nil, nil //nolint:nilnil // a machine that is off has none
	}

	instance, err := now(ctx, mirror, d.cluster.Instances(), vm.Namespace, vm.Name)

	switch {
	case driver.IsNotFound(err):
		return nil, nil //nolint:nilnil // a machine that is off has none
	case err != nil:
		return nil, err
	case !metav1.IsControlledBy(instance, vm):
		return nil, nil //nolint:nilnil // it is another one's
	default:
		return instance, nil
	}
}

// removeClaims deletes the claims that are the request's, and returns Pending while there is one. All claims of the namespace are looked
// at, as there are two kinds that no selector finds. Older importers do not put a DataVolume's labels on its claim: what owns it deletes it,
// and is waited for. And KubeVirt keeps what a TPM or the firmware remembers in a claim of its own, which does not have our mark.
func (d *Driver) removeClaims(ctx context.Context, ref driver.Ref, namespace string) error {
	claims, err := d.cluster.Claims().List(ctx, namespace, metav1.ListOptions{})
	if err != nil {
		return err
	}

	var left *corev1.PersistentVolumeClaim

	for _, claim := range claims {
		ours, waits, err := d.judgeClaim(ctx, ref, claim)
		if err != nil {
			return err
		}

		if ours && claim.DeletionTimestamp == nil {
			// One that was replaced meanwhile is looked at again.
			if err := d.cluster.Claims().Delete(ctx, claim); err != nil && !cluster.Conflicts(err) {
				return err
			}
		}

		if left == nil && (ours || waits) {
			left = claim
		}
	}

	if left == nil {
		return nil
	}

	return driver.Pending(pause, "%s", going("volume claim", left))
}

// judgeClaim says whether a claim is the request's, to be deleted, or goes by itself with what owns it.
func (d *Driver) judgeClaim(ctx context.Context, ref driver.Ref, claim *corev1.PersistentVolumeClaim) (ours, waits bool, err error) {
	if machine.Owns(ref, claim) {
		return true, false, nil
	}

	if ours, err = d.leftBehind(ctx, ref, claim); ours || err != nil {
		return ours, false, err
	}

	waits, err = d.ownedByOurs(ctx, ref, claim.Namespace, claim)

	return false, waits, err
}

// leftBehind reports whether a claim is the state of our virtual machine, which was deleted without it. KubeVirt made it for that machine
// and named it, in its label and its own name, by a name that holds a hash of our ids; nothing owns it any more, and no machine of that name
// is there that would go on with it. Everything else without our mark is somebody's.
func (d *Driver) leftBehind(ctx context.Context, ref driver.Ref, claim *corev1.PersistentVolumeClaim) (bool, error) {
	names := machine.NamesOf(ref)

	if !names.HasState(claim) || len(claim.OwnerReferences) > 0 {
		return false, nil
	}

	_, err := d.cluster.VirtualMachines().Get(ctx, claim.Namespace, names.VM)
	if driver.IsNotFound(err) {
		return true, nil
	}

	return false, err
}

// remove deletes the objects of one kind that carry the request's mark, and returns Pending while there is one. An object with one of the
// names that was made for an object of ours, as its owner says, is waited for: that is what deletes it.
func remove[T metav1.Object](ctx context.Context, d *Driver, ref driver.Ref, namespace, what string, kind cluster.Kind[T], names []string) error {
	objects, err := kind.List(ctx, namespace, listOf(ref))
	if err != nil {
		return err
	}

	objects = owned(ref, objects)

	for _, o := range objects {
		if o.GetDeletionTimestamp() != nil {
			continue
		}

		// One that was replaced meanwhile is looked at again.
		if err := kind.Delete(ctx, o); err != nil && !cluster.Conflicts(err) {
			return err
		}
	}

	for _, name := range names {
		if slices.ContainsFunc(objects, func(o T) bool { return o.GetName() == name }) {
			continue
		}

		o, err := kind.Get(ctx, namespace, name)

		switch {
		case driver.IsNotFound(err):
		case err != nil:
			return err
		case machine.Owns(ref, o):
			objects = append(objects, o)
		default:
			ours, err := d.ownedByOurs(ctx, ref, namespace, o)
			if err != nil {
				return err
			}

			if ours {
				objects = append(objects, o)
			}
		}
	}

	if len(objects) == 0 {
		return nil
	}

	return driver.Pending(pause, "%s", going(what, objects[0]))
}

// ownedByOurs reports whether the object's owner is our virtual machine or DataVolume: it has a name that only ours have, and has gone or
// goes. One of that name that is somebody's own stays, and so does what it owns.
func (d *Driver) ownedByOurs(ctx context.Context, ref driver.Ref, namespace string, o metav1.Object) (bool, error) {
	names := machine.NamesOf(ref)

	for _, r := range o.GetOwnerReferences() {
		var (
			owner metav1.Object
			err   error
		)

		switch {
		case r.Kind == "VirtualMachine" && r.Name == names.VM:
			owner, err = d.cluster.VirtualMachines().Get(ctx, namespace, r.Name)
		case r.Kind == "DataVolume" && names.HasDisk(r.Name):
			owner, err = d.cluster.DataVolumes().Get(ctx, namespace, r.Name)
		default:
			continue
		}

		switch {
		case driver.IsNotFound(err):
			return true, nil
		case err != nil:
			return false, err
		default:
			return owner.GetUID() != r.UID || machine.Owns(ref, owner), nil
		}
	}

	return false, nil
}

// going says how far an object's end is, and what holds it.
func going(what string, o metav1.Object) string {
	text := fmt.Sprintf("%s %q in namespace %q%s is being deleted", what, o.GetName(), o.GetNamespace(), at(o))

	if deleted := o.GetDeletionTimestamp(); deleted != nil {
		if since := time.Since(deleted.Time).Round(time.Second); since > 0 {
			text += fmt.Sprintf(" since %s", since)
		}
	}

	if held := o.GetFinalizers(); len(held) > 0 {
		text += ", held by " + strings.Join(held, ", ")
	}

	return text
}

// at names the node of an instance.
func at(o metav1.Object) string {
	if instance, ok := o.(*kubevirtv1.VirtualMachineInstance); ok && instance.Status.NodeName != "" {
		return fmt.Sprintf(" on node %q", instance.Status.NodeName)
	}

	return ""
}
