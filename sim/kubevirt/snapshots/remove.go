package snapshots

import (
	"context"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// restoringRetry is how often it is looked whether the volume is made: who makes it may tell of its end before it has seen that itself.
const restoringRetry = time.Second

// remove lets a snapshot go that is deleted: first its content, unless its class retains that. A snapshot from which a volume is being made
// stays until that is done.
func (c *Controller) remove(ctx context.Context, s *snapshotv1.VolumeSnapshot) error {
	content := c.contents.Get("", contentName(s))

	if content != nil && c.restoring(s) {
		if w := c.work(s); !w.told {
			w.told = true
			c.events.Event(ctx, s, kube.VolumeSnapshots, corev1.EventTypeWarning, "SnapshotDeletePending", "Snapshot is being used to restore a PVC")
		}

		c.queue.After(kube.Key(s), restoringRetry)

		return nil
	}

	if content != nil {
		gone, err := c.removeContent(ctx, s, content)
		if err != nil || !gone {
			return err
		}
	}

	rest := slices.DeleteFunc(slices.Clone(s.Finalizers), func(f string) bool { return f == asSource || f == bound })
	if len(rest) == len(s.Finalizers) {
		return nil
	}

	s = s.DeepCopy()
	s.Finalizers = rest

	_, err := c.snapshots.Update(ctx, s)

	return ignoreNotFound(err)
}

// removeContent has the driver delete a snapshot, and says whether nothing of it is in the way any more.
func (c *Controller) removeContent(ctx context.Context, s *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) (gone bool, err error) {
	if content.Annotations[beingDeleted] != "yes" {
		content = content.DeepCopy()
		metav1.SetMetaDataAnnotation(&content.ObjectMeta, beingDeleted, "yes")

		updated, err := c.contents.Update(ctx, content)
		if err != nil {
			return false, err
		}

		c.contents.Put(updated)
		content = updated
	}

	if content.Spec.DeletionPolicy != snapshotv1.VolumeSnapshotContentDelete {
		return true, nil
	}

	if content.DeletionTimestamp == nil {
		if err := c.contents.Delete(ctx, content, metav1.DeletePropagationBackground); err != nil && !apierrors.IsNotFound(err) {
			return false, err
		}

		return false, nil // Its event follows.
	}

	if !slices.Contains(content.Finalizers, contentBound) {
		return false, nil
	}

	content = content.DeepCopy()
	content.Finalizers = slices.DeleteFunc(content.Finalizers, func(f string) bool { return f == contentBound })

	_, err = c.contents.Update(ctx, content)

	return false, ignoreNotFound(err)
}

// restoring says whether a volume is being made from a snapshot.
func (c *Controller) restoring(s *snapshotv1.VolumeSnapshot) bool {
	if c.opts.Restoring != nil && c.opts.Restoring(s.Namespace, s.Name) {
		return true
	}

	return slices.ContainsFunc(c.claims.List(), func(pvc *corev1.PersistentVolumeClaim) bool {
		return pvc.Namespace == s.Namespace && pvc.Status.Phase == corev1.ClaimPending && from(pvc, s)
	})
}

// release lets a claim go of which no snapshot is being made any more.
func (c *Controller) release(ctx context.Context, key string) error {
	pvc := c.claims.Get(split(key))
	if pvc == nil || !slices.Contains(pvc.Finalizers, claimAsSource) {
		return nil
	}

	for _, s := range c.snapshots.List() {
		if s.Namespace == pvc.Namespace && sourceOf(s) == pvc.Name && !ready(s) {
			return nil
		}
	}

	pvc = pvc.DeepCopy()
	pvc.Finalizers = slices.DeleteFunc(pvc.Finalizers, func(f string) bool { return f == claimAsSource })

	updated, err := c.claims.Update(ctx, pvc)
	if err != nil {
		return ignoreNotFound(err)
	}

	c.claims.Put(updated)

	return nil
}
