package cdi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// event is what CDI tells of a change of phase.
type event struct{ kind, reason, message string }

// sync looks after one DataVolume.
func (c *Controller) sync(ctx context.Context, key string) error {
	stored := c.dvs.Get(split(key))

	switch {
	case stored == nil:
		c.forget(key)

		return nil
	case stored.DeletionTimestamp != nil || c.isCollected(stored):
		return nil
	}

	dv := stored.DeepCopy()
	pvc := c.claims.Get(dv.Namespace, dv.Name)

	var (
		told    event
		err     error
		problem event // why there is no claim
	)

	switch {
	case pvc == nil:
		pvc, problem, err = c.makeClaim(ctx, dv)
		if pvc == nil && dv.Status.Phase == cdi.PhaseUnset {
			dv.Status.Phase = cdi.Pending
		}
	case pvc.DeletionTimestamp != nil:
		problem = event{corev1.EventTypeWarning, "ErrResourceMarkedForDeletion", fmt.Sprintf("Resource %q marked for deletion", pvc.Name)}
		pvc = nil
	case !metav1.IsControlledBy(pvc, dv):
		pvc, problem, err = c.adopt(ctx, dv, pvc)
	}

	if pvc != nil && err == nil {
		dv.Status.ClaimName = pvc.Name
		pvc, told, err = c.populate(ctx, dv, pvc)
	}

	if err != nil {
		return err
	}

	c.conditions(dv, pvc, problem)

	if equality.Semantic.DeepEqual(dv.Status, stored.Status) {
		return c.collect(ctx, dv, pvc)
	}

	updated, err := c.dvs.Update(ctx, dv, "status")
	if err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}

		return err
	}

	c.dvs.Put(updated)
	c.tell(ctx, stored, updated, told, problem)

	return c.collect(ctx, updated, pvc)
}

// tell writes Events: of a change of phase, and of what is in the way.
func (c *Controller) tell(ctx context.Context, before, now *cdi.DataVolume, told, problem event) {
	if told.kind != "" && before.Status.Phase != now.Status.Phase {
		c.events.Event(ctx, now, kube.DataVolumes, told.kind, told.reason, told.message)
	}

	if problem.kind != "" {
		c.events.Event(ctx, now, kube.DataVolumes, problem.kind, problem.reason, problem.message)
	}

	running, was := find(now, cdi.DataVolumeRunning), find(before, cdi.DataVolumeRunning)
	if running != nil && running.Reason == "Error" && (was == nil || was.Message != running.Message) {
		c.events.Event(ctx, now, kube.DataVolumes, corev1.EventTypeWarning, "Error", running.Message)
	}
}

func find(dv *cdi.DataVolume, t cdi.DataVolumeConditionType) *cdi.DataVolumeCondition {
	i := slices.IndexFunc(dv.Status.Conditions, func(c cdi.DataVolumeCondition) bool { return c.Type == t })
	if i < 0 {
		return nil
	}

	return &dv.Status.Conditions[i]
}

