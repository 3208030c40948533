package virt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubevirt "kubevirt.io/api/core/v1"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// instanceFinalizer is the one that virt-api puts on instances.
const instanceFinalizer = kubevirt.VirtualMachineInstanceFinalizer

// Reasons of the Synchronized condition.
const (
	failedClaimNotFound = "FailedPvcNotFound"
	errImagePull        = "ErrImagePull"
	imagePullBackOff    = "ImagePullBackOff"
)

// syncInstance looks after one instance.
func (c *Controller) syncInstance(ctx context.Context, key string) error {
	stored := c.vmis.Get(split(key))
	c.forget(key, stored)

	if stored == nil {
		return nil
	}

	vmi := stored.DeepCopy()
	trouble := c.advance(ctx, vmi)

	var p *problem
	if trouble != nil && !errors.As(trouble, &p) {
		return trouble
	}

	if p != nil {
		set(vmi, kubevirt.VirtualMachineInstanceSynchronized, corev1.ConditionFalse, p.reason, p.Error())
	} else {
		drop(vmi, kubevirt.VirtualMachineInstanceSynchronized)
	}

	c.readiness(vmi)

	if equality.Semantic.DeepEqual(stored.Status, vmi.Status) && equality.Semantic.DeepEqual(stored.ObjectMeta, vmi.ObjectMeta) {
		return nil
	}

	updated, err := c.vmis.Update(ctx, vmi)
	if err != nil {
		return ignoreNotFound(err)
	}

	if len(updated.Finalizers) > 0 || updated.DeletionTimestamp == nil {
		c.vmis.Put(updated)
	}

	if stored.Status.Phase != updated.Status.Phase {
		c.instances.Add(key)
		c.machines.Add(key)
		c.capacityChanged(updated)
	}

	return nil
}

// advance takes an instance one step on.
func (c *Controller) advance(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	c.volumeConditions(vmi)

	switch {
	case vmi.IsFinal():
		return c.bury(vmi)
	case vmi.DeletionTimestamp != nil:
		c.leave(vmi)

		return nil
	}

	switch vmi.Status.Phase {
	case kubevirt.VmPhaseUnset, kubevirt.Pending:
		return c.pend(ctx, vmi)
	case kubevirt.Scheduling:
		return c.schedule(ctx, vmi)
	case kubevirt.Scheduled:
		return c.launch(ctx, vmi)
	case kubevirt.Running:
		c.observe(ctx, vmi)
	}

	return nil
}

// bury lets an instance go whose guest has ended.
func (c *Controller) bury(vmi *kubevirt.VirtualMachineInstance) error {
	machine := c.vms.Get(vmi.Namespace, vmi.Name)
	if machine != nil && !metav1.IsControlledBy(vmi, machine) {
		machine = nil
	}

	if linger := c.fault(kube.Key(vmi)).Linger; linger > 0 && vmi.DeletionTimestamp != nil {
		if left := c.lingers(vmi, machine, linger); left > 0 {
			c.instances.After(kube.Key(vmi), left)

			return nil
		}
	}

	vmi.Finalizers = slices.DeleteFunc(vmi.Finalizers, func(f string) bool {
		return f == instanceFinalizer || f == machineFinalizer && machine == nil
	})

	return nil
}

// lingers says how long an instance still stays that is to outlive its machine.
func (c *Controller) lingers(vmi *kubevirt.VirtualMachineInstance, machine *kubevirt.VirtualMachine, linger time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()

	// Whoever deletes the machine in the foreground has it wait for the instance.
	if machine != nil && machine.DeletionTimestamp == nil {
		return linger
	}

	key := kube.Key(vmi)

	p := c.parted[key]
	if p.instance != vmi.UID {
		p = parted{vmi.UID, time.Now()}
		c.parted[key] = p
	}

	return linger - time.Since(p.since)
}

// leave takes an instance that is deleted down: the guest is asked to shut down, and cut off when it takes too long.
func (c *Controller) leave(vmi *kubevirt.VirtualMachineInstance) {
	d := c.domain(vmi.UID)
	if d == nil {
		enter(vmi, kubevirt.Failed)

		return
	}

	if phase, ended := d.ended(); ended {
		enter(vmi, phase)

		return
	}

	grace := gracePeriod
	if seconds := vmi.Spec.TerminationGracePeriodSeconds; seconds != nil {
		grace = time.Duration(*seconds) * time.Second
	}

	left := time.Until(vmi.DeletionTimestamp.Add(grace))
	if grace == 0 || left <= 0 {
		end := kubevirt.Failed
		if grace == 0 {
			end = kubevirt.Succeeded // It was not to be asked.
		}

		c.cut(d, end)
		enter(vmi, end)

		return
	}

	c.shutDown(d, c.fault(kube.Key(vmi)).Deaf)
	c.instances.After(kube.Key(vmi), left)
}

