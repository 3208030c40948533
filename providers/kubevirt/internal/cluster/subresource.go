package cluster

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubevirtv1 "kubevirt.io/api/core/v1"
)

// Switch calls a subresource of a virtual machine: start, stop or restart.
func (k *Cluster) Switch(ctx context.Context, namespace, name, verb string) error {
	op := Op{Verb: "update", Resource: "virtualmachines/" + verb + ".subresources.kubevirt.io", Namespace: namespace, Name: name}

	return Do(ctx, k, op, func(ctx context.Context) error {
		vms := k.KubeVirt.KubevirtV1().VirtualMachines(namespace)

		switch verb {
		case "start":
			return vms.Start(ctx, name, &kubevirtv1.StartOptions{})
		case "stop":
			return vms.Stop(ctx, name, &kubevirtv1.StopOptions{})
		case "restart":
			return vms.Restart(ctx, name, &kubevirtv1.RestartOptions{})
		default:
			return fmt.Errorf("virtual machines have no subresource %q", verb)
		}
	})
}

// versions are those in which kinds without a clientset are asked for.
var versions = map[string]string{
	"storage.k8s.io": "v1", "scheduling.k8s.io": "v1", "instancetype.kubevirt.io": "v1beta1", "k8s.cni.cncf.io": "v1",
	"snapshot.storage.k8s.io": "v1",
}

func (k *Cluster) dynamic(resource string) schema.GroupVersionResource {
	plural, group, _ := strings.Cut(resource, ".")

	return schema.GroupVersionResource{Group: group, Version: versions[group], Resource: plural}
}

// Lookup asks whether there is an object; namespace is empty for a kind that has none.
func (k *Cluster) Lookup(ctx context.Context, resource, namespace, name string) error {
	_, err := k.Unstructured(ctx, resource, namespace, name)

	return err
}

// Unstructured returns an object of a kind without a clientset.
func (k *Cluster) Unstructured(ctx context.Context, resource, namespace, name string) (*unstructured.Unstructured, error) {
	op := Op{Verb: "get", Resource: resource, Namespace: namespace, Name: name}

	return Call(ctx, k, op, func(ctx context.Context) (*unstructured.Unstructured, error) {
		kind := k.Dynamic.Resource(k.dynamic(resource))
		if namespace == "" {
			return kind.Get(ctx, name, metav1.GetOptions{})
		}

		return kind.Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	})
}

// CreateUnstructured makes an object of a kind without a clientset.
func (k *Cluster) CreateUnstructured(ctx context.Context, resource string, object *unstructured.Unstructured, manager string) error {
	op := Op{Verb: "create", Resource: resource, Namespace: object.GetNamespace(), Name: object.GetName()}

	return Do(ctx, k, op, func(ctx context.Context) error {
		_, err := k.Dynamic.Resource(k.dynamic(resource)).Namespace(object.GetNamespace()).
			Create(ctx, object, metav1.CreateOptions{FieldManager: manager})

		return err
	})
}

// DeleteUnstructured deletes the object with that UID.
func (k *Cluster) DeleteUnstructured(ctx context.Context, resource string, object *unstructured.Unstructured) error {
	op := Op{Verb: "delete", Resource: resource, Namespace: object.GetNamespace(), Name: object.GetName()}
	uid := object.GetUID()

	return Do(ctx, k, op, func(ctx context.Context) error {
		return k.Dynamic.Resource(k.dynamic(resource)).Namespace(object.GetNamespace()).
			Delete(ctx, object.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	})
}
