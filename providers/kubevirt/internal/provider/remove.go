package provider

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Remove deletes the virtual machine, and with it all that it owns. Once it has gone, all else that carries the request's mark is
// deleted too, and waited for: an instance can outlive its virtual machine, and a claim its DataVolume.
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
		// Older importers do not put a DataVolume's labels on its claim.
		remove(ctx, d, ref, namespace, "volume claim", d.cluster.Claims(), []string{names.Root}),
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

	return driver.Pending(pause, "%s", going("virtual machine", vms[0]))
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
		case r.Kind == "DataVolume" && r.Name == names.Root:
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
	text := fmt.Sprintf("%s %q in namespace %q is being deleted", what, o.GetName(), o.GetNamespace())

	if at := o.GetDeletionTimestamp(); at != nil {
		if since := time.Since(at.Time).Round(time.Second); since > 0 {
			text += fmt.Sprintf(" since %s", since)
		}
	}

	if held := o.GetFinalizers(); len(held) > 0 {
		text += ", held by " + strings.Join(held, ", ")
	}

	return text
}