// pend waits for the volumes of an instance and makes its launcher then.
func (c *Controller) pend(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) error {
	vmi.Status.Phase = kubevirt.Pending
	waits, fits := false, true

	for _, v := range vmi.Spec.Volumes {
		claim := claimOf(v)
		if claim == "" {
			continue
		}

		pvc, dv := c.claims.Get(vmi.Namespace, claim), c.dvs.Get(vmi.Namespace, claim)

		switch {
		case dv != nil && dv.Status.Phase == cdi.Failed:
			enter(vmi, kubevirt.Failed)

			return nil
		case pvc == nil:
			message := fmt.Sprintf("PVC %s/%s does not exist, waiting for it to appear", vmi.Namespace, claim)
			set(vmi, kubevirt.VirtualMachineInstanceConditionType(corev1.PodScheduled), corev1.ConditionFalse, corev1.PodReasonUnschedulable, message)

			return &problem{failedClaimNotFound, errors.New(message)}
		case pvc.Status.Phase != corev1.ClaimBound && usable(dv):
			waits = true

			if dv != nil && dv.Status.Phase == cdi.WaitForFirstConsumer {
				set(vmi, kubevirt.VirtualMachineInstanceProvisioning, corev1.ConditionTrue, "", "")
			}

			placed, err := c.consume(ctx, pvc, vmi)
			if err != nil {
				return err
			}

			fits = fits && placed
		case pvc.Status.Phase != corev1.ClaimBound, dv != nil && dv.Status.Phase != cdi.Succeeded:
			waits = true
		}
	}

	if waits && fits {
		drop(vmi, kubevirt.VirtualMachineInstanceConditionType(corev1.PodScheduled))
	}

	if waits {
		return nil
	}

	if err := c.opts.Configuration.launchable(vmi); err != nil {
		return &problem{failedCreate, err}
	}

	if ready, err := c.ensureState(ctx, vmi); err != nil || !ready {
		return err
	}

	if err := c.admitLauncher(vmi); err != nil {
		c.events.Event(ctx, vmi, kube.VirtualMachineInstances, corev1.EventTypeWarning, failedCreate, fmt.Sprintf("Error creating pod: %v", err))

		return &problem{failedCreate, fmt.Errorf("failed to create virtual machine pod: %w", err)}
	}

	drop(vmi, kubevirt.VirtualMachineInstanceConditionType(corev1.PodScheduled))
	drop(vmi, kubevirt.VirtualMachineInstanceProvisioning)
	vmi.Status.ActivePods = map[types.UID]string{launcher(vmi).UID: ""}
	enter(vmi, kubevirt.Scheduling)

	return nil
}

// usable says whether a claim that is not bound may be used so that it becomes so: nobody fills it, it was adopted, or it is to be filled
// where it is used.
func usable(dv *cdi.DataVolume) bool {
	if dv == nil {
		return true
	}

	switch dv.Status.Phase {
	case cdi.WaitForFirstConsumer, cdi.PendingPopulation, cdi.Succeeded:
		return true
	default:
		return false
	}
}

// selectedNode is the scheduler's annotation on a claim that waits for its first consumer.
const selectedNode = "volume.kubernetes.io/selected-node"

// consume is what the scheduler does with a claim that binds when it is used. A machine that fits on no node is not placed.
func (c *Controller) consume(ctx context.Context, pvc *corev1.PersistentVolumeClaim, vmi *kubevirt.VirtualMachineInstance) (placed bool, err error) {
	if pvc.Annotations[selectedNode] != "" {
		return true, nil
	}

	node, message := c.place(vmi)
	if message != "" {
		set(vmi, kubevirt.VirtualMachineInstanceConditionType(corev1.PodScheduled), corev1.ConditionFalse, corev1.PodReasonUnschedulable, message)

		return false, nil
	}

	pvc = pvc.DeepCopy()
	if pvc.Annotations == nil {
		pvc.Annotations = map[string]string{}
	}

	pvc.Annotations[selectedNode] = node

	updated, err := c.claims.Update(ctx, pvc)
	if err == nil {
		c.claims.Put(updated)
	}

	return true, ignoreNotFound(err)
}

// volumeConditions sums up the DataVolumes of an instance.
func (c *Controller) volumeConditions(vmi *kubevirt.VirtualMachineInstance) {
	status, any := corev1.ConditionTrue, false

	for _, v := range vmi.Spec.Volumes {
		dv := c.dvs.Get(vmi.Namespace, claimOf(v))
		if dv == nil {
			continue
		}

		any = true

		if ready := dvCondition(dv, cdi.DataVolumeReady); ready == nil || ready.Status != corev1.ConditionTrue {
			status = corev1.ConditionFalse
		}
	}

	switch {
	case !any:
	case status == corev1.ConditionTrue:
		set(vmi, kubevirt.VirtualMachineInstanceDataVolumesReady, status, kubevirt.VirtualMachineInstanceReasonAllDVsReady,
			"All of the VMI's DVs are bound and ready")
	default:
		set(vmi, kubevirt.VirtualMachineInstanceDataVolumesReady, status, kubevirt.VirtualMachineInstanceReasonNotAllDVsReady,
			"Not all of the VMI's DVs are ready")
	}
}

// readiness writes the Ready condition, which is that of the launcher's pod.
func (c *Controller) readiness(vmi *kubevirt.VirtualMachineInstance) {
	ready := kubevirt.VirtualMachineInstanceReady

	switch phase := vmi.Status.Phase; {
	case phase == kubevirt.Pending || phase == kubevirt.VmPhaseUnset:
		set(vmi, ready, corev1.ConditionFalse, kubevirt.PodNotExistsReason, "virt-launcher pod has not yet been scheduled")
	case vmi.IsFinal() || vmi.DeletionTimestamp != nil:
		set(vmi, ready, corev1.ConditionFalse, kubevirt.PodTerminatingReason, "virt-launcher pod is terminating")
	case phase != kubevirt.Running:
		set(vmi, ready, corev1.ConditionFalse, kubevirt.GuestNotRunningReason, "Guest VM is not reported as running")
	default:
		if _, down := c.nodeDown(vmi.Status.NodeName); down {
			set(vmi, ready, corev1.ConditionFalse, "", "")
		} else {
			set(vmi, ready, corev1.ConditionTrue, "", "")
		}
	}
}
