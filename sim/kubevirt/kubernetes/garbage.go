package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

func (c *Controller) kind(resource string) *collected {
	for i := range c.kinds {
		if c.kinds[i].of.Resource == resource {
			return &c.kinds[i]
		}
	}

	return nil
}

// changed looks after an object, its dependents, and the owners that may wait for it to go.
func (c *Controller) changed(of kube.Kind, object metav1.Object) {
	c.garbage.Add(of.Resource + "/" + kube.Key(object))
	c.dependents(object, func(k *collected, o metav1.Object) { c.garbage.Add(k.of.Resource + "/" + kube.Key(o)) })

	for _, ref := range object.GetOwnerReferences() {
		if k := c.kindOf(ref); k != nil {
			c.garbage.Add(k.of.Resource + "/" + object.GetNamespace() + "/" + ref.Name)
		}
	}
}

// kindOf returns the kind of an owner, nil if it is not collected here.
func (c *Controller) kindOf(ref metav1.OwnerReference) *collected {
	for i := range c.kinds {
		if of := c.kinds[i].of; of.Kind == ref.Kind && of.GroupVersion().String() == ref.APIVersion {
			return &c.kinds[i]
		}
	}

	return nil
}

// dependents calls f with each object that an owner owns.
func (c *Controller) dependents(owner metav1.Object, f func(*collected, metav1.Object)) {
	for i := range c.kinds {
		for _, o := range c.kinds[i].AllMetadata() {
			if o.GetNamespace() == owner.GetNamespace() && owns(o, owner.GetUID()) != nil {
				f(&c.kinds[i], o)
			}
		}
	}
}

// owns returns the reference to an owner, nil if there is none.
func owns(o metav1.Object, owner types.UID) *metav1.OwnerReference {
	references := o.GetOwnerReferences()
	for i := range references {
		if references[i].UID == owner {
			return &references[i]
		}
	}

	return nil
}

// collect looks after one object: as an owner that is deleted, and as a dependent whose owners may be gone.
func (c *Controller) collect(ctx context.Context, key string) error {
	resource, rest, _ := strings.Cut(key, "/")
	k := c.kind(resource)

	o := k.MetadataOf(split(rest))
	if o == nil {
		return nil
	}

	if o.GetDeletionTimestamp() != nil {
		return c.settle(ctx, k, o)
	}

	if owners, err := c.ownersOf(ctx, o); err != nil || len(owners.gone) == 0 {
		return err
	}

	// The watch of its kind may lag behind, and somebody have given it another owner.
	o, err := k.Resource.Get(ctx, o.GetNamespace(), o.GetName())
	if err != nil {
		return ignoreNotFound(err)
	}

	owners, err := c.ownersOf(ctx, o)

	switch {
	case err != nil || len(owners.gone) == 0 || o.GetDeletionTimestamp() != nil:
		return err
	case len(owners.there) > 0:
		return patch(ctx, k, o, map[string]any{"ownerReferences": owners.there})
	}

	if err := k.Delete(ctx, o, owners.policy); err != nil && !apierrors.IsConflict(err) {
		return ignoreNotFound(err)
	}

	return nil
}

// owners are what the owners of an object have come to.
type owners struct {
	// there are the references to those that keep it, gone to those that are gone or wait for it to go.
	there, gone []metav1.OwnerReference
	// policy is how it is deleted when nobody keeps it.
	policy metav1.DeletionPropagation
}

func (c *Controller) ownersOf(ctx context.Context, o metav1.Object) (all owners, err error) {
	all.policy = metav1.DeletePropagationBackground

	for _, ref := range o.GetOwnerReferences() {
		owner, known, err := c.owner(ctx, o.GetNamespace(), ref)

		switch {
		case err != nil:
			return all, err
		case !known: // An owner of a kind that is not collected here keeps its dependents.
			all.there = append(all.there, ref)
		case owner == nil:
			all.gone = append(all.gone, ref)
		case owner.GetDeletionTimestamp() != nil && slices.Contains(owner.GetFinalizers(), metav1.FinalizerDeleteDependents):
			all.gone = append(all.gone, ref)
			all.policy = metav1.DeletePropagationForeground
		default:
			all.there = append(all.there, ref)
		}
	}

	return all, nil
}

// owner returns the object that a reference means, nil if it is gone, and whether its kind is known.
func (c *Controller) owner(ctx context.Context, namespace string, ref metav1.OwnerReference) (metav1.Object, bool, error) {
	k := c.kindOf(ref)
	if k == nil {
		return nil, false, nil
	}

	if o := k.MetadataOf(namespace, ref.Name); o != nil && o.GetUID() == ref.UID {
		return o, true, nil
	}

	// The watch of the owner's kind may lag behind.
	o, err := k.Resource.Get(ctx, namespace, ref.Name)

	switch {
	case apierrors.IsNotFound(err):
		return nil, true, nil
	case err != nil:
		return nil, true, err
	case o.GetUID() != ref.UID:
		return nil, true, nil
	default:
		return o, true, nil
	}
}

// settle does for an object that is deleted what its finalizers ask of the garbage collector.
func (c *Controller) settle(ctx context.Context, k *collected, o metav1.Object) error {
	switch {
	case slices.Contains(o.GetFinalizers(), metav1.FinalizerOrphanDependents):
		return c.orphan(ctx, k, o)
	case slices.Contains(o.GetFinalizers(), metav1.FinalizerDeleteDependents):
		waits := false

		c.dependents(o, func(dk *collected, d metav1.Object) {
			if ref := owns(d, o.GetUID()); ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion {
				waits = true
			}

			if d.GetDeletionTimestamp() == nil {
				c.garbage.Add(dk.of.Resource + "/" + kube.Key(d))
			}
		})

		if waits {
			return nil
		}

		return c.strip(ctx, k, o, metav1.FinalizerDeleteDependents)
	default:
		return nil
	}
}

// orphan takes the references to an owner from all its dependents.
func (c *Controller) orphan(ctx context.Context, k *collected, o metav1.Object) error {
	var failed error

	c.dependents(o, func(dk *collected, d metav1.Object) {
		rest := slices.DeleteFunc(slices.Clone(d.GetOwnerReferences()), func(r metav1.OwnerReference) bool { return r.UID == o.GetUID() })

		if err := patch(ctx, dk, d, map[string]any{"ownerReferences": rest}); err != nil {
			failed = err
		}
	})

	if failed != nil {
		return failed
	}

	return c.strip(ctx, k, o, metav1.FinalizerOrphanDependents)
}

// strip takes a finalizer from an object.
func (c *Controller) strip(ctx context.Context, k *collected, o metav1.Object, finalizer string) error {
	rest := slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == finalizer })

	return patch(ctx, k, o, map[string]any{"finalizers": rest})
}

// patch changes metadata of the very version of an object that is known.
func patch(ctx context.Context, k *collected, o metav1.Object, metadata map[string]any) error {
	metadata["uid"], metadata["resourceVersion"] = o.GetUID(), o.GetResourceVersion()

	body, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return fmt.Errorf("encode patch of %s: %w", k.of.Resource, err)
	}

	if _, err = k.Patch(ctx, o.GetNamespace(), o.GetName(), types.MergePatchType, body); apierrors.IsNotFound(err) {
		return nil
	}

	return err
}
