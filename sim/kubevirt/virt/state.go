package virt

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirt "kubevirt.io/api/core/v1"
)

// What a TPM or a UEFI remembers is in a claim of the machine's, which virt-controller makes for the first instance.
const (
	// stateLabel has the name of the machine; the claim's name begins with it.
	stateLabel  = "persistent-state-for"
	stateVolume = stateLabel + "-this-vm"
	stateSize   = "10Mi"

	applyProfile = "cdi.kubevirt.io/applyStorageProfile"

	defaultClass   = "storageclass.kubernetes.io/is-default-class"
	defaultVirtual = "storageclass.kubevirt.io/is-default-virt-class"
)

// Reasons of the Synchronized condition for that claim.
const (
	failedStateCreate = "FailedBackendStorageCreate"
	failedStateProbe  = "FailedBackendStorageProbe"
	stateNotReady     = "BackendStorageNotReady"
)

// remembers says whether an instance has a device with a persistent state.
func remembers(vmi *kubevirt.VirtualMachineInstance) bool {
	yes := func(b *bool) bool { return b != nil && *b }
	domain := &vmi.Spec.Domain
	tpm, firmware := domain.Devices.TPM, domain.Firmware

	return tpm != nil && (tpm.Enabled == nil || *tpm.Enabled) && yes(tpm.Persistent) ||
		firmware != nil && firmware.Bootloader != nil && firmware.Bootloader.EFI != nil && yes(firmware.Bootloader.EFI.Persistent)
}

// stateOf returns the claim for the persistent state of an instance, nil if there is none.
func (c *Controller) stateOf(vmi *kubevirt.VirtualMachineInstance) *corev1.PersistentVolumeClaim {
	all := c.claims.List()
	i := slices.IndexFunc(all, func(pvc *corev1.PersistentVolumeClaim) bool {
		return pvc.Namespace == vmi.Namespace && pvc.Labels[stateLabel] == vmi.Name && pvc.DeletionTimestamp == nil
	})

	if i < 0 {
		return nil
	}

	return all[i]
}

// ensureState makes the claim for the persistent state of an instance, or deletes one that it needs no more, and says whether it can be used.
func (c *Controller) ensureState(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) (ready bool, err error) {
	pvc := c.stateOf(vmi)

	switch {
	case !remembers(vmi) && pvc == nil:
		return true, nil
	case !remembers(vmi):
		err = c.claims.Delete(ctx, pvc, metav1.DeletePropagationBackground)

		return err == nil || apierrors.IsNotFound(err), ignoreNotFound(err)
	case pvc == nil:
		if pvc, err = c.makeState(ctx, vmi); err != nil {
			return false, err
		}
	}

	vmi.Status.VolumeStatus = []kubevirt.VolumeStatus{{Name: stateVolume, PersistentVolumeClaimInfo: &kubevirt.PersistentVolumeClaimInfo{
		ClaimName: pvc.Name, AccessModes: pvc.Spec.AccessModes,
	}}}

	switch class := c.classes.Get("", *pvc.Spec.StorageClassName); {
	case pvc.Status.Phase == corev1.ClaimBound:
		return true, nil
	case pvc.Status.Phase == corev1.ClaimLost:
		return false, &problem{failedStateProbe, errors.New("backend storage PVC lost")}
	case class == nil:
		return false, &problem{failedStateProbe, fmt.Errorf("storage class %s not found", *pvc.Spec.StorageClassName)}
	case class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer:
		_, err := c.consume(ctx, pvc, vmi)

		return false, err
	default:
		return false, &problem{stateNotReady, errors.New("PVC pending")}
	}
}

// makeState makes the claim. Its owner is that of the instance, which it outlives therefore.
func (c *Controller) makeState(ctx context.Context, vmi *kubevirt.VirtualMachineInstance) (*corev1.PersistentVolumeClaim, error) {
	class := c.stateClass()
	if class == "" {
		return nil, &problem{failedStateCreate, errors.New("no default storage class found")}
	}

	owners := vmi.OwnerReferences
	if len(owners) == 0 {
		owners = []metav1.OwnerReference{*metav1.NewControllerRef(vmi, kubevirt.VirtualMachineInstanceGroupVersionKind)}
	}

	made, err := c.claims.Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: vmi.Namespace, GenerateName: stateLabel + "-" + vmi.Name + "-", OwnerReferences: owners,
			Labels: map[string]string{stateLabel: vmi.Name, applyProfile: "true"},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, VolumeMode: new(corev1.PersistentVolumeFilesystem),
			AccessModes: []corev1.PersistentVolumeAccessMode{c.stateMode(class)},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(stateSize)},
			},
		},
	})

	switch {
	case apierrors.IsForbidden(err) || apierrors.IsInvalid(err): // What changes that is watched.
		return nil, &problem{failedStateCreate, err}
	case err != nil:
		return nil, err
	}

	c.claims.Put(made)

	return made, nil
}

// stateClass is the default storage class: that for virtual machines, else that of the cluster, empty if there is none.
func (c *Controller) stateClass() string {
	name := ""

	for _, class := range c.classes.List() {
		switch {
		case class.Annotations[defaultVirtual] == "true":
			return class.Name
		case class.Annotations[defaultClass] == "true":
			name = class.Name
		}
	}

	return name
}

// stateMode is how the file systems of a class are mounted: by several nodes, if they can.
func (c *Controller) stateMode(class string) corev1.PersistentVolumeAccessMode {
	profile := c.profiles.Get("", class)
	if profile == nil {
		return corev1.ReadWriteOnce
	}

	for _, set := range profile.Status.ClaimPropertySets {
		if set.VolumeMode != nil && *set.VolumeMode == corev1.PersistentVolumeFilesystem && slices.Contains(set.AccessModes, corev1.ReadWriteMany) {
			return corev1.ReadWriteMany
		}
	}

	return corev1.ReadWriteOnce
}
