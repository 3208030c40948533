package cdi

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// Controller is CDI's controller with its importers and cloners. Its methods may be called from several goroutines.
type Controller struct {
	opts Options

	dvs      *kube.Mirror[cdi.DataVolume, *cdi.DataVolume]
	claims   *kube.Mirror[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim]
	classes  *kube.Mirror[storagev1.StorageClass, *storagev1.StorageClass]
	profiles *kube.Mirror[cdi.StorageProfile, *cdi.StorageProfile]

	snapshots       *kube.Mirror[snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshot]
	snapshotContent *kube.Mirror[snapshotv1.VolumeSnapshotContent, *snapshotv1.VolumeSnapshotContent]
	snapshotClasses *kube.Mirror[snapshotv1.VolumeSnapshotClass, *snapshotv1.VolumeSnapshotClass]

	events *kube.Recorder
	queue  kube.Queue
	tasks  sync.WaitGroup

	mu       sync.Mutex
	ctx      context.Context       // It is the life of the controller, set by Run.
	jobs     map[string]*job       // by namespace and name of the DataVolume
	contents map[types.UID]content // by claim, until that and all snapshots of it are gone
	// collected are DataVolumes that were deleted, and that a watch which lags behind may still show.
	collected map[string]types.UID
	faults    []*Fault
}

// content is what is on the disk of a claim.
type content struct {
	claim string // namespace and name
	image string
	size  int64
}

// New returns the controller for the API server of the mirrors.
func New(mirrors *kube.Mirrors, opts Options) (*Controller, error) {
	c := &Controller{opts: opts, ctx: context.Background(), jobs: map[string]*job{}, contents: map[types.UID]content{},
		collected: map[string]types.UID{}}
	c.queue = kube.Queue{Sync: c.sync, Failed: opts.Failed}

	if err := c.connect(mirrors); err != nil {
		return nil, fmt.Errorf("make controller of CDI: %w", err)
	}

	c.dvs.OnChange(func(dv *cdi.DataVolume) { c.queue.Add(kube.Key(dv)); c.sourceChanged(kube.Claims, kube.Key(dv)) })
	c.claims.OnChange(func(pvc *corev1.PersistentVolumeClaim) {
		c.queue.Add(kube.Key(pvc))
		c.sourceChanged(kube.Claims, kube.Key(pvc))
		c.empty(pvc.UID)
	})
	c.snapshots.OnChange(func(s *snapshotv1.VolumeSnapshot) { c.sourceChanged(kube.VolumeSnapshots, kube.Key(s)) })
	c.snapshotContent.OnChange(func(o *snapshotv1.VolumeSnapshotContent) {
		c.sourceChanged(kube.VolumeSnapshots, o.Spec.VolumeSnapshotRef.Namespace+"/"+o.Spec.VolumeSnapshotRef.Name)
		c.empty(volumeOf(o))
	})
	c.classes.OnChange(func(*storagev1.StorageClass) { c.Resync() })
	c.profiles.OnChange(func(*cdi.StorageProfile) { c.Resync() })

	return c, nil
}

func (c *Controller) connect(mirrors *kube.Mirrors) (err error) {
	if c.dvs, err = kube.MirrorOf[cdi.DataVolume](mirrors, kube.DataVolumes); err != nil {
		return err
	}

	if c.claims, err = kube.MirrorOf[corev1.PersistentVolumeClaim](mirrors, kube.Claims); err != nil {
		return err
	}

	if c.classes, err = kube.MirrorOf[storagev1.StorageClass](mirrors, kube.StorageClasses); err != nil {
		return err
	}

	if c.profiles, err = kube.MirrorOf[cdi.StorageProfile](mirrors, kube.StorageProfiles); err != nil {
		return err
	}

	if c.snapshots, err = kube.MirrorOf[snapshotv1.VolumeSnapshot](mirrors, kube.VolumeSnapshots); err != nil {
		return err
	}

	if c.snapshotContent, err = kube.MirrorOf[snapshotv1.VolumeSnapshotContent](mirrors, kube.VolumeSnapshotContents); err != nil {
		return err
	}

	if c.snapshotClasses, err = kube.MirrorOf[snapshotv1.VolumeSnapshotClass](mirrors, kube.VolumeSnapshotClasses); err != nil {
		return err
	}

	c.events, err = kube.NewRecorder(mirrors.Client(), "datavolume-controller")

	return err
}

// Run works until ctx ends, with the mirrors that somebody else runs.
func (c *Controller) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	c.mu.Lock()
	c.ctx = ctx
	c.mu.Unlock()

	var work sync.WaitGroup

	if c.dvs.Synced(ctx) && c.claims.Synced(ctx) && c.classes.Synced(ctx) && c.profiles.Synced(ctx) &&
		c.snapshots.Synced(ctx) && c.snapshotContent.Synced(ctx) && c.snapshotClasses.Synced(ctx) {
		work.Go(func() { c.queue.Run(ctx) })
	}

	<-ctx.Done()
	work.Wait()
	c.tasks.Wait()
}

