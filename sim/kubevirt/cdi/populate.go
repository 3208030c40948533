package cdi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// populate takes the work on a claim one step on. It sets phase and progress of the DataVolume, and returns the claim as it is then.
func (c *Controller) populate(ctx context.Context, dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, event, error) {
	if pvc.Status.Phase == corev1.ClaimLost {
		dv.Status.Phase = cdi.Failed

		return pvc, event{corev1.EventTypeWarning, "ErrClaimLost", fmt.Sprintf("PVC %s lost", pvc.Name)}, nil
	}

	switch {
	case pvc.Annotations[annPopulatedFor] == dv.Name || dv.Spec.Source == nil:
		return c.finished(dv, pvc)
	case adoptable(dv, pvc):
		dv.Status.Phase, dv.Status.Progress = cdi.Succeeded, "100.0%" // Also if nothing has used it yet.

		return pvc, event{}, nil
	}

	if dv.Status.Phase == cdi.Failed {
		return pvc, event{}, nil
	}

	if dv.Status.Progress == "" {
		dv.Status.Progress = "N/A"
	}

	populator := pvc.Annotations[annUsePopulator] == "true"

	if pvc.Status.Phase != corev1.ClaimBound {
		waits := c.waits(pvc)

		if waits && dv.Annotations[annImmediate] != "" {
			updated, err := c.annotate(ctx, pvc, map[string]string{selectedNode: c.opts.Node})

			return updated, event{}, err
		}

		switch {
		case waits && populator:
			dv.Status.Phase = cdi.PendingPopulation

			return pvc, event{}, nil
		case waits:
			dv.Status.Phase = cdi.WaitForFirstConsumer

			return pvc, event{}, nil
		case !populator:
			dv.Status.Phase = cdi.Pending

			return pvc, event{}, nil
		}
	} else if dv.Status.Phase == cdi.PhaseUnset || dv.Status.Phase == cdi.Pending || dv.Status.Phase == cdi.WaitForFirstConsumer {
		dv.Status.Phase = cdi.PVCBound
	}

	switch from, clone := cloneSource(dv); {
	case clone && from.snapshot():
		return c.restore(ctx, dv, pvc, from)
	case clone:
		return c.clone(ctx, dv, pvc)
	}

	return c.imports(ctx, dv, pvc)
}

// waits says whether a claim is bound only when it is used, and has not been yet.
func (c *Controller) waits(pvc *corev1.PersistentVolumeClaim) bool {
	class := c.class(pvc.Spec.StorageClassName)

	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer &&
		pvc.Annotations[selectedNode] == ""
}

// finished is a claim that has its data. One that populators fill is bound only then.
func (c *Controller) finished(dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, event, error) {
	if dv.Status.Phase == cdi.Succeeded || pvc.Status.Phase != corev1.ClaimBound {
		return pvc, event{}, nil
	}

	dv.Status.Phase, dv.Status.Progress = cdi.Succeeded, "100.0%"

	if from, clone := cloneSource(dv); clone {
		return pvc, event{corev1.EventTypeNormal, "CloneSucceeded",
			fmt.Sprintf("Successfully cloned from %s into %s/%s", from, pvc.Namespace, pvc.Name)}, nil
	}

	return pvc, event{corev1.EventTypeNormal, "ImportSucceeded", "Successfully imported into PVC " + pvc.Name}, nil
}

// annotate changes annotations of a claim; an empty value takes one away.
func (c *Controller) annotate(ctx context.Context, pvc *corev1.PersistentVolumeClaim, values map[string]string) (*corev1.PersistentVolumeClaim, error) {
	changed := pvc.DeepCopy()
	if changed.Annotations == nil {
		changed.Annotations = map[string]string{}
	}

	for key, value := range values {
		if value == "" && key != annRunningMessage {
			delete(changed.Annotations, key)
		} else {
			changed.Annotations[key] = value
		}
	}

	if maps.Equal(changed.Annotations, pvc.Annotations) {
		return pvc, nil
	}

	updated, err := c.claims.Update(ctx, changed)
	if err != nil {
		return pvc, err
	}

	c.claims.Put(updated)

	return updated, nil
}

// states of a worker's pod in annotations of the claim.
func pod(phase corev1.PodPhase, running, reason, message string, restarts int) map[string]string {
	return map[string]string{
		annPodPhase: string(phase), annPodRestarts: strconv.Itoa(restarts), annPodSchedulable: "true",
		annRunning: running, annRunningReason: reason, annRunningMessage: message,
	}
}

