package snapshots

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

const (
	finalizers = "snapshot.storage.kubernetes.io/"

	// asSource keeps a snapshot while a volume is made from it, bound while its content is there.
	asSource = finalizers + "volumesnapshot-as-source-protection"
	bound    = finalizers + "volumesnapshot-bound-protection"
	// contentBound keeps a content until its driver has deleted what it means.
	contentBound = finalizers + "volumesnapshotcontent-bound-protection"
	// claimAsSource keeps a claim while a snapshot of it is made.
	claimAsSource = finalizers + "pvc-as-source-protection"

	beingDeleted = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	defaultClass = "snapshot.storage.kubernetes.io/is-default-class"

	defaultStorageClass = "storageclass.kubernetes.io/is-default-class"
)

// The pause before what failed is tried again.
const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
)

// problem is why there is no snapshot.
type problem struct{ reason, message string }

// sync looks after one snapshot.
func (c *Controller) sync(ctx context.Context, key string) error {
	s := c.snapshots.Get(split(key))

	switch {
	case s == nil:
		c.forget(key)

		return nil
	case c.absent(key):
		return nil
	case s.DeletionTimestamp != nil:
		return c.remove(ctx, s)
	case sourceOf(s) == "": // It is of a content that somebody made.
		return nil
	}

	s, err := c.finalize(ctx, s, asSource)
	if err != nil {
		return ignoreNotFound(err)
	}

	s, class, p, err := c.classOf(ctx, s)

	if err != nil || p.message != "" {
		return c.failed(ctx, s, p, err)
	}

	content := c.contents.Get("", contentName(s))

	if content == nil {
		if ready(s) {
			return c.tell(ctx, s, problem{"SnapshotContentMissing", "VolumeSnapshotContent is missing"})
		}

		if content, p, err = c.makeContent(ctx, s, class); err != nil || content == nil {
			return c.failed(ctx, s, p, err)
		}
	}

	if content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete {
		if s, err = c.finalize(ctx, s, bound); err != nil {
			return ignoreNotFound(err)
		}
	}

	if content, err = c.take(ctx, key, s, content); err != nil {
		return err
	}

	return c.show(ctx, s, content)
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}

	return err
}

func contentName(s *snapshotv1.VolumeSnapshot) string { return "snapcontent-" + string(s.UID) }

func (c *Controller) finalize(ctx context.Context, s *snapshotv1.VolumeSnapshot, finalizer string) (*snapshotv1.VolumeSnapshot, error) {
	if slices.Contains(s.Finalizers, finalizer) {
		return s, nil
	}

	s = s.DeepCopy()
	s.Finalizers = append(s.Finalizers, finalizer)

	return c.update(ctx, s)
}

func (c *Controller) update(ctx context.Context, s *snapshotv1.VolumeSnapshot, subresource ...string) (*snapshotv1.VolumeSnapshot, error) {
	updated, err := c.snapshots.Update(ctx, s, subresource...)
	if err != nil {
		return s, err
	}

	c.snapshots.Put(updated)

	return updated, nil
}

// failed tells what is in the way of a snapshot, and tries again after a growing pause.
func (c *Controller) failed(ctx context.Context, s *snapshotv1.VolumeSnapshot, p problem, err error) error {
	if err != nil {
		return ignoreNotFound(err)
	}

	w := c.work(s)
	c.queue.After(kube.Key(s), min(firstRetry<<min(w.attempts, 16), lastRetry))
	w.attempts++

	return c.tell(ctx, s, p)
}

// tell writes an error into the status of a snapshot.
func (c *Controller) tell(ctx context.Context, s *snapshotv1.VolumeSnapshot, p problem) error {
	if s.Status != nil && s.Status.Error != nil && s.Status.Error.Message != nil && *s.Status.Error.Message == p.message {
		return nil
	}

	s = s.DeepCopy()
	if s.Status == nil {
		s.Status = &snapshotv1.VolumeSnapshotStatus{}
	}

	s.Status.ReadyToUse = new(false)
	s.Status.Error = &snapshotv1.VolumeSnapshotError{Time: new(metav1.NewTime(time.Now())), Message: &p.message}

	s, err := c.update(ctx, s, "status")
	if err != nil {
		return ignoreNotFound(err)
	}

	c.events.Event(ctx, s, kube.VolumeSnapshots, corev1.EventTypeWarning, p.reason, p.message)

	return nil
}

