package virt

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirt "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// Guest is what a machine is to the software that boots in it.
type Guest struct {
	// Namespace and Name are the machine's.
	Namespace, Name string
	// Machine is the UID of the machine, or that of an instance which has none. It outlives a restart, as disks do.
	Machine string
	// UUID and Serial are those of SMBIOS.
	UUID, Serial string
	// Hostname is the one that the instance gives it.
	Hostname string
	// MACs are the hardware addresses of its interfaces.
	MACs []string
	// UserData and NetworkData are those of the cloud-init volume, whether inline or in a Secret; nil if there is none.
	UserData, NetworkData []byte
	// Image is the image that the disk it boots from was made from, as the URL of an import or the name of a containerDisk; empty if its
	// firmware finds no disk with one.
	Image string
	// Disk keeps what the software stores, from boot to boot. It goes with the machine.
	Disk *sync.Map
	// CPUs and MemoryMiB are what it has.
	CPUs, MemoryMiB int
	// Instance is the whole description.
	Instance *kubevirt.VirtualMachineInstance

	c *Controller
	d *domain
	r *run
}

// Reboot is the guest that restarts by itself. Its context ends; the boot function is to return.
func (g Guest) Reboot() { g.c.restart(g.d, g.r) }

// Crash is the guest that dies. Its context ends; the boot function is to return.
func (g Guest) Crash() {
	if g.d.run.Load() == g.r {
		g.c.cut(g.d, kubevirt.Failed)
		g.c.instances.Add(g.d.key)
	}
}

// domain is what virt-handler runs for an instance.
type domain struct {
	key   string
	uid   types.UID
	guest Guest

	phase   atomic.Value // of kubevirt.VirtualMachineInstancePhase, once it has ended
	run     atomic.Pointer[run]
	paused  atomic.Value // of string: why, empty for not
	leaving *time.Timer
}

// run is one boot of a guest.
type run struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (d *domain) ended() (kubevirt.VirtualMachineInstancePhase, bool) {
	phase, ok := d.phase.Load().(kubevirt.VirtualMachineInstancePhase)

	return phase, ok
}

func (d *domain) pausedBy() string {
	why, _ := d.paused.Load().(string)

	return why
}

func (c *Controller) domain(uid types.UID) *domain {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.domains[uid]
}

// forget ends the domain of an instance that is not there any more, and drops what was known of it, and of its machine if that is gone.
func (c *Controller) forget(key string, vmi *kubevirt.VirtualMachineInstance) {
	machine := c.vms.Get(split(key))

	c.mu.Lock()

	if vmi == nil {
		delete(c.parted, key)
	}

	if vmi == nil && machine == nil {
		maps.DeleteFunc(c.lasting, func(_ types.UID, l *lasting) bool { return l.key == key })
	}

	var gone []*domain

	for uid, d := range c.domains {
		if d.key == key && (vmi == nil || vmi.UID != uid) {
			delete(c.domains, uid)

			gone = append(gone, d)
		}
	}

	c.mu.Unlock()

	for _, d := range gone {
		c.cut(d, kubevirt.Failed)
	}
}

// launch starts the domain of an instance once its time has come.
func (c *Controller) launch(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	if left := time.Until(entered(vmi).Add(c.opts.Times.Start)); left > 0 {
		c.instances.After(kube.Key(vmi), left)

		return nil
	}

	if c.fault(kube.Key(vmi)).Crash {
		c.handler.Event(ctx, vmi, kube.VirtualMachineInstances, corev1.EventTypeWarning, "Stopped", "The VirtualMachineInstance crashed.")
		enter(vmi, kubevirt.Failed)

		return nil
	}

	// A write of the phase that fails is made again: the domain is there then, with a guest that may have paused or ended since.
	d := c.domain(vmi.UID)
	if d == nil {
		seed, missing, err := c.seed(vmi)
		if err != nil || missing != "" {
			return err
		}

		d = c.define(vmi, seed)
		c.handler.Event(ctx, vmi, kube.VirtualMachineInstances, corev1.EventTypeNormal, "Started", "VirtualMachineInstance started.")

		switch {
		case d.pausedBy() != "":
		case c.fault(d.key).IOError:
			d.paused.Store(pausedIOError)
		default:
			c.boot(d)
		}
	}

	enter(vmi, kubevirt.Running)
	c.observe(ctx, vmi)

	return nil
}

