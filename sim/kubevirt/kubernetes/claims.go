package kubernetes

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kubevirt "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

const (
	// protection is the finalizer that keeps a claim while something uses it.
	protection = "kubernetes.io/pvc-protection"

	selectedNode = "volume.kubernetes.io/selected-node"
	defaultClass = "storageclass.kubernetes.io/is-default-class"

	// The annotations by which CDI says that a populator fills a claim, and how far it has come.
	usePopulator = "cdi.kubevirt.io/storage.usePopulator"
	populated    = "cdi.kubevirt.io/storage.populatedFor"
)

// externalProvisioning is the reason of the Event that says that a provisioner has not answered yet.
const externalProvisioning = "ExternalProvisioning"

// unboundRetry is how often a provisioner says again why a claim stays Pending.
const unboundRetry = 15 * time.Second

// bind looks after one claim.
func (c *Controller) bind(ctx context.Context, key string) error {
	pvc := c.claims.Get(split(key))

	switch {
	case pvc == nil:
		c.forget(key)

		return nil
	case pvc.DeletionTimestamp != nil:
		return c.unprotect(ctx, pvc)
	case pvc.Status.Phase == corev1.ClaimBound || pvc.Status.Phase == corev1.ClaimLost:
		c.forget(key)

		return nil
	}

	class, message := c.class(pvc)

	switch {
	case message != "":
		c.events.Event(ctx, pvc, kube.Claims, corev1.EventTypeWarning, "ProvisioningFailed", message)

		return nil
	case class == nil:
		c.events.Event(ctx, pvc, kube.Claims, corev1.EventTypeNormal, "FailedBinding",
			"no persistent volumes available for this claim and no storage class is set")

		return nil
	case late(class) && pvc.Annotations[selectedNode] == "":
		return c.once(ctx, pvc, "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
	}

	if message, withheld := c.withheld(key, class); withheld {
		c.binding.After(key, unboundRetry)
		c.events.Event(ctx, pvc, kube.Claims, corev1.EventTypeNormal, externalProvisioning, hint(pvc, class))

		if message != "" {
			c.events.Event(ctx, pvc, kube.Claims, corev1.EventTypeWarning, "ProvisioningFailed",
				prime(pvc)+fmt.Sprintf("failed to provision volume with StorageClass %q: %s", class.Name, message))
		}

		return nil
	}

	if unfilled(pvc) {
		return nil
	}

	w := c.waitOf(pvc)
	if w.since.IsZero() {
		w.since = time.Now()
	}

	if left := time.Until(w.since.Add(c.opts.Bind)); left > 0 {
		c.binding.After(key, left)

		return c.once(ctx, pvc, externalProvisioning, hint(pvc, class))
	}

	return c.provision(ctx, pvc, class)
}

// waitOf returns what is known of a claim that is not bound.
func (c *Controller) waitOf(pvc *corev1.PersistentVolumeClaim) *waiting {
	c.mu.Lock()
	defer c.mu.Unlock()

	key := kube.Key(pvc)

	w := c.waiting[key]
	if w == nil || w.claim != pvc.UID {
		w = &waiting{claim: pvc.UID}
		c.waiting[key] = w
	}

	return w
}

// once tells of a claim what has not been told yet.
func (c *Controller) once(ctx context.Context, pvc *corev1.PersistentVolumeClaim, reason, message string) error {
	if w := c.waitOf(pvc); !slices.Contains(w.told, reason) {
		w.told = append(w.told, reason)
		c.events.Event(ctx, pvc, kube.Claims, corev1.EventTypeNormal, reason, message)
	}

	return nil
}

func (c *Controller) forget(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.waiting, key)
}

func late(class *storagev1.StorageClass) bool {
	return class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// class returns the storage class of a claim, or what is wrong with it.
func (c *Controller) class(pvc *corev1.PersistentVolumeClaim) (class *storagev1.StorageClass, message string) {
	name := pvc.Spec.StorageClassName

	switch {
	case name != nil && *name == "":
		return nil, ""
	case name != nil:
		if class := c.classes.Get("", *name); class != nil {
			return class, ""
		}

		return nil, fmt.Sprintf("storageclass.storage.k8s.io %q not found", *name)
	}

	for _, class := range c.classes.List() {
		if class.Annotations[defaultClass] == "true" {
			return class, ""
		}
	}

	return nil, ""
}

// provision binds a claim to a volume of its own.
func (c *Controller) provision(ctx context.Context, pvc *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	pvc = pvc.DeepCopy()

	if pvc.Annotations == nil {
		pvc.Annotations = map[string]string{}
	}

	pvc.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
	pvc.Annotations["pv.kubernetes.io/bound-by-controller"] = "yes"
	pvc.Annotations["volume.kubernetes.io/storage-provisioner"] = class.Provisioner
	pvc.Spec.VolumeName = "pvc-" + string(pvc.UID)

	if !slices.Contains(pvc.Finalizers, protection) {
		pvc.Finalizers = append(pvc.Finalizers, protection)
	}

	bound, err := c.claims.Update(ctx, pvc)
	if err != nil {
		return ignoreNotFound(err)
	}

	bound.Status.Phase = corev1.ClaimBound
	bound.Status.AccessModes = bound.Spec.AccessModes
	bound.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: bound.Spec.Resources.Requests[corev1.ResourceStorage]}

	bound, err = c.claims.Update(ctx, bound, "status")
	if err != nil {
		return ignoreNotFound(err)
	}

	c.claims.Put(bound)
	c.events.Event(ctx, bound, kube.Claims, corev1.EventTypeNormal, "ProvisioningSucceeded",
		fmt.Sprintf("Successfully provisioned volume %s", bound.Spec.VolumeName))

	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}

	return err
}

// unprotect lets a claim go that nothing uses.
func (c *Controller) unprotect(ctx context.Context, pvc *corev1.PersistentVolumeClaim) error {
	if !slices.Contains(pvc.Finalizers, protection) || c.used(pvc) {
		return nil
	}

	pvc = pvc.DeepCopy()
	pvc.Finalizers = slices.DeleteFunc(pvc.Finalizers, func(f string) bool { return f == protection })

	_, err := c.claims.Update(ctx, pvc)

	return ignoreNotFound(err)
}

// used says whether a machine that runs has the claim.
func (c *Controller) used(pvc *corev1.PersistentVolumeClaim) bool {
	for _, vmi := range c.vmis.List() {
		if vmi.Namespace != pvc.Namespace || vmi.IsFinal() {
			continue
		}

		for _, v := range vmi.Spec.Volumes {
			if v.DataVolume != nil && v.DataVolume.Name == pvc.Name || v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == pvc.Name {
				return true
			}
		}

		for _, v := range vmi.Status.VolumeStatus {
			if v.PersistentVolumeClaimInfo != nil && v.PersistentVolumeClaimInfo.ClaimName == pvc.Name {
				return true
			}
		}
	}

	return false
}

// released looks after the claims of an instance that does not run any more.
func (c *Controller) released(vmi *kubevirt.VirtualMachineInstance) {
	for _, v := range vmi.Spec.Volumes {
		switch {
		case v.DataVolume != nil:
			c.binding.Add(vmi.Namespace + "/" + v.DataVolume.Name)
		case v.PersistentVolumeClaim != nil:
			c.binding.Add(vmi.Namespace + "/" + v.PersistentVolumeClaim.ClaimName)
		}
	}

	for _, v := range vmi.Status.VolumeStatus {
		if v.PersistentVolumeClaimInfo != nil {
			c.binding.Add(vmi.Namespace + "/" + v.PersistentVolumeClaimInfo.ClaimName)
		}
	}
}