// imports takes an import one step on.
func (c *Controller) imports(ctx context.Context, dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, event, error) {
	j, key := c.job(dv, pvc.UID), kube.Key(dv)

	c.mu.Lock()
	now := *j
	c.mu.Unlock()

	scheduled := event{corev1.EventTypeNormal, "ImportScheduled", fmt.Sprintf("Import into %s scheduled", pvc.Name)}
	progressing := event{corev1.EventTypeNormal, "ImportInProgress", fmt.Sprintf("Import into %s in progress", pvc.Name)}

	dv.Status.RestartCount = int32(now.restarts) //nolint:gosec // It counts restarts.

	switch {
	case now.fatal:
		dv.Status.Phase = cdi.Failed
		state := pod(corev1.PodFailed, "false", "ChecksumError", now.failure, now.restarts)
		state[annFatal] = "true"
		pvc, err := c.annotate(ctx, pvc, state)

		return pvc, event{corev1.EventTypeWarning, "ImportFailed", "Failed to import into PVC " + dv.Name}, err
	case now.failure != "" && time.Now().Before(now.retry):
		c.queue.After(key, time.Until(now.retry))
		pvc, err := c.annotate(ctx, pvc, pod(corev1.PodRunning, "false", "Error", now.failure, now.restarts))

		return pvc, progressing, err
	case now.done:
		return c.complete(ctx, dv, pvc, content{image: urlOf(dv), size: now.image.VirtualSize})
	case c.unschedulable(key) || c.withheld(key):
		dv.Status.Phase = cdi.ImportScheduled
		state := pod(corev1.PodPending, "false", "ContainerCreating", "", now.restarts)
		state[annPodSchedulable] = "false"
		pvc, err := c.annotate(ctx, pvc, state)

		return pvc, scheduled, err
	}

	if left := time.Until(now.since.Add(c.opts.Times.Schedule)); left > 0 {
		c.queue.After(key, left)

		dv.Status.Phase = cdi.ImportScheduled
		pvc, err := c.annotate(ctx, pvc, pod(corev1.PodPending, "false", "ContainerCreating", "", now.restarts))

		return pvc, scheduled, err
	}

	dv.Status.Phase = cdi.ImportInProgress

	state := pod(corev1.PodRunning, "true", "Pod is running", "", now.restarts)
	state[annImportPod] = "importer-" + dv.Name

	pvc, err := c.annotate(ctx, pvc, state)
	if err != nil {
		return pvc, event{}, err
	}

	c.work(dv, pvc, j)

	return pvc, progressing, nil
}

// withheldRetry is how often it is looked whether there is a volume.
const withheldRetry = 15 * time.Second

// withheld says whether there is no volume for a claim, without which its importer is not scheduled.
func (c *Controller) withheld(key string) bool {
	if c.opts.Withheld == nil || !c.opts.Withheld(split(key)) {
		return false
	}

	c.queue.After(key, withheldRetry)

	return true
}

func urlOf(dv *cdi.DataVolume) string {
	switch s := dv.Spec.Source; {
	case s.HTTP != nil:
		return s.HTTP.URL
	case s.Registry != nil && s.Registry.URL != nil:
		return *s.Registry.URL
	default:
		return ""
	}
}

// quarters is in how many steps the progress of an import is shown.
const quarters = 4

// work lets an importer that runs go on: it fetches, and then takes its time.
func (c *Controller) work(dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim, j *job) {
	key := kube.Key(dv)

	c.mu.Lock()
	defer c.mu.Unlock()

	switch {
	case j.image == nil && !j.fetching:
		j.fetching, j.failure, j.ran = true, "", time.Now()
		ctx, source, room := c.ctx, Source{URL: urlOf(dv), Claim: key}, c.room(pvc)

		c.tasks.Go(func() {
			image, err := c.attempt(ctx, source, room)
			c.attempted(j, image, err)
			c.queue.Add(key)
		})
	case j.image != nil:
		took := time.Since(j.ran)
		left := c.opts.Times.Import - took

		if left <= 0 {
			j.done = true
			c.queue.Add(key)

			return
		}

		done := float64(took) / float64(c.opts.Times.Import)
		dv.Status.Progress = cdi.DataVolumeProgress(fmt.Sprintf("%.2f%%", done*100))
		step := c.opts.Times.Import / quarters
		c.queue.After(key, min(left, step-took%step))
	}
}

// attempt is one run of the importer.
func (c *Controller) attempt(ctx context.Context, s Source, room int64) (Image, error) {
	if f, ok := c.fails(s.Claim); ok {
		return Image{}, f.err()
	}

	if s.URL == "" || c.opts.Fetch == nil { // It is blank, or nobody knows how large it is.
		return Image{}, nil
	}

	image, err := c.opts.Fetch(ctx, s)
	if err != nil {
		return Image{}, err
	}

	return fits(image, room)
}

// errTooSmall is how CDI sums up the many ways in which a disk runs out of room.
var errTooSmall = errors.New("DataVolume too small to contain image")