// define makes the domain of an instance.
func (c *Controller) define(vmi *kubevirt.VirtualMachineInstance, s seed) *domain {
	d := &domain{key: kube.Key(vmi), uid: vmi.UID}
	d.guest = c.describeGuest(vmi, s)

	if vmi.Spec.StartStrategy != nil && *vmi.Spec.StartStrategy == kubevirt.StartStrategyPaused {
		d.paused.Store(pausedByUser)
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.domains[vmi.UID] = d

	return d
}

func (c *Controller) describeGuest(vmi *kubevirt.VirtualMachineInstance, s seed) Guest {
	g := Guest{
		Namespace: vmi.Namespace, Name: vmi.Name, Machine: string(machineOf(vmi)), Hostname: vmi.Spec.Hostname,
		UserData: s.userData, NetworkData: s.networkData, Image: c.image(vmi), CPUs: int(processors(vmi.Spec.Domain.CPU)),
		Instance: vmi.DeepCopy(),
	}

	if g.Hostname == "" {
		g.Hostname = vmi.Name
	}

	if f := vmi.Spec.Domain.Firmware; f != nil {
		g.UUID, g.Serial = strings.ToLower(string(f.UUID)), f.Serial
	}

	if m := vmi.Spec.Domain.Memory; m != nil && m.Guest != nil {
		g.MemoryMiB = int(m.Guest.Value() >> 20)
	}

	for i, nic := range vmi.Spec.Domain.Devices.Interfaces {
		g.MACs = append(g.MACs, macOf(vmi, i, nic))
	}

	return g
}

// machineOf returns the UID that stands for a machine through all its instances.
func machineOf(vmi *kubevirt.VirtualMachineInstance) types.UID {
	if owner := metav1.GetControllerOf(vmi); owner != nil {
		return owner.UID
	}

	return vmi.UID
}

// macOf returns the address of an interface: the given one, or one that is made from the instance's UID.
func macOf(vmi *kubevirt.VirtualMachineInstance, i int, nic kubevirt.Interface) string {
	if nic.MacAddress != "" {
		return nic.MacAddress
	}

	h := fnv.New32a()
	_, _ = fmt.Fprintf(h, "%s %d", vmi.UID, i)
	sum := h.Sum32()

	return fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum))
}

// boot runs the guest. What ran before has ended by the time the new guest starts.
func (c *Controller) boot(d *domain) {
	c.mu.Lock()
	defer c.mu.Unlock()

	machine := types.UID(d.guest.Machine)

	of := c.lasting[machine]
	if of == nil {
		of = &lasting{key: d.key}
		c.lasting[machine] = of
	}

	of.boots++

	ctx, cancel := context.WithCancel(c.ctx)
	now := &run{cancel: cancel, done: make(chan struct{})}
	before := d.run.Swap(now)

	if before != nil {
		before.cancel()
	}

	runs := c.software(d.guest)
	if runs == nil || ctx.Err() != nil {
		close(now.done)

		return
	}

	guest := d.guest
	guest.c, guest.d, guest.r, guest.Disk = c, d, now, &of.disk

	c.tasks.Go(func() {
		defer close(now.done)
		defer cancel()

		if before != nil {
			<-before.done
		}

		if ctx.Err() == nil {
			runs(ctx, guest)
		}

		if ctx.Err() == nil && d.run.Load() == now {
			d.phase.CompareAndSwap(nil, kubevirt.Succeeded)
			c.instances.Add(d.key)
		}
	})
}

// resume lets a domain go on, and boots one that was paused before its guest began.
func (c *Controller) resume(d *domain) {
	d.paused.Store("")

	if d.run.Load() == nil {
		c.boot(d)
	}
}

// restart is a reset of a domain, or a reboot of its guest. A run that is not the current one any more restarts nothing.
func (c *Controller) restart(d *domain, of *run) {
	if _, ended := d.ended(); ended || d.run.Load() != of || of == nil {
		return
	}

	c.boot(d)
}

// cut takes the power from a domain.
func (c *Controller) cut(d *domain, phase kubevirt.VirtualMachineInstancePhase) {
	d.phase.CompareAndSwap(nil, phase)

	c.mu.Lock()
	defer c.mu.Unlock()

	if d.leaving != nil {
		d.leaving.Stop()
	}

	if r := d.run.Load(); r != nil {
		r.cancel()
	}
}

// shutDown presses the power button of a domain.
func (c *Controller) shutDown(d *domain, deaf bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if d.leaving != nil || deaf || d.pausedBy() != "" {
		return
	}

	d.leaving = time.AfterFunc(c.opts.Times.Shutdown, func() {
		c.cut(d, kubevirt.Succeeded)
		c.instances.Add(d.key)
	})
}

func (c *Controller) cutAll() {
	c.mu.Lock()

	all := make([]*domain, 0, len(c.domains))
	for _, d := range c.domains {
		all = append(all, d)
	}

	c.mu.Unlock()

	for _, d := range all {
		c.cut(d, kubevirt.Failed)
	}
}

// Reasons of the Paused condition.
const (
	pausedByUser  = "PausedByUser"
	pausedIOError = "PausedIOError"
)

