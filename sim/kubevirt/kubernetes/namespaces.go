package kubernetes

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// end empties a namespace that is deleted, and lets it go then.
func (c *Controller) end(ctx context.Context, key string) error {
	_, name := split(key)

	n := c.namespaces.Get("", name)
	if n == nil || n.DeletionTimestamp == nil {
		return nil
	}

	empty := true

	for _, k := range c.kinds {
		for _, o := range k.AllMetadata() {
			if o.GetNamespace() != name {
				continue
			}

			empty = false

			if o.GetDeletionTimestamp() != nil {
				continue
			}

			if err := k.Delete(ctx, o, metav1.DeletePropagationBackground); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return err
			}
		}
	}

	if !empty || len(n.Spec.Finalizers) == 0 {
		return nil
	}

	n = n.DeepCopy()
	n.Spec.Finalizers = []corev1.FinalizerName{}

	_, err := c.namespaces.Update(ctx, n, "finalize")

	return ignoreNotFound(err)
}
