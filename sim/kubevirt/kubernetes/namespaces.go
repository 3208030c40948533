package kubernetes

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// lookAgain is the pause before kinds that nobody watches are looked at again: that of kube-controller-manager.
const lookAgain = 8 * time.Second

// end empties a namespace that is deleted of every kind that the server has, and lets it go then.
func (c *Controller) end(ctx context.Context, key string) error {
	_, name := split(key)

	n := c.namespaces.Get("", name)
	if n == nil || n.DeletionTimestamp == nil || len(n.Spec.Finalizers) == 0 {
		if n == nil {
			delete(c.cleared, name)
		}

		return nil
	}

	if c.cleared[name] == n.UID && c.waits(name) {
		return nil // It comes again when they change.
	}

	left, err := c.content.Clear(ctx, name)
	if err != nil {
		return err
	}

	c.cleared[name] = n.UID

	if slices.ContainsFunc(left, func(of schema.GroupVersionResource) bool { return !c.watched(of) }) {
		c.ending.After(key, lookAgain)
	}

	if len(left) > 0 {
		return nil
	}

	n = n.DeepCopy()
	n.Spec.Finalizers = []corev1.FinalizerName{}

	_, err = c.namespaces.Update(ctx, n, "finalize")

	return ignoreNotFound(err)
}

// waits says whether a namespace has something in it that is watched, and all of that is being deleted.
func (c *Controller) waits(namespace string) bool {
	some := false

	for _, k := range c.kinds {
		for _, o := range k.AllMetadata() {
			switch {
			case o.GetNamespace() != namespace:
			case o.GetDeletionTimestamp() == nil:
				return false
			default:
				some = true
			}
		}
	}

	return some
}

// watched says whether changes of a kind are seen.
func (c *Controller) watched(of schema.GroupVersionResource) bool {
	return slices.ContainsFunc(c.kinds, func(k collected) bool {
		return k.of.Group == of.Group && k.of.Resource == of.Resource
	})
}
