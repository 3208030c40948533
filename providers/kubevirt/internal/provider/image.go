package provider

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// usedEvery is how often an image is noted to be used.
const usedEvery = time.Hour

const snapshots = "volumesnapshots.snapshot.storage.k8s.io"

// ensureImage has CDI import the boot image, once for all machines of its kind in the namespace. It has no limit on its time: a factory
// builds an image that it is asked for the first time before it answers.
func (m *maker) ensureImage(ctx context.Context, t driver.Task) error {
	image := m.machine(t).Image
	ref := imageRef{image.Namespace, image.Name()}
	m.images.reserve(m.req.Ref, ref)

	if mirror := m.mirrorsOf(m.req.ProviderID, image.Namespace).volumes; mirror != nil {
		if volume, ok := mirror.Get(image.Name()); ok {
			return m.imageOf(ctx, image, volume)
		}
	}

	// One request asks for what is not seen yet, and makes it; the others wait for what comes of that.
	release, ok := m.images.begin(ref)
	if !ok {
		return driver.Pending(pause, "image %q is being looked for", image.Name())
	}
	defer release()

	volume, err := m.cluster.DataVolumes().Get(ctx, image.Namespace, image.Name())

	switch {
	case driver.IsNotFound(err):
		return m.imageWithout(ctx, t, image)
	case err != nil:
		return err
	default:
		return m.imageOf(ctx, image, volume)
	}
}

// imageOf is an image that has a DataVolume.
func (m *maker) imageOf(ctx context.Context, image machine.ImageVolume, volume *cdiv1.DataVolume) error {
	switch {
	case !isImage(image, volume):
		return foreign("DataVolume", volume)
	case volume.DeletionTimestamp != nil:
		return driver.Pending(pause, "an earlier image %q is being deleted", volume.Name)
	}

	if err := m.data.CheckSize(sizeOf(volume)); err != nil {
		return err
	}

	status := machine.DescribeVolume(volume, nil, nil, time.Time{})

	if status.Condition == machine.Working || status.Condition == machine.Stuck {
		r := m.detailsOf(ctx, image.Namespace, waitFor{ref: imageWait(image), what: image.Name()}, nil, volume)
		status = machine.DescribeVolume(volume, r.claim(image.Name()), r.events, r.still[image.Name()])
	}

	switch status.Condition {
	case machine.Ready:
		return m.imageReady(ctx, image, volume)
	case machine.Failed:
		// CDI leaves it as it is for good.
		if err := m.cluster.DataVolumes().Delete(ctx, volume); err != nil && !cluster.Conflicts(err) {
			return err
		}

		return fmt.Errorf("%s; it is deleted, to be imported again", status.Text)
	default:
		return status.Err(pause)
	}
}

// isImage reports whether an object is the image, or part of it.
func isImage(image machine.ImageVolume, o metav1.Object) bool {
	mark, ok := machine.ImageMarkOf(o)

	return ok && mark.ProviderID == image.ProviderID && mark.Name == image.Name()
}

// sizeOf is the size of the disk in an image.
func sizeOf(volume *cdiv1.DataVolume) int64 {
	if volume.Spec.Storage == nil {
		return 0
	}

	size := volume.Spec.Storage.Resources.Requests[corev1.ResourceStorage]

	return size.Value()
}

// imageWithout is an image that has no DataVolume: either CDI has removed that after it was filled, which leaves the claim, or there is
// none yet.
func (m *maker) imageWithout(ctx context.Context, t driver.Task, image machine.ImageVolume) error {
	claim, err := now(ctx, m.mirrorsOf(m.req.ProviderID, image.Namespace).claims, m.cluster.Claims(), image.Namespace, image.Name())

	switch {
	case driver.IsNotFound(err):
		return m.importImage(ctx, t, image)
	case err != nil:
		return err
	case !isImage(image, claim):
		return foreign("volume claim", claim)
	case claim.DeletionTimestamp != nil:
		return driver.Pending(pause, "an earlier image %q is being deleted", claim.Name)
	case filled(claim):
		return m.imageReady(ctx, image, claim)
	case metav1.GetControllerOf(claim) == nil:
		// Nobody will ever fill it.
		if err := m.cluster.Claims().Delete(ctx, claim); err != nil && !cluster.Conflicts(err) {
			return err
		}
	}

	return driver.Pending(pause, "what is left of an earlier image %q is being deleted", claim.Name)
}

