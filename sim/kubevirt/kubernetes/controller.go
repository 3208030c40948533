package kubernetes

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirt "kubevirt.io/api/core/v1"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// Options shape the controllers. The zero value takes no time for anything.
type Options struct {
	// Bind is how long a provisioner takes for a claim.
	Bind time.Duration
	// Silent are the storage classes whose provisioner never answers.
	Silent []string
	// Failed is told of errors of the controllers themselves; nil means nobody is.
	Failed func(key string, err error)
}

// Controller is kube-controller-manager with the provisioners. Its methods may be called from several goroutines.
type Controller struct {
	opts Options

	kinds      []collected
	claims     *kube.Mirror[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim]
	classes    *kube.Mirror[storagev1.StorageClass, *storagev1.StorageClass]
	vmis       *kube.Mirror[kubevirt.VirtualMachineInstance, *kubevirt.VirtualMachineInstance]
	namespaces *kube.Mirror[corev1.Namespace, *corev1.Namespace]
	events     *kube.Recorder

	garbage kube.Queue // of kind, namespace and name
	binding kube.Queue
	ending  kube.Queue

	content *kube.Content
	cleared map[string]types.UID // the namespaces whose content was told to go; the worker of ending has it

	mu      sync.Mutex
	faults  []*Fault
	waiting map[string]*waiting // by namespace and name of a claim that is not bound
}

// waiting is what is known of a claim that is not bound.
type waiting struct {
	claim types.UID
	since time.Time // when the provisioner was asked; zero is not yet
	told  []string  // the reasons of Events that are told once
}

// Fault is something that goes wrong with claims until it is taken back.
type Fault struct {
	// Claim is what namespace and name, joined by a slash, begin with; empty is any.
	Claim string
	// Unbound keeps the claim Pending, and is the message of the provisioner's Events.
	Unbound string
}

// collected are the objects of a kind, as the garbage collector sees them: in a mirror, and at the server.
type collected struct {
	of kube.Kind
	kube.Metadata
	kube.Resource[metav1.PartialObjectMetadata, *metav1.PartialObjectMetadata]
}

// New returns the controllers for the API server of the mirrors.
func New(mirrors *kube.Mirrors, opts Options) (*Controller, error) {
	c := &Controller{opts: opts, waiting: map[string]*waiting{}, cleared: map[string]types.UID{}}
	c.garbage = kube.Queue{Sync: c.collect, Failed: opts.Failed}
	c.binding = kube.Queue{Sync: c.bind, Failed: opts.Failed}
	c.ending = kube.Queue{Sync: c.end, Failed: opts.Failed}

	if err := c.connect(mirrors); err != nil {
		return nil, fmt.Errorf("make controllers of Kubernetes: %w", err)
	}

	for _, k := range c.kinds {
		k.OnMetadata(func(o metav1.Object) {
			c.changed(k.of, o)
			c.ending.Add("/" + o.GetNamespace())
		})
	}

	c.claims.OnChange(func(pvc *corev1.PersistentVolumeClaim) { c.binding.Add(kube.Key(pvc)) })
	c.classes.OnChange(func(*storagev1.StorageClass) { c.Resync() })
	c.vmis.OnChange(func(vmi *kubevirt.VirtualMachineInstance) { c.released(vmi) })
	c.namespaces.OnChange(func(n *corev1.Namespace) { c.ending.Add("/" + n.Name) })

	return c, nil
}

func (c *Controller) connect(mirrors *kube.Mirrors) (err error) {
	for _, k := range []struct {
		of     kube.Kind
		mirror func(*kube.Mirrors, kube.Kind) (kube.Metadata, error)
	}{
		{kube.VirtualMachines, metadata[kubevirt.VirtualMachine]},
		{kube.VirtualMachineInstances, metadata[kubevirt.VirtualMachineInstance]},
		{kube.DataVolumes, metadata[cdi.DataVolume]},
		{kube.Claims, metadata[corev1.PersistentVolumeClaim]},
		{kube.Secrets, metadata[corev1.Secret]},
		{kube.ConfigMaps, metadata[metav1.PartialObjectMetadata]},
		{kube.ControllerRevisions, metadata[metav1.PartialObjectMetadata]},
		{kube.VolumeSnapshots, metadata[snapshotv1.VolumeSnapshot]},
	} {
		mirror, err := k.mirror(mirrors, k.of)
		if err != nil {
			return err
		}

		objects, err := kube.Of[metav1.PartialObjectMetadata](mirrors.Client(), k.of)
		if err != nil {
			return err
		}

		c.kinds = append(c.kinds, collected{of: k.of, Metadata: mirror, Resource: objects})
	}

	if c.claims, err = kube.MirrorOf[corev1.PersistentVolumeClaim](mirrors, kube.Claims); err != nil {
		return err
	}

	if c.classes, err = kube.MirrorOf[storagev1.StorageClass](mirrors, kube.StorageClasses); err != nil {
		return err
	}

	if c.vmis, err = kube.MirrorOf[kubevirt.VirtualMachineInstance](mirrors, kube.VirtualMachineInstances); err != nil {
		return err
	}

	if c.namespaces, err = kube.MirrorOf[corev1.Namespace](mirrors, kube.Namespaces); err != nil {
		return err
	}

	if c.content, err = kube.NewContent(mirrors.Client()); err != nil {
		return err
	}

	c.events, err = kube.NewRecorder(mirrors.Client(), "persistentvolume-controller")

	return err
}

// metadata returns the mirror of a kind whose objects are read as T.
func metadata[T any, P kube.Object[T]](mirrors *kube.Mirrors, kind kube.Kind) (kube.Metadata, error) {
	return kube.MirrorOf[T, P](mirrors, kind)
}

// Run works until ctx ends, with the mirrors that somebody else runs.
func (c *Controller) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var work sync.WaitGroup

	if c.synced(ctx) {
		work.Go(func() { c.garbage.Run(ctx) })
		work.Go(func() { c.binding.Run(ctx) })
		work.Go(func() { c.ending.Run(ctx) })
	}

	<-ctx.Done()
	work.Wait()
}

func (c *Controller) synced(ctx context.Context) bool {
	for _, k := range c.kinds {
		if !k.Synced(ctx) {
			return false
		}
	}

	return c.claims.Synced(ctx) && c.classes.Synced(ctx) && c.vmis.Synced(ctx) && c.namespaces.Synced(ctx)
}

// Resync looks after all claims once.
func (c *Controller) Resync() {
	for _, pvc := range c.claims.List() {
		c.binding.Add(kube.Key(pvc))
	}
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

func (c *Controller) unbound(key string) string {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, f := range c.faults {
		if strings.HasPrefix(key, f.Claim) {
			return f.Unbound
		}
	}

	return ""
}

func split(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")

	return namespace, name
}
