package cdi

import (
	"context"
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// A clone of a snapshot is restored from it by the driver, if that is the snapshot's driver. Else a temporary claim is restored, and copied;
// temporary claims are none here, but keep the snapshot as they do: see Restoring.

func invalidClone(format string, args ...any) event {
	return event{corev1.EventTypeWarning, "CloneValidationFailed",
		"The clone doesn't meet the validation requirements: " + fmt.Sprintf(format, args...)}
}

// checkSnapshot returns the snapshot that a clone is made of, or says why there can be no clone of it yet.
func (c *Controller) checkSnapshot(from source) (*snapshotv1.VolumeSnapshot, event) {
	s := c.snapshots.Get(from.namespace, from.name)

	switch {
	case s == nil:
		return nil, withoutSource(from)
	case s.Status == nil:
		return nil, invalidClone("no status on source snapshot yet")
	case s.Status.Error != nil:
		message := "no details"
		if m := s.Status.Error.Message; m != nil {
			message = *m
		}

		return nil, invalidClone("snapshot in error state with msg: %s", message)
	case s.Spec.VolumeSnapshotClassName == nil:
		return nil, invalidClone("snapshot %s/%s does not have volume snap class populated, can't clone", s.Name, s.Namespace)
	case s.Status.RestoreSize == nil || s.Status.RestoreSize.Sign() < 0:
		return nil, invalidClone("snapshot has no restore size")
	default:
		return s, event{}
	}
}

// checkRestore refuses claims that what is on a snapshot, nil for none, does not fit on.
func checkRestore(of *snapshotv1.VolumeSnapshot, spec *corev1.PersistentVolumeClaimSpec) event {
	if of == nil {
		return event{}
	}

	asked := spec.Resources.Requests[corev1.ResourceStorage]
	least := of.Status.RestoreSize

	switch {
	case asked.IsZero() && least.IsZero():
		return invalidClone("size not specified by user/provisioner, can't tell how much needed for restore")
	case asked.Cmp(*least) < 0:
		return invalidClone("target resources requests storage size is smaller than the source %d < %d", asked.Value(), least.Value())
	default:
		return event{}
	}
}

// contentOf returns the content that a snapshot is bound to, nil if there is none.
func (c *Controller) contentOf(s *snapshotv1.VolumeSnapshot) *snapshotv1.VolumeSnapshotContent {
	if s == nil || s.Status == nil || s.Status.BoundVolumeSnapshotContentName == nil {
		return nil
	}

	return c.snapshotContent.Get("", *s.Status.BoundVolumeSnapshotContentName)
}

// restore takes a clone of a snapshot one step on.
func (c *Controller) restore(ctx context.Context, dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim, from source) (*corev1.PersistentVolumeClaim, event, error) {
	j, key := c.job(dv, pvc.UID), kube.Key(dv)
	into := fmt.Sprintf("%s into %s/%s", from, pvc.Namespace, pvc.Name)

	c.mu.Lock()
	restored := j.restored
	c.mu.Unlock()

	snapshot := c.snapshots.Get(from.namespace, from.name)
	content := c.contentOf(snapshot)

	if restored == nil && (content == nil || time.Since(j.since) < c.opts.Times.Schedule) {
		if left := c.opts.Times.Schedule - time.Since(j.since); left > 0 {
			c.queue.After(key, left)
		}

		dv.Status.Phase = cdi.CloneScheduled

		return pvc, event{corev1.EventTypeNormal, "CloneScheduled", fmt.Sprintf("Cloning from %s scheduled", into)}, nil
	}

	restoring := event{corev1.EventTypeNormal, "CloneFromSnapshotSourceInProgress",
		fmt.Sprintf("Creating PVC from snapshot source is in progress (for snapshot %s)", from)}

	if restored == nil && !readyToUse(snapshot) {
		dv.Status.Phase = cdi.CloneFromSnapshotSourceInProgress

		return pvc, restoring, nil
	}

	now, failed, err := c.attemptClone(ctx, dv, &pvc, j)
	if failed {
		return pvc, event{corev1.EventTypeWarning, "CloneFailed", fmt.Sprintf("Cloning from %s failed", into)}, err
	}

	if restored == nil {
		restored = c.begin(j, content, c.smart(pvc, content))
	}

	// A copy takes half of its time for the temporary claim.
	end, phase, told := now.ran.Add(c.opts.Times.Clone), cdi.CloneFromSnapshotSourceInProgress, restoring
	middle := end

	if restored.copied {
		if middle = now.ran.Add(c.opts.Times.Clone / 2); !time.Now().Before(middle) {
			phase = cdi.CloneInProgress
			told = event{corev1.EventTypeNormal, "CloneInProgress", fmt.Sprintf("Cloning from %s in progress", into)}
		}
	}

	if !time.Now().Before(middle) {
		c.mu.Lock()
		j.restoring = false
		c.mu.Unlock()
	}

	if left := time.Until(end); left > 0 {
		c.queue.After(key, left)

		if first := time.Until(middle); first > 0 {
			c.queue.After(key, first)
		}

		if phase == cdi.CloneFromSnapshotSourceInProgress && pvc.Annotations[annUsePopulator] != "true" {
			phase, told = cdi.CloneScheduled, event{corev1.EventTypeNormal, "CloneScheduled", fmt.Sprintf("Cloning from %s scheduled", into)}
		}

		dv.Status.Phase = phase
		pvc, err := c.annotate(ctx, pvc, pod(corev1.PodRunning, "true", "Pod is running", "", now.restarts))

		return pvc, told, err
	}

	return c.complete(ctx, dv, pvc, restored.content)
}

// restored is what was on a snapshot, and whether it has to be copied.
type restored struct {
	content

	copied bool
}

// begin makes the volume of a snapshot. What happens to that afterwards does not matter any more.
func (c *Controller) begin(j *job, of *snapshotv1.VolumeSnapshotContent, smart bool) *restored {
	c.mu.Lock()
	defer c.mu.Unlock()

	j.restored, j.restoring = &restored{content: c.contents[volumeOf(of)], copied: !smart}, true

	return j.restored
}

func readyToUse(s *snapshotv1.VolumeSnapshot) bool {
	return s.Status.ReadyToUse != nil && *s.Status.ReadyToUse
}

// smart says whether the driver can restore a snapshot right into the claim.
func (c *Controller) smart(pvc *corev1.PersistentVolumeClaim, of *snapshotv1.VolumeSnapshotContent) bool {
	class := c.class(pvc.Spec.StorageClassName)
	if !csi(class) || class.Provisioner != of.Spec.Driver {
		return false
	}

	return of.Spec.SourceVolumeMode == nil || block(pvc) == (*of.Spec.SourceVolumeMode == corev1.PersistentVolumeBlock)
}

// snapshotsOf says whether a driver has a class of snapshots.
func (c *Controller) snapshotsOf(driver string) bool {
	return slices.ContainsFunc(c.snapshotClasses.List(), func(class *snapshotv1.VolumeSnapshotClass) bool { return class.Driver == driver })
}

// Restoring says whether a volume is being made from a snapshot for a clone. Until it is, the snapshot controller keeps the snapshot.
func (c *Controller) Restoring(namespace, name string) bool {
	for _, dv := range c.dvs.List() {
		if from, ok := cloneSource(dv); !ok || !from.snapshot() || from.namespace != namespace || from.name != name || dv.DeletionTimestamp != nil {
			continue
		}

		c.mu.Lock()
		j := c.jobs[kube.Key(dv)]
		restoring := j != nil && j.dv == dv.UID && j.restoring
		c.mu.Unlock()

		if restoring {
			return true
		}
	}

	return false
}
