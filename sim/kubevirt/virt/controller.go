package virt

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirt "kubevirt.io/api/core/v1"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// Controller is virt-controller and the virt-handlers of all nodes. Its methods may be called from several goroutines.
type Controller struct {
	opts Options

	vms     *kube.Mirror[kubevirt.VirtualMachine, *kubevirt.VirtualMachine]
	vmis    *kube.Mirror[kubevirt.VirtualMachineInstance, *kubevirt.VirtualMachineInstance]
	dvs     *kube.Mirror[cdi.DataVolume, *cdi.DataVolume]
	claims  *kube.Mirror[corev1.PersistentVolumeClaim, *corev1.PersistentVolumeClaim]
	secrets *kube.Mirror[corev1.Secret, *corev1.Secret]
	quotas  *kube.Mirror[corev1.ResourceQuota, *corev1.ResourceQuota]
	classes *kube.Mirror[storagev1.StorageClass, *storagev1.StorageClass]
	// profiles are CDI's knowledge of the classes.
	profiles *kube.Mirror[cdi.StorageProfile, *cdi.StorageProfile]
	types    catalogue

	events    *kube.Recorder
	handler   *kube.Recorder
	kubelet   *kube.Recorder
	machines  kube.Queue
	instances kube.Queue
	tasks     sync.WaitGroup

	mu      sync.Mutex
	ctx     context.Context // It is the life of the controllers, set by Run.
	domains map[types.UID]*domain
	lasting map[types.UID]*lasting // by the UID of the machine, or of an instance without one
	faults  []*Fault
	down    map[string]time.Time
	parted  map[string]parted // by namespace and name of an instance whose machine is gone
	address int
}

// lasting is what outlives an instance of a machine.
type lasting struct {
	key   string
	boots int
	disk  sync.Map
}

// parted is when it was seen that an instance has outlived its machine.
type parted struct {
	instance types.UID
	since    time.Time
}

// New returns the controllers for the API server of the mirrors.
func New(mirrors *kube.Mirrors, opts Options) (*Controller, error) {
	c := &Controller{
		opts: opts, domains: map[types.UID]*domain{}, lasting: map[types.UID]*lasting{}, down: map[string]time.Time{},
		parted: map[string]parted{}, ctx: context.Background(),
	}

	if len(c.opts.Nodes) == 0 {
		c.opts.Nodes = []Node{{Name: "node-1"}}
	}

	c.machines = kube.Queue{Sync: c.syncMachine, Failed: opts.Failed}
	c.instances = kube.Queue{Sync: c.syncInstance, Failed: opts.Failed}

	if err := c.connect(mirrors); err != nil {
		return nil, fmt.Errorf("make controllers of KubeVirt: %w", err)
	}

	c.vms.OnChange(func(vm *kubevirt.VirtualMachine) { c.machines.Add(kube.Key(vm)); c.instances.Add(kube.Key(vm)) })
	c.vmis.OnChange(func(vmi *kubevirt.VirtualMachineInstance) {
		c.machines.Add(kube.Key(vmi))
		c.instances.Add(kube.Key(vmi))
		c.capacityChanged(vmi)
	})
	c.dvs.OnChange(func(dv *cdi.DataVolume) { c.volumeChanged(dv.Namespace, dv.Name) })
	c.claims.OnChange(func(pvc *corev1.PersistentVolumeClaim) { c.volumeChanged(pvc.Namespace, pvc.Name) })
	c.secrets.OnChange(func(s *corev1.Secret) { c.secretChanged(s.Namespace, s.Name) })
	c.quotas.OnChange(func(*corev1.ResourceQuota) { c.Resync() })
	c.classes.OnChange(func(*storagev1.StorageClass) { c.Resync() })

	return c, nil
}

func (c *Controller) connect(mirrors *kube.Mirrors) (err error) {
	if c.vms, err = kube.MirrorOf[kubevirt.VirtualMachine](mirrors, kube.VirtualMachines); err != nil {
		return err
	}

	if c.vmis, err = kube.MirrorOf[kubevirt.VirtualMachineInstance](mirrors, kube.VirtualMachineInstances); err != nil {
		return err
	}

	if c.dvs, err = kube.MirrorOf[cdi.DataVolume](mirrors, kube.DataVolumes); err != nil {
		return err
	}

	if c.claims, err = kube.MirrorOf[corev1.PersistentVolumeClaim](mirrors, kube.Claims); err != nil {
		return err
	}

	if c.secrets, err = kube.MirrorOf[corev1.Secret](mirrors, kube.Secrets); err != nil {
		return err
	}

	if c.quotas, err = kube.MirrorOf[corev1.ResourceQuota](mirrors, kube.Quotas); err != nil {
		return err
	}

	if c.classes, err = kube.MirrorOf[storagev1.StorageClass](mirrors, kube.StorageClasses); err != nil {
		return err
	}

	if c.profiles, err = kube.MirrorOf[cdi.StorageProfile](mirrors, kube.StorageProfiles); err != nil {
		return err
	}

	if c.types, err = newCatalogue(mirrors.Client()); err != nil {
		return err
	}

	if c.events, err = kube.NewRecorder(mirrors.Client(), "virtualmachine-controller"); err != nil {
		return err
	}

	if c.handler, err = kube.NewRecorder(mirrors.Client(), "virt-handler"); err != nil {
		return err
	}

	c.kubelet, err = kube.NewRecorder(mirrors.Client(), "kubelet")

	return err
}