// Content returns the image that a claim's disk was made from, through all clones: the URL of its import, empty if it has none.
func (c *Controller) Content(namespace, claim string) string {
	pvc := c.claims.Get(namespace, claim)
	if pvc == nil {
		return ""
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	return c.contents[pvc.UID].image
}

// Inject makes something go wrong until remove is called.
func (c *Controller) Inject(f Fault) (remove func()) {
	fault := &f

	c.mu.Lock()
	c.faults = append(c.faults, fault)
	c.mu.Unlock()
	c.Resync()

	return func() {
		c.mu.Lock()

		var rest []*Fault

		for _, f := range c.faults {
			if f != fault {
				rest = append(rest, f)
			}
		}

		c.faults = rest
		c.mu.Unlock()
		c.Resync()
	}
}

// fails returns the fault that befalls an attempt.
func (c *Controller) fails(key string) (hit Fault, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for i, f := range c.faults {
		if f.Message == "" || !strings.HasPrefix(key, f.Volume) {
			continue
		}

		hit = *f

		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				c.faults = append(c.faults[:i:i], c.faults[i+1:]...)
			}
		}

		return hit, true
	}

	return Fault{}, false
}

func (c *Controller) unschedulable(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, f := range c.faults {
		if f.Unschedulable && strings.HasPrefix(key, f.Volume) {
			return true
		}
	}

	return false
}

// Resync looks after everything once.
func (c *Controller) Resync() {
	for _, dv := range c.dvs.List() {
		c.queue.Add(kube.Key(dv))
	}
}

// sourceChanged looks after the clones of a claim or a snapshot.
func (c *Controller) sourceChanged(of kube.Kind, key string) {
	for _, dv := range c.dvs.List() {
		if s, ok := cloneSource(dv); ok && s.of.Kind == of.Kind && s.String() == key && dv.Status.Phase != cdi.Succeeded {
			c.queue.Add(kube.Key(dv))
		}
	}
}

func (c *Controller) isCollected(dv *cdi.DataVolume) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.collected[kube.Key(dv)] == dv.UID
}

// forget drops what is known of a DataVolume that is gone.
func (c *Controller) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.jobs, key)
	delete(c.collected, key)
}

// volumeOf returns the claim whose volume a snapshot's content is of, empty if it is of none.
func volumeOf(o *snapshotv1.VolumeSnapshotContent) types.UID {
	if o.Spec.Source.VolumeHandle == nil {
		return ""
	}

	return types.UID(strings.TrimPrefix(*o.Spec.Source.VolumeHandle, "pvc-"))
}

// empty drops what is on the disk of a claim, if that and all snapshots of it are gone.
func (c *Controller) empty(claim types.UID) {
	c.mu.Lock()
	known, ok := c.contents[claim]
	c.mu.Unlock()

	if !ok {
		return
	}

	if pvc := c.claims.Get(split(known.claim)); pvc != nil && pvc.UID == claim {
		return
	}

	if slices.ContainsFunc(c.snapshotContent.List(), func(o *snapshotv1.VolumeSnapshotContent) bool { return volumeOf(o) == claim }) {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.contents, claim)
}

// source is what a DataVolume is a clone of: a claim or a snapshot.
type source struct {
	of              kube.Kind
	namespace, name string
}

// String returns namespace and name, joined by a slash.
func (s source) String() string { return s.namespace + "/" + s.name }

// word is what CDI calls the kind.
func (s source) word() string {
	if s.snapshot() {
		return "snapshot"
	}

	return "pvc"
}

func (s source) snapshot() bool { return s.of.Kind == kube.VolumeSnapshots.Kind }

// cloneSource returns what a DataVolume is a clone of.
func cloneSource(dv *cdi.DataVolume) (source, bool) {
	switch s := dv.Spec.Source; {
	case s == nil:
		return source{}, false
	case s.PVC != nil:
		return source{kube.Claims, cmp.Or(s.PVC.Namespace, dv.Namespace), s.PVC.Name}, true
	case s.Snapshot != nil:
		return source{kube.VolumeSnapshots, cmp.Or(s.Snapshot.Namespace, dv.Namespace), s.Snapshot.Name}, true
	default:
		return source{}, false
	}
}

// job is an importer or a cloner at work.
type job struct {
	dv, claim types.UID
	// since is when it was scheduled, ran when its present attempt began.
	since, ran time.Time
	restarts   int
	// retry is when an attempt that failed is made again.
	retry   time.Time
	failure string
	fatal   bool
	// fetching says that Fetch is under way, image what it has found.
	fetching bool
	image    *Image
	done     bool
	// restored is the volume that is made of a snapshot, nil until that is begun; restoring says that it is not done.
	restored  *restored
	restoring bool
}

// job returns the work on a DataVolume's claim, and forgets that on an earlier one.
func (c *Controller) job(dv *cdi.DataVolume, claim types.UID) *job {
	c.mu.Lock()
	defer c.mu.Unlock()

	key := kube.Key(dv)

	j := c.jobs[key]
	if j == nil || j.dv != dv.UID || j.claim != claim {
		j = &job{dv: dv.UID, claim: claim, since: time.Now()}
		c.jobs[key] = j
	}

	return j
}

func split(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")

	return namespace, name
}