func fits(image Image, room int64) (Image, error) {
	if image.VirtualSize > room {
		return Image{}, errTooSmall
	}

	return image, nil
}

// The pause before the kubelet starts a container that failed again.
const (
	firstRestart = 10 * time.Second
	lastRestart  = 5 * time.Minute
)

func (c *Controller) attempted(j *job, image Image, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	j.fetching = false

	if err == nil {
		j.image = &image

		return
	}

	var fatal *FatalError

	j.failure, j.fatal = err.Error(), errors.As(err, &fatal)
	j.retry = time.Now().Add(min(firstRestart<<min(j.restarts, 6), lastRestart))
	j.restarts++
}

// complete marks a claim as filled.
func (c *Controller) complete(ctx context.Context, dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim, what content) (*corev1.PersistentVolumeClaim, event, error) {
	j := c.job(dv, pvc.UID)
	what.claim = kube.Key(pvc)

	c.mu.Lock()
	c.contents[pvc.UID] = what
	restarts := j.restarts
	c.mu.Unlock()

	state := pod(corev1.PodSucceeded, "false", "Completed", "Import Complete", restarts)
	if _, clone := cloneSource(dv); clone {
		state[annCloneOf] = "true"
		state[annRunningMessage] = "Clone Complete"
	}

	state[annPopulatedFor] = dv.Name
	if pvc.Annotations[annUsePopulator] == "true" {
		state[annPopulatorProgress] = "100.0%"
	}

	pvc, err := c.annotate(ctx, pvc, state)
	if err != nil {
		c.empty(pvc.UID) // It may have gone before it had anything on it.

		return pvc, event{}, err
	}

	return c.finished(dv, pvc)
}

// clone takes a clone one step on.
func (c *Controller) clone(ctx context.Context, dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, event, error) {
	what, _ := cloneSource(dv)
	j, key := c.job(dv, pvc.UID), kube.Key(dv)
	from := fmt.Sprintf("%s into %s/%s", what, pvc.Namespace, pvc.Name)

	source := c.claims.Get(what.namespace, what.name)
	if source == nil || source.Status.Phase != corev1.ClaimBound || !c.filled(source) || time.Since(j.since) < c.opts.Times.Schedule {
		if left := c.opts.Times.Schedule - time.Since(j.since); left > 0 {
			c.queue.After(key, left)
		}

		dv.Status.Phase = cdi.CloneScheduled

		return pvc, event{corev1.EventTypeNormal, "CloneScheduled", fmt.Sprintf("Cloning from %s scheduled", from)}, nil
	}

	now, failed, err := c.attemptClone(ctx, dv, &pvc, j)
	if failed {
		return pvc, event{corev1.EventTypeWarning, "CloneFailed", fmt.Sprintf("Cloning from %s failed", from)}, err
	}

	phase, told := c.strategy(dv, pvc, source)

	if left := time.Until(now.ran.Add(c.opts.Times.Clone)); left > 0 {
		c.queue.After(key, left)

		dv.Status.Phase = phase
		pvc, err := c.annotate(ctx, pvc, pod(corev1.PodRunning, "true", "Pod is running", "", now.restarts))

		return pvc, told, err
	}

	c.mu.Lock()
	image := c.contents[source.UID]
	c.mu.Unlock()

	return c.complete(ctx, dv, pvc, image)
}

// attemptClone begins a clone, or says that it fails for now.
func (c *Controller) attemptClone(ctx context.Context, dv *cdi.DataVolume, pvc **corev1.PersistentVolumeClaim, j *job) (now job, failed bool, err error) {
	key := kube.Key(dv)

	c.mu.Lock()
	begins := j.ran.IsZero() && !time.Now().Before(j.retry)
	c.mu.Unlock()

	if begins {
		if f, ok := c.fails(key); ok {
			c.attempted(j, Image{}, f.err())
		}
	}

	c.mu.Lock()

	now = *j
	if failed = now.fatal || time.Now().Before(now.retry); !failed && now.ran.IsZero() {
		j.ran = time.Now()
		now.ran = j.ran
	}

	c.mu.Unlock()

	switch {
	case now.fatal:
		dv.Status.Phase = cdi.Failed
		*pvc, err = c.annotate(ctx, *pvc, pod(corev1.PodFailed, "false", "Error", now.failure, now.restarts))
	case failed:
		dv.Status.RestartCount = int32(now.restarts) //nolint:gosec // It counts restarts.
		c.queue.After(key, time.Until(now.retry))
		*pvc, err = c.annotate(ctx, *pvc, pod(corev1.PodRunning, "false", "Error", now.failure, now.restarts))
	}

	return now, failed, err
}

// filled says whether the source of a clone has its data.
func (c *Controller) filled(pvc *corev1.PersistentVolumeClaim) bool {
	dv := c.dvs.Get(pvc.Namespace, pvc.Name)

	return dv == nil || hasData(dv, pvc)
}

