package virt

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kubevirt "kubevirt.io/api/core/v1"
	instancetypeapi "kubevirt.io/api/instancetype"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// What an instance type and a preference say when a machine first names them is kept in ControllerRevisions of the machine's, so that it
// does not change when they do.

// Reasons of the Failure condition.
const (
	failedFindType       = "FailedFindInstancetype"
	failedFindPreference = "FailedFindPreference"
)

// described is an instance type or a preference.
type described[S any] struct {
	kind kube.Kind
	meta metav1.ObjectMeta
	spec *S
}

// keepTypes keeps what a machine refers to, and writes where into its status.
func (c *Controller) keepTypes(ctx context.Context, vm *kubevirt.VirtualMachine) error {
	if _, err := c.types.sizeOf(ctx, vm); err != nil {
		return &problem{failedFindType, err}
	}

	if _, err := c.types.preferenceOf(ctx, vm); err != nil {
		return &problem{failedFindPreference, err}
	}

	changed := vm.DeepCopy()
	if err := c.keep(ctx, changed); err != nil {
		err = fmt.Errorf("error encountered while storing instancetype.kubevirt.io controllerRevisions: %w", err)
		c.events.Event(ctx, vm, kube.VirtualMachines, corev1.EventTypeWarning, failedCreate, err.Error())

		return &problem{failedCreate, err}
	}

	if equality.Semantic.DeepEqual(changed.Status, vm.Status) {
		return nil
	}

	updated, err := c.vms.Update(ctx, changed, "status")
	if err != nil {
		return err
	}

	c.vms.Put(updated)
	*vm = *updated.DeepCopy()

	return nil
}

func (c *Controller) keep(ctx context.Context, vm *kubevirt.VirtualMachine) (err error) {
	if m := vm.Spec.Instancetype; m != nil {
		vm.Status.InstancetypeRef, err = refer(vm.Status.InstancetypeRef, m.Name, m.Kind, m.RevisionName, func() (string, error) {
			size, err := c.types.size(ctx, vm)
			if err != nil {
				return "", err
			}

			if conflicts := conflictsOf(size.spec, &vm.Spec.Template.Spec); len(conflicts) > 0 {
				return "", conflictError("VM", conflicts)
			}

			return keepRevision(ctx, c.types, vm, size)
		})
	}

	if m := vm.Spec.Preference; m != nil && err == nil {
		vm.Status.PreferenceRef, err = refer(vm.Status.PreferenceRef, m.Name, m.Kind, m.RevisionName, func() (string, error) {
			prefer, err := c.types.preference(ctx, vm)
			if err != nil {
				return "", err
			}

			return keepRevision(ctx, c.types, vm, prefer)
		})
	}

	return err
}

// refer brings a reference of a machine's status in line with that of its spec. What is referred to is kept unless it was already.
func refer(ref *kubevirt.InstancetypeStatusRef, name, kind, revision string, keep func() (string, error)) (*kubevirt.InstancetypeStatusRef, error) {
	if ref == nil {
		ref = &kubevirt.InstancetypeStatusRef{}
	}

	if name != ref.Name || kind != "" && kind != ref.Kind {
		ref.Name, ref.ControllerRevisionRef = name, nil

		if kind != "" {
			ref.Kind = kind
		}
	}

	switch {
	case revision != "":
		ref.ControllerRevisionRef = &kubevirt.ControllerRevisionRef{Name: revision}
	case ref.ControllerRevisionRef == nil:
		kept, err := keep()
		if err != nil {
			return nil, err
		}

		ref.ControllerRevisionRef = &kubevirt.ControllerRevisionRef{Name: kept}
	}

	return ref, nil
}

// keepRevision makes the ControllerRevision of what a machine refers to, and returns its name.
func keepRevision[S any](ctx context.Context, c catalogue, vm *kubevirt.VirtualMachine, of *described[S]) (string, error) {
	meta := of.meta
	data, err := json.Marshal(map[string]any{
		"apiVersion": of.kind.GroupVersion().String(), "kind": of.kind.Kind, "spec": of.spec,
		"metadata": metav1.ObjectMeta{
			Namespace: meta.Namespace, Name: meta.Name, UID: meta.UID, Generation: meta.Generation, ResourceVersion: meta.ResourceVersion,
			CreationTimestamp: meta.CreationTimestamp,
		},
	})
	if err != nil {
		return "", fmt.Errorf("encode %s %q: %w", of.kind.Kind, meta.Name, err)
	}

	revision := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vm.Namespace, Name: fmt.Sprintf("%s-%s-%s-%s-%d", vm.Name, meta.Name, of.kind.Version, meta.UID, meta.Generation),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(vm, kubevirt.VirtualMachineGroupVersionKind)},
			Labels: map[string]string{
				instancetypeapi.ControllerRevisionObjectGenerationLabel: fmt.Sprint(meta.Generation),
				instancetypeapi.ControllerRevisionObjectKindLabel:       of.kind.Kind,
				instancetypeapi.ControllerRevisionObjectNameLabel:       meta.Name,
				instancetypeapi.ControllerRevisionObjectUIDLabel:        string(meta.UID),
				instancetypeapi.ControllerRevisionObjectVersionLabel:    of.kind.Version,
			},
		},
		Data: runtime.RawExtension{Raw: data},
	}

	if _, err := c.revisions.Create(ctx, revision); err == nil {
		return revision.Name, nil
	} else if !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("failed to create ControllerRevision: %w", err)
	}

	before, err := c.revisions.Get(ctx, vm.Namespace, revision.Name)
	if err != nil {
		return "", fmt.Errorf("failed to get ControllerRevision: %w", err)
	}

	kept, err := specOf[S](before)
	if err != nil {
		return "", err
	}

	if !equality.Semantic.DeepEqual(kept, of.spec) {
		return "", fmt.Errorf("found existing ControllerRevision with unexpected data: %s", revision.Name)
	}

	return revision.Name, nil
}

// specOf returns what a revision has kept.
func specOf[S any](revision *appsv1.ControllerRevision) (*S, error) {
	var object struct {
		Spec S `json:"spec"`
	}

	if err := json.Unmarshal(revision.Data.Raw, &object); err != nil {
		return nil, fmt.Errorf("decode ControllerRevision %q: %w", revision.Name, err)
	}

	return &object.Spec, nil
}

// kept returns what was kept for a machine of what it refers to by that name, nil if nothing was.
func kept[S any](ctx context.Context, c catalogue, vm *kubevirt.VirtualMachine, ref *kubevirt.InstancetypeStatusRef, name, revision string) (*S, error) {
	asked := revision != ""

	if !asked {
		if ref == nil || ref.ControllerRevisionRef == nil || ref.ControllerRevisionRef.Name == "" {
			return nil, nil //nolint:nilnil // There is none, as the contract says.
		}

		revision = ref.ControllerRevisionRef.Name
	}

	found, err := c.revisions.Get(ctx, vm.Namespace, revision)

	switch {
	case err != nil:
		return nil, err
	case !asked && found.Labels[instancetypeapi.ControllerRevisionObjectNameLabel] != name: // The machine names another one since.
		return nil, nil //nolint:nilnil // There is none, as the contract says.
	}

	return specOf[S](found)
}

// conflictError says which fields of a machine, or of its instance, an instance type says too.
func conflictError(of string, conflicts [][]string) error {
	texts := make([]string, len(conflicts))
	for i, path := range conflicts {
		texts[i] = "spec.template.spec." + strings.Join(path, ".")
	}

	return fmt.Errorf("%s conflicts with instancetype spec in fields: [%s]", of, strings.Join(texts, ", "))
}
