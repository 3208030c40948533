package cdi

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
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
	events   *kube.Recorder
	queue    kube.Queue
	tasks    sync.WaitGroup

	mu       sync.Mutex
	ctx      context.Context // It is the life of the controller, set by Run.
	jobs     map[types.UID]*job
	contents map[types.UID]content
	// collected are DataVolumes that were deleted, and that a watch which lags behind may still show.
	collected map[types.UID]bool
	faults    []*Fault
}

// content is what is on the disk of a claim.
type content struct {
	image string
	size  int64
}

// New returns the controller for an API server.
func New(config *rest.Config, opts Options) (*Controller, error) {
	client, err := kube.NewClient(config)
	if err != nil {
		return nil, err
	}

	c := &Controller{opts: opts, ctx: context.Background(), jobs: map[types.UID]*job{}, contents: map[types.UID]content{},
		collected: map[types.UID]bool{}}
	c.queue = kube.Queue{Sync: c.sync, Failed: opts.Failed}

	if err := c.connect(client); err != nil {
		return nil, fmt.Errorf("make controller of CDI: %w", err)
	}

	c.dvs.OnChange(func(dv *cdi.DataVolume) { c.queue.Add(kube.Key(dv)); c.sourceChanged(kube.Key(dv)) })
	c.claims.OnChange(func(pvc *corev1.PersistentVolumeClaim) { c.queue.Add(kube.Key(pvc)); c.sourceChanged(kube.Key(pvc)) })
	c.classes.OnChange(func(*storagev1.StorageClass) { c.Resync() })
	c.profiles.OnChange(func(*cdi.StorageProfile) { c.Resync() })

	return c, nil
}

func (c *Controller) connect(client *kube.Client) (err error) {
	if c.dvs, err = kube.NewMirror[cdi.DataVolume](client, kube.DataVolumes); err != nil {
		return err
	}

	if c.claims, err = kube.NewMirror[corev1.PersistentVolumeClaim](client, kube.Claims); err != nil {
		return err
	}

	if c.classes, err = kube.NewMirror[storagev1.StorageClass](client, kube.StorageClasses); err != nil {
		return err
	}

	if c.profiles, err = kube.NewMirror[cdi.StorageProfile](client, kube.StorageProfiles); err != nil {
		return err
	}

	c.events, err = kube.NewRecorder(client, "datavolume-controller")

	return err
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	c.mu.Lock()
	c.ctx = ctx
	c.mu.Unlock()

	var work sync.WaitGroup

	for _, run := range []func(context.Context){c.dvs.Run, c.claims.Run, c.classes.Run, c.profiles.Run} {
		work.Go(func() { run(ctx) })
	}

	if c.dvs.Synced(ctx) && c.claims.Synced(ctx) && c.classes.Synced(ctx) && c.profiles.Synced(ctx) {
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

// sourceChanged looks after the clones of a claim.
func (c *Controller) sourceChanged(key string) {
	for _, dv := range c.dvs.List() {
		if namespace, name, ok := cloneSource(dv); ok && namespace+"/"+name == key && dv.Status.Phase != cdi.Succeeded {
			c.queue.Add(kube.Key(dv))
		}
	}
}

func (c *Controller) isCollected(dv types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.collected[dv]
}

// cloneSource returns the claim that a DataVolume is a clone of.
func cloneSource(dv *cdi.DataVolume) (namespace, name string, ok bool) {
	if dv.Spec.Source == nil || dv.Spec.Source.PVC == nil {
		return "", "", false
	}

	namespace = dv.Spec.Source.PVC.Namespace
	if namespace == "" {
		namespace = dv.Namespace
	}

	return namespace, dv.Spec.Source.PVC.Name, true
}

// job is an importer or a cloner at work.
type job struct {
	claim types.UID
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
}

// job returns the work on a DataVolume's claim, and forgets that on an earlier one.
func (c *Controller) job(dv, claim types.UID) *job {
	c.mu.Lock()
	defer c.mu.Unlock()

	j := c.jobs[dv]
	if j == nil || j.claim != claim {
		j = &job{claim: claim, since: time.Now()}
		c.jobs[dv] = j
	}

	return j
}

func split(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")

	return namespace, name
}