// strategy is how a clone is made: by the driver or by a snapshot within a storage class, else by copying.
func (c *Controller) strategy(dv *cdi.DataVolume, pvc, source *corev1.PersistentVolumeClaim) (cdi.DataVolumePhase, event) {
	from, _ := cloneSource(dv)
	strategy := cdi.CloneStrategyHostAssisted
	class := c.class(pvc.Spec.StorageClassName)

	if class != nil && sameClass(source, &pvc.Spec) && block(source) == block(pvc) {
		if profile := c.profiles.Get("", class.Name); profile != nil && profile.Status.CloneStrategy != nil {
			strategy = *profile.Status.CloneStrategy
		} else if csi(class) {
			strategy = cdi.CloneStrategySnapshot
		}

		if strategy == cdi.CloneStrategySnapshot && !c.snapshotsOf(class.Provisioner) {
			strategy = cdi.CloneStrategyHostAssisted
		}
	}

	switch strategy {
	case cdi.CloneStrategyCsiClone:
		return cdi.CSICloneInProgress, event{corev1.EventTypeNormal, "CSICloneInProgress",
			fmt.Sprintf("CSI Volume clone in progress (for pvc %s)", from)}
	case cdi.CloneStrategySnapshot:
		return cdi.SnapshotForSmartCloneInProgress, event{corev1.EventTypeNormal, "SnapshotForSmartCloneInProgress",
			fmt.Sprintf("Creating snapshot for smart-clone is in progress (for pvc %s)", from)}
	default:
		return cdi.CloneInProgress, event{corev1.EventTypeNormal, "CloneInProgress",
			fmt.Sprintf("Cloning from %s into %s/%s in progress", from, pvc.Namespace, pvc.Name)}
	}
}

// conditions writes the conditions of a DataVolume, which are those of its claim and of the annotations there.
func (c *Controller) conditions(dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim, problem event) {
	ready := corev1.ConditionFalse

	switch dv.Status.Phase {
	case cdi.Succeeded:
		ready = corev1.ConditionTrue
	case cdi.Unknown:
		ready = corev1.ConditionUnknown
	}

	set(dv, cdi.DataVolumeReady, ready, problem.reason, problem.message)

	switch {
	case pvc == nil:
		reason, message := problem.reason, problem.message
		if reason == "" {
			reason, message = "NotFound", "No PVC found"
		}

		set(dv, cdi.DataVolumeBound, corev1.ConditionFalse, reason, message)
		set(dv, cdi.DataVolumeRunning, corev1.ConditionFalse, "", "")

		return
	case pvc.Status.Phase == corev1.ClaimBound:
		set(dv, cdi.DataVolumeBound, corev1.ConditionTrue, "Bound", fmt.Sprintf("PVC %s Bound", pvc.Name))
	case pvc.Status.Phase == corev1.ClaimLost:
		set(dv, cdi.DataVolumeBound, corev1.ConditionFalse, "ClaimLost", "Claim Lost")
	default:
		set(dv, cdi.DataVolumeBound, corev1.ConditionFalse, "Pending", fmt.Sprintf("PVC %s Pending", pvc.Name))
	}

	notes := pvc.Annotations

	switch {
	case notes[annPodSchedulable] == "false":
		set(dv, cdi.DataVolumeRunning, corev1.ConditionFalse, "Unschedulable", "Importer pod cannot be scheduled")
	case notes[annRunning] == "true":
		set(dv, cdi.DataVolumeRunning, corev1.ConditionTrue, notes[annRunningReason], notes[annRunningMessage])
		set(dv, cdi.DataVolumeReady, corev1.ConditionFalse, "TransferRunning", "")
	default:
		set(dv, cdi.DataVolumeRunning, corev1.ConditionFalse, notes[annRunningReason], notes[annRunningMessage])
	}
}

func set(dv *cdi.DataVolume, t cdi.DataVolumeConditionType, status corev1.ConditionStatus, reason, message string) {
	old := find(dv, t)
	if old == nil {
		dv.Status.Conditions = append(dv.Status.Conditions, cdi.DataVolumeCondition{Type: t})
		old = find(dv, t)
	}

	now := nowTime()

	if old.Status != status {
		old.LastTransitionTime, old.LastHeartbeatTime = now, now
	} else if old.Reason != reason || old.Message != message {
		old.LastHeartbeatTime = now
	}

	old.Status, old.Reason, old.Message = status, reason, strings.TrimSpace(message)
}

// nowTime is the time as the API has it, in whole seconds: what is set twice within one is no change that is worth a write.
func nowTime() metav1.Time { return metav1.NewTime(time.Now().Truncate(time.Second)) }