// observe writes into the status what virt-handler sees of a domain.
func (c *Controller) observe(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) {
	d := c.domain(vmi.UID)
	if d == nil {
		enter(vmi, kubevirt.Failed)

		return
	}

	if since, down := c.nodeDown(vmi.Status.NodeName); down {
		c.lose(ctx, vmi, d, since)

		return
	}

	if phase, ended := d.ended(); ended {
		enter(vmi, phase)

		if phase == kubevirt.Failed {
			c.handler.Event(ctx, vmi, kube.VirtualMachineInstances, corev1.EventTypeWarning, "Stopped", "The VirtualMachineInstance crashed.")
		} else {
			c.handler.Event(ctx, vmi, kube.VirtualMachineInstances, corev1.EventTypeNormal, "Stopped", "The VirtualMachineInstance was shut down.")
		}

		return
	}

	switch failing := c.fault(d.key).IOError; {
	case failing && d.pausedBy() == "":
		d.paused.Store(pausedIOError)
	case !failing && d.pausedBy() == pausedIOError:
		c.resume(d)
	}

	switch d.pausedBy() {
	case pausedByUser:
		set(vmi, kubevirt.VirtualMachineInstancePaused, corev1.ConditionTrue, pausedByUser, "VMI was paused by user")
	case pausedIOError:
		set(vmi, kubevirt.VirtualMachineInstancePaused, corev1.ConditionTrue, pausedIOError, "VMI was paused, low-level IO error detected")
	default:
		drop(vmi, kubevirt.VirtualMachineInstancePaused)
	}

	c.migratable(vmi)
	c.interfaces(vmi)
}

// lose is what becomes of an instance whose node is silent.
func (c *Controller) lose(ctx context.Context, vmi *kubevirt.VirtualMachineInstance, d *domain, since time.Time) {
	if left := time.Until(since.Add(c.opts.Times.nodeTimeout())); left > 0 {
		c.instances.After(d.key, left)

		return
	}

	c.cut(d, kubevirt.Failed)
	vmi.Status.Reason = "NodeUnresponsive"
	enter(vmi, kubevirt.Failed)
	c.events.Event(ctx, vmi, kube.VirtualMachineInstances, corev1.EventTypeWarning, "NodeUnresponsive",
		fmt.Sprintf("virt-handler on node %s is not responsive, marking VMI as unresponsive", vmi.Status.NodeName))
}

// migratable writes whether an instance could move to another node: not with a claim that only one node can mount.
func (c *Controller) migratable(vmi *kubevirt.VirtualMachineInstance) {
	for _, v := range vmi.Spec.Volumes {
		pvc := c.claims.Get(vmi.Namespace, claimOf(v))
		if pvc == nil || shared(pvc) {
			continue
		}

		message := fmt.Sprintf("cannot migrate VMI: PVC %v is not shared, live migration requires that all PVCs must be shared "+
			"(using ReadWriteMany access mode)", pvc.Name)
		set(vmi, kubevirt.VirtualMachineInstanceIsMigratable, corev1.ConditionFalse, kubevirt.VirtualMachineInstanceReasonDisksNotMigratable, message)
		set(vmi, kubevirt.VirtualMachineInstanceIsStorageLiveMigratable, corev1.ConditionTrue, "", "")

		return
	}

	set(vmi, kubevirt.VirtualMachineInstanceIsMigratable, corev1.ConditionTrue, "", "")
	set(vmi, kubevirt.VirtualMachineInstanceIsStorageLiveMigratable, corev1.ConditionTrue, "", "")
}

func shared(pvc *corev1.PersistentVolumeClaim) bool {
	for _, mode := range pvc.Spec.AccessModes {
		if mode == corev1.ReadWriteMany {
			return true
		}
	}

	return false
}

// interfaces writes the addresses of an instance.
func (c *Controller) interfaces(vmi *kubevirt.VirtualMachineInstance) {
	if len(vmi.Status.Interfaces) == len(vmi.Spec.Domain.Devices.Interfaces) {
		return
	}

	vmi.Status.Interfaces = nil

	for i, nic := range vmi.Spec.Domain.Devices.Interfaces {
		status := kubevirt.VirtualMachineInstanceNetworkInterface{
			Name: nic.Name, MAC: macOf(vmi, i, nic), InfoSource: "domain", QueueCount: 1, LinkState: "up",
		}

		for _, network := range vmi.Spec.Networks {
			if network.Name == nic.Name && network.Pod != nil {
				status.IP = c.nextAddress()
				status.IPs = []string{status.IP}
				status.PodInterfaceName = "eth0"
			}
		}

		vmi.Status.Interfaces = append(vmi.Status.Interfaces, status)
	}
}

func (c *Controller) nextAddress() string {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.address++

	return fmt.Sprintf("10.244.%d.%d", c.address/250%250, c.address%250+2)
}