// classOf returns the class of a snapshot. One that names none gets the default one of its claim's driver.
func (c *Controller) classOf(ctx context.Context, s *snapshotv1.VolumeSnapshot) (*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotClass, problem, error) {
	if name := s.Spec.VolumeSnapshotClassName; name != nil {
		class := c.classes.Get("", *name)
		if class == nil {
			return s, nil, problem{"GetSnapshotClassFailed",
				fmt.Sprintf("Failed to get snapshot class with error volumesnapshotclass.snapshot.storage.k8s.io %q not found", *name)}, nil
		}

		return s, class, problem{}, nil
	}

	no := func(format string, args ...any) (*snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshotClass, problem, error) {
		return s, nil, problem{"SetDefaultSnapshotClassFailed", "Failed to set default snapshot class with error " + fmt.Sprintf(format, args...)}, nil
	}

	pvc := c.claims.Get(s.Namespace, sourceOf(s))
	if pvc == nil {
		return no("failed to retrieve PVC %s from the lister: %q", sourceOf(s), fmt.Sprintf("persistentvolumeclaim %q not found", sourceOf(s)))
	}

	storage := c.storageOf(pvc)
	if storage == nil {
		return no("cannot figure out the snapshot class automatically, please specify one in snapshot spec")
	}

	var defaults []*snapshotv1.VolumeSnapshotClass

	for _, class := range c.classes.List() {
		if class.Annotations[defaultClass] == "true" && class.Driver == storage.Provisioner {
			defaults = append(defaults, class)
		}
	}

	switch len(defaults) {
	case 0:
		return no("cannot find default snapshot class")
	case 1:
	default:
		return no("%d default snapshot classes were found", len(defaults))
	}

	s = s.DeepCopy()
	s.Spec.VolumeSnapshotClassName = &defaults[0].Name
	s, err := c.update(ctx, s)

	return s, defaults[0], problem{}, err
}

// storageOf returns the storage class of a claim, nil if there is none.
func (c *Controller) storageOf(pvc *corev1.PersistentVolumeClaim) *storagev1.StorageClass {
	if name := pvc.Spec.StorageClassName; name != nil {
		return c.storage.Get("", *name)
	}

	for _, class := range c.storage.List() {
		if class.Annotations[defaultStorageClass] == "true" {
			return class
		}
	}

	return nil
}

// makeContent makes the content of a snapshot, or says what is in the way.
func (c *Controller) makeContent(ctx context.Context, s *snapshotv1.VolumeSnapshot, class *snapshotv1.VolumeSnapshotClass,
) (*snapshotv1.VolumeSnapshotContent, problem, error) {
	no := func(format string, args ...any) (*snapshotv1.VolumeSnapshotContent, problem, error) {
		return nil, problem{"SnapshotContentCreationFailed", "Failed to create snapshot content with error " + fmt.Sprintf(format, args...)}, nil
	}

	pvc := c.claims.Get(s.Namespace, sourceOf(s))

	switch {
	case pvc == nil:
		return no("snapshot controller failed to update %s on API server: cannot get claim from snapshot", s.Name)
	case pvc.DeletionTimestamp != nil:
		return no("snapshot controller failed to update %s on API server: cannot add finalizer on claim because it is being deleted", pvc.Name)
	}

	if !slices.Contains(pvc.Finalizers, claimAsSource) {
		pvc = pvc.DeepCopy()
		pvc.Finalizers = append(pvc.Finalizers, claimAsSource)

		updated, err := c.claims.Update(ctx, pvc)
		if err != nil {
			return nil, problem{}, err
		}

		c.claims.Put(updated)
		pvc = updated
	}

	if pvc.Status.Phase != corev1.ClaimBound {
		return no("failed to get input parameters to create snapshot %s: %q", s.Name,
			fmt.Sprintf("the PVC %s is not yet bound to a PV, will not attempt to take a snapshot", pvc.Name))
	}

	if storage := c.storageOf(pvc); storage == nil || !strings.Contains(storage.Provisioner, "csi") {
		return no("cannot find CSI PersistentVolumeSource for volume %s", pvc.Spec.VolumeName)
	}

	mode := corev1.PersistentVolumeFilesystem
	if pvc.Spec.VolumeMode != nil {
		mode = *pvc.Spec.VolumeMode
	}

	made, err := c.contents.Create(ctx, &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: contentName(s), Finalizers: []string{contentBound}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				APIVersion: kube.VolumeSnapshots.GroupVersion().String(), Kind: kube.VolumeSnapshots.Kind,
				Namespace: s.Namespace, Name: s.Name, UID: s.UID, ResourceVersion: s.ResourceVersion,
			},
			DeletionPolicy: class.DeletionPolicy, Driver: class.Driver, VolumeSnapshotClassName: &class.Name,
			Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &pvc.Spec.VolumeName}, SourceVolumeMode: &mode,
		},
	})
	if err != nil {
		return nil, problem{}, err
	}

	c.contents.Put(made)
	c.events.Event(ctx, s, kube.VolumeSnapshots, corev1.EventTypeNormal, "CreatingSnapshot",
		fmt.Sprintf("Waiting for a snapshot %s to be created by the CSI driver.", kube.Key(s)))

	return made, problem{}, nil
}

