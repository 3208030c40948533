package snapshots

import (
	"context"
	"fmt"
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

// Controller is the snapshot controller with the drivers. Its methods may be called from several goroutines.
type Controller struct {
	opts Options

	snapshots *kube.Mirror[snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshot]
	contents  *kube.Mirror[snapshotv1.VolumeSnapshotContent, *snapshotv1.VolumeSnapshotContent]
	classes   *kube.Mirror[snapshotv1.VolumeSnapshotClass, *snapshotv1.VolumeSnapshotClass]
	claims    *kube.Mirror[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim]
	storage   *kube.Mirror[storagev1.StorageClass, *storagev1.StorageClass]
	dvs       *kube.Mirror[cdi.DataVolume, *cdi.DataVolume]
	events    *kube.Recorder

	queue kube.Queue // of snapshots
	held  kube.Queue // of claims that snapshots were taken of

	mu     sync.Mutex
	faults []*Fault
	works  map[string]*work // by namespace and name of the snapshot
}

// work is what a driver has to do for a snapshot.
type work struct {
	snapshot types.UID
	began    time.Time // when the driver was asked; zero is not yet
	size     int64     // of the volume at that time
	attempts int
	retry    time.Time // when what failed is tried again
	told     bool      // that its snapshot is kept for a volume
}

// New returns the controller for the API server of the mirrors.
func New(mirrors *kube.Mirrors, opts Options) (*Controller, error) {
	c := &Controller{opts: opts, works: map[string]*work{}}
	c.queue = kube.Queue{Sync: c.sync, Failed: opts.Failed}
	c.held = kube.Queue{Sync: c.release, Failed: opts.Failed}

	if err := c.connect(mirrors); err != nil {
		return nil, fmt.Errorf("make snapshot controller: %w", err)
	}

	c.snapshots.OnChange(func(s *snapshotv1.VolumeSnapshot) {
		c.queue.Add(kube.Key(s))

		if name := sourceOf(s); name != "" {
			c.held.Add(s.Namespace + "/" + name)
		}
	})
	c.contents.OnChange(func(o *snapshotv1.VolumeSnapshotContent) {
		c.queue.Add(o.Spec.VolumeSnapshotRef.Namespace + "/" + o.Spec.VolumeSnapshotRef.Name)
	})
	c.classes.OnChange(func(*snapshotv1.VolumeSnapshotClass) { c.Resync() })
	c.storage.OnChange(func(*storagev1.StorageClass) { c.Resync() })
	c.claims.OnChange(c.claimChanged)
	c.dvs.OnChange(func(dv *cdi.DataVolume) {
		if s := dv.Spec.Source; s != nil && s.Snapshot != nil {
			c.queue.Add(s.Snapshot.Namespace + "/" + s.Snapshot.Name)
		}
	})

	return c, nil
}

func (c *Controller) connect(mirrors *kube.Mirrors) (err error) {
	if c.snapshots, err = kube.MirrorOf[snapshotv1.VolumeSnapshot](mirrors, kube.VolumeSnapshots); err != nil {
		return err
	}

	if c.contents, err = kube.MirrorOf[snapshotv1.VolumeSnapshotContent](mirrors, kube.VolumeSnapshotContents); err != nil {
		return err
	}

	if c.classes, err = kube.MirrorOf[snapshotv1.VolumeSnapshotClass](mirrors, kube.VolumeSnapshotClasses); err != nil {
		return err
	}

	if c.claims, err = kube.MirrorOf[corev1.PersistentVolumeClaim](mirrors, kube.Claims); err != nil {
		return err
	}

	if c.storage, err = kube.MirrorOf[storagev1.StorageClass](mirrors, kube.StorageClasses); err != nil {
		return err
	}

	if c.dvs, err = kube.MirrorOf[cdi.DataVolume](mirrors, kube.DataVolumes); err != nil {
		return err
	}

	c.events, err = kube.NewRecorder(mirrors.Client(), "snapshot-controller")

	return err
}

// Run works until ctx ends, with the mirrors that somebody else runs.
func (c *Controller) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var working sync.WaitGroup

	if c.snapshots.Synced(ctx) && c.contents.Synced(ctx) && c.classes.Synced(ctx) && c.claims.Synced(ctx) && c.storage.Synced(ctx) && c.dvs.Synced(ctx) {
		working.Go(func() { c.queue.Run(ctx) })
		working.Go(func() { c.held.Run(ctx) })
	}

	<-ctx.Done()
	working.Wait()
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

// fails returns what the driver answers instead of beginning, empty if it begins.
func (c *Controller) fails(key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()

	for i, f := range c.faults {
		if f.Message == "" || !strings.HasPrefix(key, f.Snapshot) {
			continue
		}

		message := f.Message

		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				c.faults = append(c.faults[:i:i], c.faults[i+1:]...)
			}
		}

		return message
	}

	return ""
}

func (c *Controller) slow(key string) bool {
	return c.faulty(key, func(f *Fault) bool { return f.Slow })
}

func (c *Controller) absent(key string) bool {
	return c.faulty(key, func(f *Fault) bool { return f.Absent })
}

func (c *Controller) faulty(key string, is func(*Fault) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, f := range c.faults {
		if is(f) && strings.HasPrefix(key, f.Snapshot) {
			return true
		}
	}

	return false
}

// Resync looks after all snapshots once.
func (c *Controller) Resync() {
	for _, s := range c.snapshots.List() {
		c.queue.Add(kube.Key(s))
	}
}

// claimChanged looks after the snapshots of a claim, and the one that it is made from.
func (c *Controller) claimChanged(pvc *corev1.PersistentVolumeClaim) {
	c.held.Add(kube.Key(pvc))

	for _, s := range c.snapshots.List() {
		if s.Namespace == pvc.Namespace && (sourceOf(s) == pvc.Name || from(pvc, s)) {
			c.queue.Add(kube.Key(s))
		}
	}
}

// work returns what a driver has to do for a snapshot.
func (c *Controller) work(snapshot *snapshotv1.VolumeSnapshot) *work {
	c.mu.Lock()
	defer c.mu.Unlock()

	key := kube.Key(snapshot)

	w := c.works[key]
	if w == nil || w.snapshot != snapshot.UID {
		w = &work{snapshot: snapshot.UID}
		c.works[key] = w
	}

	return w
}

// forget drops what a driver had to do for a snapshot that is gone.
func (c *Controller) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.works, key)
}

// sourceOf is the claim that a snapshot is taken of, empty if there is none.
func sourceOf(s *snapshotv1.VolumeSnapshot) string {
	if s.Spec.Source.PersistentVolumeClaimName == nil {
		return ""
	}

	return *s.Spec.Source.PersistentVolumeClaimName
}

// from says whether a claim is made from a snapshot.
func from(pvc *corev1.PersistentVolumeClaim, s *snapshotv1.VolumeSnapshot) bool {
	if ref := pvc.Spec.DataSourceRef; ref != nil && ref.APIGroup != nil && *ref.APIGroup == snapshotv1.GroupName && ref.Kind == kube.VolumeSnapshots.Kind &&
		ref.Name == s.Name && (ref.Namespace == nil || *ref.Namespace == s.Namespace) {
		return true
	}

	ref := pvc.Spec.DataSource

	return ref != nil && ref.APIGroup != nil && *ref.APIGroup == snapshotv1.GroupName && ref.Kind == kube.VolumeSnapshots.Kind && ref.Name == s.Name
}

func ready(s *snapshotv1.VolumeSnapshot) bool {
	return s.Status != nil && s.Status.ReadyToUse != nil && *s.Status.ReadyToUse
}

func split(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")

	return namespace, name
}