// CDI's notes on a claim.
const (
	annotationPodPhase  = "cdi.kubevirt.io/storage.pod.phase"
	annotationCollected = "cdi.kubevirt.io/garbageCollected"
	// annotationPopulated is that of claims which were given to CDI full.
	annotationPopulated = "cdi.kubevirt.io/storage.populatedFor"
)

// filled reports whether CDI has filled a claim whose DataVolume is gone.
func filled(claim *corev1.PersistentVolumeClaim) bool {
	says := claim.Annotations

	return claim.Status.Phase == corev1.ClaimBound &&
		(says[annotationPodPhase] == string(corev1.PodSucceeded) || says[annotationCollected] == "true" || says[annotationPopulated] == claim.Name)
}

// importImage begins the import.
func (m *maker) importImage(ctx context.Context, t driver.Task, image machine.ImageVolume) error {
	var err error
	if image.VirtualSize, err = virtualSize(ctx, t.Image); err != nil {
		return err
	}

	if err := m.data.CheckSize(image.VirtualSize); err != nil {
		return err
	}

	image.LastUsed = time.Now()

	if _, err = m.cluster.DataVolumes().Create(ctx, image.DataVolume(), machine.FieldManager); err != nil && !cluster.Exists(err) {
		return err
	}

	return driver.Pending(pause, "image %q is being imported", image.Name())
}

// virtualSize is the size of the disk that is in an image. It reads no more than the image's header.
func virtualSize(ctx context.Context, image driver.Image) (int64, error) {
	r, err := image.Open(ctx)
	if err != nil {
		return 0, err
	}

	header := make([]byte, machine.QCOW2HeaderSize)
	_, err = io.ReadFull(r, header)

	if err := errors.Join(err, r.Close()); err != nil {
		return 0, fmt.Errorf("read the size of %s: %w", image.URL(), err)
	}

	return machine.VirtualSize(header)
}

// imageReady notes that the image is used, and makes the snapshot of it where the class clones one.
func (m *maker) imageReady(ctx context.Context, image machine.ImageVolume, o metav1.Object) error {
	if err := m.noteUse(ctx, image, o); err != nil {
		return err
	}

	if m.data.Image.Source != machine.SourceSnapshot {
		return nil
	}

	// No watch tells of snapshots, and the phases of a machine that starts are run each second.
	made := reference{m.req.RequestID + " of " + string(o.GetUID()), snapshots, image.Namespace, image.Name()}
	if m.looked.knows(made) {
		return nil
	}

	if err := m.ensureSnapshot(ctx, image); err != nil {
		return err
	}

	m.looked.note(made)

	return nil
}

// ensureSnapshot has a snapshot of the image made.
func (m *maker) ensureSnapshot(ctx context.Context, image machine.ImageVolume) error {
	snapshot, err := m.cluster.Unstructured(ctx, snapshots, image.Namespace, image.Name())

	switch {
	case driver.IsNotFound(err):
		claim, err := now(ctx, m.mirrorsOf(m.req.ProviderID, image.Namespace).claims, m.cluster.Claims(), image.Namespace, image.Name())
		if err != nil {
			return err
		}

		// Whoever deletes the image deletes its snapshot.
		made := image.Snapshot()
		made.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "PersistentVolumeClaim", Name: claim.Name, UID: claim.UID}}

		object, err := asUnstructured(made)
		if err != nil {
			return err
		}

		if err := m.cluster.CreateUnstructured(ctx, snapshots, object, machine.FieldManager); err != nil && !cluster.Exists(err) {
			return err
		}

		return driver.Pending(pause, "a snapshot of image %q is being made", image.Name())
	case err != nil:
		return err
	case !isImage(image, snapshot):
		return foreign("volume snapshot", snapshot)
	case snapshot.GetDeletionTimestamp() != nil:
		return driver.Pending(pause, "an earlier snapshot of image %q is being deleted", image.Name())
	}

	if ready, _, _ := unstructured.NestedBool(snapshot.Object, "status", "readyToUse"); ready { //nolint:errcheck // false when it is none
		return nil
	}

	if text, _, _ := unstructured.NestedString(snapshot.Object, "status", "error", "message"); text != "" { //nolint:errcheck // empty when it is none
		return fmt.Errorf("the snapshot of image %q is not made: %s", image.Name(), text)
	}

	return snapshotGoesOn(image, snapshot)
}

// A snapshot that is not made within this time is stuck: a controller says at once that it has seen it, and a driver may copy all of it.
const (
	snapshotUnseen = 15 * time.Minute
	snapshotSlow   = time.Hour
)