// take is what the driver's sidecar does for a content.
func (c *Controller) take(ctx context.Context, key string, s *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent,
) (*snapshotv1.VolumeSnapshotContent, error) {
	w := c.work(s)

	switch {
	case content.DeletionTimestamp != nil || content.Status != nil && content.Status.ReadyToUse != nil && *content.Status.ReadyToUse:
		return content, nil
	case time.Now().Before(w.retry):
		c.queue.After(key, time.Until(w.retry))

		return content, nil
	}

	// Once the driver has begun, the claim may go.
	pvc := c.claims.Get(s.Namespace, sourceOf(s))
	status := &snapshotv1.VolumeSnapshotContentStatus{ReadyToUse: new(false)}
	message := ""

	if w.began.IsZero() {
		message = c.fails(key)

		if message == "" && (pvc == nil || content.Spec.Driver != c.driver(pvc)) {
			message = fmt.Sprintf("rpc error: code = NotFound desc = volume %s does not exist", *content.Spec.Source.VolumeHandle)
		}
	}

	switch {
	case message != "":
		w.retry = time.Now().Add(min(firstRetry<<min(w.attempts, 16), lastRetry))
		w.attempts++
		c.queue.After(key, time.Until(w.retry))
		message = fmt.Sprintf("Failed to check and update snapshot content: failed to take snapshot of the volume %s: %q", *content.Spec.Source.VolumeHandle, message)
		status.Error = &snapshotv1.VolumeSnapshotError{Time: new(metav1.NewTime(time.Now())), Message: &message}
	case w.began.IsZero():
		size := pvc.Status.Capacity[corev1.ResourceStorage]
		w.began, w.size = time.Now(), size.Value()
	}

	if message == "" {
		switch left := time.Until(w.began.Add(c.opts.Take)); {
		case left > 0:
			c.queue.After(key, left)

			return content, nil
		case c.slow(key):
			return content, nil
		}

		status.ReadyToUse, status.SnapshotHandle = new(true), new("snapshot-"+string(s.UID))
		status.CreationTime, status.RestoreSize = new(w.began.UnixNano()), &w.size
	}

	content = content.DeepCopy()
	content.Status = status

	updated, err := c.contents.Update(ctx, content, "status")
	if err != nil {
		return nil, err
	}

	c.contents.Put(updated)

	return updated, nil
}

// driver is the CSI driver of a claim.
func (c *Controller) driver(pvc *corev1.PersistentVolumeClaim) string {
	if class := c.storageOf(pvc); class != nil {
		return class.Provisioner
	}

	return ""
}

// show copies the status of a content into that of its snapshot.
func (c *Controller) show(ctx context.Context, s *snapshotv1.VolumeSnapshot, content *snapshotv1.VolumeSnapshotContent) error {
	before := s
	s = s.DeepCopy()

	if s.Status == nil {
		s.Status = &snapshotv1.VolumeSnapshotStatus{ReadyToUse: new(false)}
	}

	status := s.Status
	status.BoundVolumeSnapshotContentName = &content.Name

	if is := content.Status; is != nil {
		if is.CreationTime != nil {
			status.CreationTime = new(metav1.NewTime(time.Unix(0, *is.CreationTime)))
		}

		if is.RestoreSize != nil {
			status.RestoreSize = resource.NewQuantity(*is.RestoreSize, resource.BinarySI)
		}

		if is.ReadyToUse != nil {
			status.ReadyToUse = is.ReadyToUse
		}

		if is.Error != nil {
			status.Error = is.Error
		}
	}

	if ready(s) {
		status.Error = nil
	}

	if before.Status != nil && same(before.Status, status) {
		return nil
	}

	updated, err := c.update(ctx, s, "status")
	if err != nil {
		return ignoreNotFound(err)
	}

	switch {
	case ready(updated) && !ready(before):
		c.events.Event(ctx, updated, kube.VolumeSnapshots, corev1.EventTypeNormal, "SnapshotReady",
			fmt.Sprintf("Snapshot %s is ready to use.", kube.Key(updated)))
	case updated.Status.Error != nil:
		c.events.Event(ctx, updated, kube.VolumeSnapshots, corev1.EventTypeWarning, "SnapshotCreationFailed", *updated.Status.Error.Message)
	}

	return nil
}

// same compares statuses but for fractions of seconds, which the API server does not keep, and the time of an error.
func same(a, b *snapshotv1.VolumeSnapshotStatus) bool {
	a, b = a.DeepCopy(), b.DeepCopy()

	for _, s := range []*snapshotv1.VolumeSnapshotStatus{a, b} {
		if s.CreationTime != nil {
			s.CreationTime = new(metav1.NewTime(s.CreationTime.Truncate(time.Second)))
		}

		if s.Error != nil {
			s.Error.Time = nil
		}
	}

	return equality.Semantic.DeepEqual(a, b)
}