// Run works until ctx ends, with the mirrors that somebody else runs. All guests are off then.
func (c *Controller) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	c.mu.Lock()
	c.ctx = ctx
	c.mu.Unlock()

	var work sync.WaitGroup

	if c.synced(ctx) {
		work.Go(func() { c.machines.Run(ctx) })
		work.Go(func() { c.instances.Run(ctx) })
	}

	<-ctx.Done()
	c.cutAll()
	work.Wait()
	c.tasks.Wait()
}

func (c *Controller) synced(ctx context.Context) bool {
	return c.vms.Synced(ctx) && c.vmis.Synced(ctx) && c.dvs.Synced(ctx) && c.claims.Synced(ctx) && c.secrets.Synced(ctx) &&
		c.quotas.Synced(ctx) && c.classes.Synced(ctx) && c.profiles.Synced(ctx)
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
		c.faults = without(c.faults, fault)
		c.mu.Unlock()
		c.Resync()
	}
}

func without(all []*Fault, one *Fault) []*Fault {
	var rest []*Fault

	for _, f := range all {
		if f != one {
			rest = append(rest, f)
		}
	}

	return rest
}

// fault returns all that is wrong with a machine now.
func (c *Controller) fault(key string) Fault {
	c.mu.Lock()
	defer c.mu.Unlock()

	var all Fault

	for _, f := range c.faults {
		if !strings.HasPrefix(key, f.Machine) {
			continue
		}

		if f.Unschedulable != "" {
			all.Unschedulable = f.Unschedulable
		}

		if f.Pull != "" {
			all.Pull = f.Pull
		}

		if f.Kubelet != "" {
			all.Kubelet = f.Kubelet
		}

		all.Crash = all.Crash || f.Crash
		all.IOError = all.IOError || f.IOError
		all.Deaf = all.Deaf || f.Deaf
		all.Linger = max(all.Linger, f.Linger)
	}

	return all
}

// Resync looks after everything once.
func (c *Controller) Resync() {
	for _, vm := range c.vms.List() {
		c.machines.Add(kube.Key(vm))
	}

	for _, vmi := range c.vmis.List() {
		c.instances.Add(kube.Key(vmi))
	}
}

// NodeDown makes a node silent, with all that runs on it, or lets it come back.
func (c *Controller) NodeDown(node string, down bool) {
	c.mu.Lock()

	if down {
		c.down[node] = time.Now()
	} else {
		delete(c.down, node)
	}

	c.mu.Unlock()
	c.Resync()
}

func (c *Controller) nodeDown(node string) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	since, down := c.down[node]

	return since, down
}

// volumeChanged looks after the machines that use a volume.
func (c *Controller) volumeChanged(namespace, name string) {
	for _, vm := range c.vms.List() {
		if vm.Namespace == namespace && vm.Spec.Template != nil && usesVolume(vm, name) {
			c.machines.Add(kube.Key(vm))
			c.instances.Add(kube.Key(vm))
		}
	}

	for _, vmi := range c.vmis.List() {
		if vmi.Namespace == namespace && vmi.IsUnprocessed() {
			c.instances.Add(kube.Key(vmi))
		}
	}
}

func usesVolume(vm *kubevirt.VirtualMachine, name string) bool {
	for _, t := range vm.Spec.DataVolumeTemplates {
		if t.Name == name {
			return true
		}
	}

	for _, v := range vm.Spec.Template.Spec.Volumes {
		if claimOf(v) == name {
			return true
		}
	}

	return false
}

// claimOf returns the claim that a volume is, empty for others.
func claimOf(v kubevirt.Volume) string {
	switch {
	case v.DataVolume != nil:
		return v.DataVolume.Name
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	default:
		return ""
	}
}

// secretChanged looks after the instances that wait for a secret.
func (c *Controller) secretChanged(namespace, _ string) {
	for _, vmi := range c.vmis.List() {
		if vmi.Namespace == namespace && vmi.IsScheduling() {
			c.instances.Add(kube.Key(vmi))
		}
	}
}

// capacityChanged looks after the instances that wait for a node when another one has left.
func (c *Controller) capacityChanged(vmi *kubevirt.VirtualMachineInstance) {
	if !vmi.IsFinal() && c.vmis.Get(vmi.Namespace, vmi.Name) != nil {
		return
	}

	for _, other := range c.vmis.List() {
		if other.IsScheduling() || other.IsUnprocessed() {
			c.instances.Add(kube.Key(other))
		}
	}
}

func split(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")

	return namespace, name
}