// snapshotGoesOn is a snapshot of which nothing is known that keeps it.
func snapshotGoesOn(image machine.ImageVolume, snapshot *unstructured.Unstructured) error {
	limit, look := snapshotSlow, "the driver of its snapshot class"
	if _, seen := snapshot.Object["status"]; !seen {
		limit, look = snapshotUnseen, "whether the cluster has a snapshot controller"
	}

	since := snapshot.GetCreationTimestamp().Time
	if time.Since(since) < limit {
		return driver.Pending(pause, "a snapshot of image %q is being made", image.Name())
	}

	return fmt.Errorf("a snapshot of image %q is being made: no progress since %s; look at volume snapshot %s/%s, and %s",
		image.Name(), since.UTC().Format(time.RFC3339), image.Namespace, image.Name(), look)
}

func asUnstructured(v any) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode snapshot: %w", err)
	}

	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(data); err != nil {
		return nil, fmt.Errorf("encode snapshot: %w", err)
	}

	unstructured.RemoveNestedField(u.Object, "status")

	return u, nil
}

// noteUse keeps in the cluster when the image was last used, for whoever sweeps later.
func (m *maker) noteUse(ctx context.Context, image machine.ImageVolume, o metav1.Object) error {
	if mark, _ := machine.ImageMarkOf(o); time.Since(mark.LastUsed) < usedEvery || !m.images.notes(imageRef{image.Namespace, image.Name()}) {
		return nil
	}

	fields := map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		machine.AnnotationLastUsed: time.Now().UTC().Format(time.RFC3339),
	}}}

	var err error

	switch o.(type) {
	case *cdiv1.DataVolume:
		fields["apiVersion"], fields["kind"] = cdiv1.SchemeGroupVersion.String(), "DataVolume"
		_, err = m.cluster.DataVolumes().Apply(ctx, o, fields, machine.FieldManager)
	case *corev1.PersistentVolumeClaim:
		fields["apiVersion"], fields["kind"] = "v1", "PersistentVolumeClaim"
		_, err = m.cluster.Claims().Apply(ctx, o, fields, machine.FieldManager)
	}

	if err != nil {
		m.images.forget(imageRef{image.Namespace, image.Name()})
	}

	return err
}

// imageRef names an image in the cluster.
type imageRef struct{ namespace, name string }

// imageUse is what this process knows of who needs which image. The zero value is ready for use.
type imageUse struct {
	mu sync.Mutex
	// waiting are the requests whose disks are not made from the image yet.
	waiting map[driver.Ref]imageRef
	// importing are the images that a request looks for, and begins to import.
	importing map[imageRef]bool
	// noted is when an image was last noted to be used.
	noted map[imageRef]time.Time
}

// reserve keeps an image from being swept away before the request's disk is made of it.
func (u *imageUse) reserve(ref driver.Ref, image imageRef) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if u.waiting == nil {
		u.waiting = map[driver.Ref]imageRef{}
	}

	u.waiting[ref] = image
}

// release ends the request's need of an image: it has its disk, or wants none any more.
func (u *imageUse) release(ref driver.Ref) {
	u.mu.Lock()
	defer u.mu.Unlock()

	delete(u.waiting, ref)
}

// reserved says whether a request waits for the image, or looks for it.
func (u *imageUse) reserved(image imageRef) bool {
	u.mu.Lock()
	defer u.mu.Unlock()

	for _, one := range u.waiting {
		if one == image {
			return true
		}
	}

	return u.importing[image]
}

// begin makes the caller the one who looks for the image until it calls release; false says that somebody does.
func (u *imageUse) begin(image imageRef) (release func(), ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if u.importing[image] {
		return nil, false
	}

	if u.importing == nil {
		u.importing = map[imageRef]bool{}
	}

	u.importing[image] = true

	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()

		delete(u.importing, image)
	}, true
}

// notes says whether it is time to note that the image is used, and takes it that this is done.
func (u *imageUse) notes(image imageRef) bool {
	u.mu.Lock()
	defer u.mu.Unlock()

	if time.Since(u.noted[image]) < usedEvery {
		return false
	}

	if u.noted == nil {
		u.noted = map[imageRef]time.Time{}
	}

	u.noted[image] = time.Now()

	return true
}

// forget drops what is noted of an image, as one that is deleted.
func (u *imageUse) forget(image imageRef) {
	u.mu.Lock()
	defer u.mu.Unlock()

	delete(u.noted, image)
}
