package kubernetes

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	kubevirt "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// Options shape the controllers. The zero value takes no time for anything.
type Options struct {
	// Bind is how long a provisioner takes for a claim.
	Bind time.Duration
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

	mu     sync.Mutex
	faults []*Fault
	since  map[string]time.Time // when a claim began to wait for its provisioner
}

// Fault is something that goes wrong with claims until it is taken back.
type Fault struct {
	// Claim is what namespace and name, joined by a slash, begin with; empty is any.
	Claim string
	// Unbound keeps the claim Pending, and is the message of the provisioner's Events.
	Unbound string
}

// collected are the objects of a kind, as the garbage collector sees them.
type collected struct {
	of kube.Kind
	*kube.Mirror[metav1.PartialObjectMetadata, *metav1.PartialObjectMetadata]
}

// New returns the controllers for an API server.
func New(config *rest.Config, opts Options) (*Controller, error) {
	client, err := kube.NewClient(config)
	if err != nil {
		return nil, err
	}

	c := &Controller{opts: opts, since: map[string]time.Time{}}
	c.garbage = kube.Queue{Sync: c.collect, Failed: opts.Failed}
	c.binding = kube.Queue{Sync: c.bind, Failed: opts.Failed}
	c.ending = kube.Queue{Sync: c.end, Failed: opts.Failed}

	if err := c.connect(client); err != nil {
		return nil, fmt.Errorf("make controllers of Kubernetes: %w", err)
	}

	for _, k := range c.kinds {
		k.OnChange(func(o *metav1.PartialObjectMetadata) {
			c.changed(k.of, o)
			c.ending.Add("/" + o.Namespace)
		})
	}

	c.claims.OnChange(func(pvc *corev1.PersistentVolumeClaim) { c.binding.Add(kube.Key(pvc)) })
	c.classes.OnChange(func(*storagev1.StorageClass) { c.Resync() })
	c.vmis.OnChange(func(vmi *kubevirt.VirtualMachineInstance) { c.released(vmi) })
	c.namespaces.OnChange(func(n *corev1.Namespace) { c.ending.Add("/" + n.Name) })

	return c, nil
}

func (c *Controller) connect(client *kube.Client) (err error) {
	for _, kind := range []kube.Kind{
		kube.VirtualMachines, kube.VirtualMachineInstances, kube.DataVolumes, kube.Claims, kube.Secrets, kube.ConfigMaps,
		kube.VolumeSnapshots,
	} {
		mirror, err := kube.NewMirror[metav1.PartialObjectMetadata](client, kind)
		if err != nil {
			return err
		}

		c.kinds = append(c.kinds, collected{of: kind, Mirror: mirror})
	}

	if c.claims, err = kube.NewMirror[corev1.PersistentVolumeClaim](client, kube.Claims); err != nil {
		return err
	}

	if c.classes, err = kube.NewMirror[storagev1.StorageClass](client, kube.StorageClasses); err != nil {
		return err
	}

	if c.vmis, err = kube.NewMirror[kubevirt.VirtualMachineInstance](client, kube.VirtualMachineInstances); err != nil {
		return err
	}

	if c.namespaces, err = kube.NewMirror[corev1.Namespace](client, kube.Namespaces); err != nil {
		return err
	}

	c.events, err = kube.NewRecorder(client, "persistentvolume-controller")

	return err
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var work sync.WaitGroup

	runs := []func(context.Context){c.claims.Run, c.classes.Run, c.vmis.Run, c.namespaces.Run}
	for _, k := range c.kinds {
		runs = append(runs, k.Run)
	}

	for _, run := range runs {
		work.Go(func() { run(ctx) })
	}

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