// makeClaim makes the claim of a DataVolume, or says what is in the way.
func (c *Controller) makeClaim(ctx context.Context, dv *cdi.DataVolume) (*corev1.PersistentVolumeClaim, event, error) {
	of, problem := c.checkSource(dv)
	if problem.kind != "" {
		return nil, problem, nil
	}

	spec, class, err := c.render(dv, of)
	if err != nil {
		return nil, event{corev1.EventTypeWarning, "ErrClaimNotValid", err.Error()}, nil //nolint:nilerr // It is told in the status.
	}

	if problem := checkRestore(of, spec); problem.kind != "" {
		return nil, problem, nil
	}

	pvc := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: dv.Namespace, Name: dv.Name, Labels: maps.Clone(dv.Labels), Annotations: maps.Clone(dv.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(dv, kube.DataVolumes.GroupVersionKind)},
		},
		Spec: *spec,
	}

	if pvc.Labels == nil {
		pvc.Labels = map[string]string{}
	}

	if pvc.Annotations == nil {
		pvc.Annotations = map[string]string{}
	}

	pvc.Labels["app"] = "containerized-data-importer"
	pvc.Labels["app.kubernetes.io/component"] = "storage"
	pvc.Labels["app.kubernetes.io/managed-by"] = "cdi-controller"
	pvc.Annotations[annContentType] = string(cdi.DataVolumeKubeVirt)
	pvc.Annotations[annCreatedFor] = string(dv.UID)

	if csi(class) && dv.Spec.Source != nil {
		pvc.Annotations[annUsePopulator] = "true"
		pvc.Spec.DataSourceRef = populatorRef(dv)
	}

	annotateSource(dv, pvc)

	made, err := c.claims.Create(ctx, pvc)

	switch {
	case apierrors.IsAlreadyExists(err):
		return nil, event{}, err // Its event has not come yet, or somebody was faster.
	case err != nil && strings.Contains(err.Error(), "exceeded quota:"):
		dv.Status.Phase = cdi.Pending
		c.queue.After(kube.Key(dv), quotaRetry)

		return nil, event{corev1.EventTypeWarning, "ErrExceededQuota", err.Error()}, nil
	case err != nil:
		return nil, event{}, err
	}

	c.claims.Put(made)

	return made, event{}, nil
}

// quotaRetry is when a claim that a quota refused is tried again.
const quotaRetry = 30 * time.Second

func annotateSource(dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim) {
	s := dv.Spec.Source

	switch {
	case s == nil:
	case s.HTTP != nil:
		pvc.Annotations[annSource], pvc.Annotations[annEndpoint] = "http", s.HTTP.URL
	case s.Registry != nil:
		pvc.Annotations[annSource] = "registry"
		if s.Registry.URL != nil {
			pvc.Annotations[annEndpoint] = *s.Registry.URL
		}
	case s.Blank != nil:
		pvc.Annotations[annSource] = "none"
	case s.PVC != nil:
		pvc.Annotations[annClone] = s.PVC.Namespace + "/" + s.PVC.Name
	case s.Snapshot != nil && pvc.Annotations[annUsePopulator] != "true":
		pvc.Annotations[annClone] = fmt.Sprintf("%s/%s-host-assisted-source-pvc", s.Snapshot.Namespace, dv.UID)
	}
}

func populatorRef(dv *cdi.DataVolume) *corev1.TypedObjectReference {
	kind, prefix := "VolumeImportSource", "volume-import-source-"
	if _, clone := cloneSource(dv); clone {
		kind, prefix = "VolumeCloneSource", "volume-clone-source-"
	}

	return &corev1.TypedObjectReference{
		APIGroup: new(kube.DataVolumes.Group), Kind: kind, Name: prefix + string(dv.UID),
	}
}

// collect deletes a DataVolume that has done its work, where CDI is configured so. Its claim stays, and belongs to its owner.
func (c *Controller) collect(ctx context.Context, dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim) error {
	if c.opts.CollectAfter == 0 || dv.Status.Phase != cdi.Succeeded || pvc == nil || pvc.Status.Phase != corev1.ClaimBound ||
		dv.Annotations[annCollect] == "false" {
		return nil
	}

	ready := find(dv, cdi.DataVolumeReady)
	if ready == nil {
		return nil
	}

	if left := time.Until(ready.LastTransitionTime.Add(c.opts.CollectAfter)); left > 0 {
		c.queue.After(kube.Key(dv), left)

		return nil
	}

	pvc = pvc.DeepCopy()
	pvc.OwnerReferences = slices.DeleteFunc(pvc.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == dv.UID })
	pvc.OwnerReferences = append(pvc.OwnerReferences, dv.OwnerReferences...)

	updated, err := c.claims.Update(ctx, pvc)
	if err != nil {
		return err
	}

	c.claims.Put(updated)

	c.mu.Lock()
	c.collected[kube.Key(dv)] = dv.UID
	c.mu.Unlock()

	if err := c.dvs.Delete(ctx, dv, metav1.DeletePropagationBackground); err != nil && !apierrors.IsNotFound(err) {
		return err
	}

	return nil
}
