package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// clients is what the generated clientsets have for each kind.
type clients[T any, L metav1.ListInterface] interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (T, error)
	List(ctx context.Context, opts metav1.ListOptions) (L, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	Create(ctx context.Context, object T, opts metav1.CreateOptions) (T, error)
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}

// Kind is one kind of object, and how it is asked for. Each method makes one call.
type Kind[T metav1.Object] struct {
	// Resource is the kind in plural with its group, as Op has it.
	Resource string

	cluster *Cluster
	get     func(ctx context.Context, namespace, name string) (T, error)
	list    func(ctx context.Context, namespace string, opts metav1.ListOptions) ([]T, string, error)
	page    func(ctx context.Context, namespace string, opts metav1.ListOptions) (some []T, next string, err error)
	watch   func(ctx context.Context, namespace string, opts metav1.ListOptions) (watch.Interface, error)
	create  func(ctx context.Context, namespace string, object T, opts metav1.CreateOptions) (T, error)
	patch   func(ctx context.Context, namespace, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions) (T, error)
	delete  func(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) error
}

func kindOf[T metav1.Object, L metav1.ListInterface](k *Cluster, resource string, in func(namespace string) clients[T, L], items func(L) []T) Kind[T] {
	return Kind[T]{
		Resource: resource,
		cluster:  k,
		get: func(ctx context.Context, namespace, name string) (T, error) {
			return in(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		list: func(ctx context.Context, namespace string, opts metav1.ListOptions) ([]T, string, error) {
			list, err := in(namespace).List(ctx, opts)
			if err != nil {
				return nil, "", err
			}

			return items(list), list.GetResourceVersion(), nil
		},
		page: func(ctx context.Context, namespace string, opts metav1.ListOptions) ([]T, string, error) {
			list, err := in(namespace).List(ctx, opts)
			if err != nil {
				return nil, "", err
			}

			return items(list), list.GetContinue(), nil
		},
		watch: func(ctx context.Context, namespace string, opts metav1.ListOptions) (watch.Interface, error) {
			return in(namespace).Watch(ctx, opts)
		},
		create: func(ctx context.Context, namespace string, object T, opts metav1.CreateOptions) (T, error) {
			return in(namespace).Create(ctx, object, opts)
		},
		patch: func(ctx context.Context, namespace, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions) (T, error) {
			return in(namespace).Patch(ctx, name, pt, data, opts)
		},
		delete: func(ctx context.Context, namespace, name string, opts metav1.DeleteOptions) error {
			return in(namespace).Delete(ctx, name, opts)
		},
	}
}

func pointers[T any](items []T) []*T {
	out := make([]*T, len(items))
	for i := range items {
		out[i] = &items[i]
	}

	return out
}

// VirtualMachines are KubeVirt's machines.
func (k *Cluster) VirtualMachines() Kind[*kubevirtv1.VirtualMachine] {
	return kindOf(k, "virtualmachines.kubevirt.io", func(namespace string) clients[*kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachineList] {
		return k.KubeVirt.KubevirtV1().VirtualMachines(namespace)
	}, func(l *kubevirtv1.VirtualMachineList) []*kubevirtv1.VirtualMachine { return pointers(l.Items) })
}

// Instances are KubeVirt's machines that are on.
func (k *Cluster) Instances() Kind[*kubevirtv1.VirtualMachineInstance] {
	return kindOf(k, "virtualmachineinstances.kubevirt.io", func(namespace string) clients[*kubevirtv1.VirtualMachineInstance, *kubevirtv1.VirtualMachineInstanceList] {
		return k.KubeVirt.KubevirtV1().VirtualMachineInstances(namespace)
	}, func(l *kubevirtv1.VirtualMachineInstanceList) []*kubevirtv1.VirtualMachineInstance {
		return pointers(l.Items)
	})
}

// DataVolumes are what CDI fills with data.
func (k *Cluster) DataVolumes() Kind[*cdiv1.DataVolume] {
	return kindOf(k, "datavolumes.cdi.kubevirt.io", func(namespace string) clients[*cdiv1.DataVolume, *cdiv1.DataVolumeList] {
		return k.CDI.CdiV1beta1().DataVolumes(namespace)
	}, func(l *cdiv1.DataVolumeList) []*cdiv1.DataVolume { return pointers(l.Items) })
}

// Claims are the volumes themselves.
func (k *Cluster) Claims() Kind[*corev1.PersistentVolumeClaim] {
	return kindOf(k, "persistentvolumeclaims", func(namespace string) clients[*corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaimList] {
		return k.Core.CoreV1().PersistentVolumeClaims(namespace)
	}, func(l *corev1.PersistentVolumeClaimList) []*corev1.PersistentVolumeClaim { return pointers(l.Items) })
}

// Secrets are what machines are told at their first boot.
func (k *Cluster) Secrets() Kind[*corev1.Secret] {
	return kindOf(k, "secrets", func(namespace string) clients[*corev1.Secret, *corev1.SecretList] {
		return k.Core.CoreV1().Secrets(namespace)
	}, func(l *corev1.SecretList) []*corev1.Secret { return pointers(l.Items) })
}

// Events are what controllers tell of objects.
func (k *Cluster) Events() Kind[*corev1.Event] {
	return kindOf(k, "events", func(namespace string) clients[*corev1.Event, *corev1.EventList] {
		return k.Core.CoreV1().Events(namespace)
	}, func(l *corev1.EventList) []*corev1.Event { return pointers(l.Items) })
}

// Get returns an object as it is now.
func (k Kind[T]) Get(ctx context.Context, namespace, name string) (T, error) {
	return Call(ctx, k.cluster, k.op("get", namespace, name), func(ctx context.Context) (T, error) { return k.get(ctx, namespace, name) })
}

// List returns all objects of a namespace that fit the options, as they are now.
func (k Kind[T]) List(ctx context.Context, namespace string, opts metav1.ListOptions) ([]T, error) {
	return Call(ctx, k.cluster, k.op("list", namespace, ""), func(ctx context.Context) ([]T, error) {
		all, _, err := k.list(ctx, namespace, opts)

		return all, err
	})
}

// ListPaged is List in several calls, for what may be many objects of others. All are as they were at one moment.
func (k Kind[T]) ListPaged(ctx context.Context, namespace string, page int64) (all []T, err error) {
	for opts := (metav1.ListOptions{Limit: page}); ; {
		type answer struct {
			some []T
			next string
		}

		a, err := Call(ctx, k.cluster, k.op("list", namespace, ""), func(ctx context.Context) (a answer, err error) {
			a.some, a.next, err = k.page(ctx, namespace, opts)

			return a, err
		})
		if err != nil {
			return nil, err
		}

		all = append(all, a.some...)

		if opts.Continue = a.next; a.next == "" {
			return all, nil
		}
	}
}

// Create makes an object, or fails when there is one of that name: see Exists.
func (k Kind[T]) Create(ctx context.Context, object T, manager string) (T, error) {
	namespace := object.GetNamespace()

	return Call(ctx, k.cluster, k.op("create", namespace, object.GetName()), func(ctx context.Context) (T, error) {
		return k.create(ctx, namespace, object, metav1.CreateOptions{FieldManager: manager, FieldValidation: metav1.FieldValidationStrict})
	})
}

// Apply makes the fields that are given what they are given as, and leaves all others alone. The object is the one with that UID: for
// another one of the same name the API server answers with a conflict.
func (k Kind[T]) Apply(ctx context.Context, object metav1.Object, fields map[string]any, manager string) (T, error) {
	namespace, name := object.GetNamespace(), object.GetName()

	return Call(ctx, k.cluster, k.op("patch", namespace, name), func(ctx context.Context) (T, error) {
		var none T

		metadata := map[string]any{"name": name, "namespace": namespace, "uid": string(object.GetUID())}

		if more, ok := fields["metadata"].(map[string]any); ok {
			for key, value := range more {
				metadata[key] = value
			}
		}

		whole := map[string]any{}
		for key, value := range fields {
			whole[key] = value
		}

		whole["metadata"] = metadata

		data, err := json.Marshal(whole)
		if err != nil {
			return none, fmt.Errorf("encode %q: %w", name, err)
		}

		force := true

		return k.patch(ctx, namespace, name, types.ApplyPatchType, data, metav1.PatchOptions{FieldManager: manager, Force: &force, FieldValidation: metav1.FieldValidationStrict})
	})
}

// Delete deletes the object with that UID; another one of the same name is a conflict. An object that has gone is no error.
func (k Kind[T]) Delete(ctx context.Context, object metav1.Object) error {
	return k.remove(ctx, object, metav1.DeletePropagationBackground, metav1.Preconditions{})
}

// DeleteWhole is Delete for an object that stays until all that it owns has gone.
func (k Kind[T]) DeleteWhole(ctx context.Context, object metav1.Object) error {
	return k.remove(ctx, object, metav1.DeletePropagationForeground, metav1.Preconditions{})
}

// DeleteUnchanged is DeleteWhole for an object as it was seen; one that was changed since is a conflict.
func (k Kind[T]) DeleteUnchanged(ctx context.Context, object metav1.Object) error {
	version := object.GetResourceVersion()

	return k.remove(ctx, object, metav1.DeletePropagationForeground, metav1.Preconditions{ResourceVersion: &version})
}

func (k Kind[T]) remove(ctx context.Context, object metav1.Object, propagation metav1.DeletionPropagation, only metav1.Preconditions) error {
	namespace, name, uid := object.GetNamespace(), object.GetName(), object.GetUID()
	only.UID = &uid

	err := Do(ctx, k.cluster, k.op("delete", namespace, name), func(ctx context.Context) error {
		return k.delete(ctx, namespace, name, metav1.DeleteOptions{Preconditions: &only, PropagationPolicy: &propagation})
	})
	if driver.IsNotFound(err) {
		return nil
	}

	return err
}

// Mirror returns an empty mirror of the objects of a namespace that the selector selects. Its watch is opened again each time that renew
// has passed. keep reduces an object to what is used of it; nil keeps all.
func (k Kind[T]) Mirror(namespace, selector string, renew time.Duration, keep func(T)) *Mirror[T] {
	return NewMirror(k.cluster, Source[T]{
		Op: k.op("list", namespace, ""), Selector: selector, Renew: renew, Keep: keep,
		List: func(ctx context.Context, opts metav1.ListOptions) ([]T, string, error) {
			return k.list(ctx, namespace, opts)
		},
		Watch: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return k.watch(ctx, namespace, opts)
		},
	})
}

func (k Kind[T]) op(verb, namespace, name string) Op {
	return Op{Verb: verb, Resource: k.Resource, Namespace: namespace, Name: name}
}
