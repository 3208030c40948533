package cdi

import (
	"errors"
	"fmt"
	"math"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// align is what disks are aligned to.
const align = 1 << 20

// required is how large a file system has to be for a disk of that size.
func required(overhead float64, size int64) int64 {
	aligned := (size + align - 1) / align * align

	return int64(math.Ceil(float64(aligned) * (1 + overhead)))
}

// usable is how large a disk a file system of that size can hold.
func usable(overhead float64, size int64) int64 {
	return int64(math.Ceil(float64(size)/(1+overhead))) / align * align
}

// class returns the storage class of that name, or the default one, which may be one for virtual machines only.
func (c *Controller) class(name *string) *storagev1.StorageClass {
	var usual, virtual *storagev1.StorageClass

	for _, class := range c.classes.List() {
		if name != nil && *name == class.Name {
			return class
		}

		if class.Annotations[defaultClass] == "true" {
			usual = class
		}

		if class.Annotations[defaultVirtual] == "true" {
			virtual = class
		}
	}

	switch {
	case name != nil && *name != "":
		return nil
	case virtual != nil:
		return virtual
	default:
		return usual
	}
}

// csi says whether claims of a class are filled by volume populators: CDI does so with all CSI drivers.
func csi(class *storagev1.StorageClass) bool {
	return class != nil && strings.Contains(class.Provisioner, "csi")
}

// render returns the claim that a DataVolume asks for, which may be a clone of a snapshot.
func (c *Controller) render(dv *cdi.DataVolume, of *snapshotv1.VolumeSnapshot) (*corev1.PersistentVolumeClaimSpec, *storagev1.StorageClass, error) {
	if dv.Spec.PVC != nil {
		spec := dv.Spec.PVC.DeepCopy()

		return spec, c.class(spec.StorageClassName), nil
	}

	if dv.Spec.Storage == nil {
		return nil, nil, errors.New("datavolume one of {pvc, storage} field is required")
	}

	s := dv.Spec.Storage
	spec := &corev1.PersistentVolumeClaimSpec{
		AccessModes: s.AccessModes, Selector: s.Selector, VolumeName: s.VolumeName, StorageClassName: s.StorageClassName,
		VolumeMode: s.VolumeMode, DataSource: s.DataSource, DataSourceRef: s.DataSourceRef,
		Resources: *s.Resources.DeepCopy(),
	}

	class := c.class(s.StorageClassName)

	switch {
	case class != nil:
		spec.StorageClassName = &class.Name

		if err := c.profile(class, spec); err != nil {
			return nil, nil, err
		}
	case len(spec.AccessModes) == 0:
		return nil, nil, errors.New("PVC spec is missing accessMode and no storageClass to choose profile")
	}

	return spec, class, c.size(dv, of, spec)
}

// profile fills in what a storage profile says of claims of its class.
func (c *Controller) profile(class *storagev1.StorageClass, spec *corev1.PersistentVolumeClaimSpec) error {
	open := spec.VolumeMode == nil || *spec.VolumeMode == ""
	if !open && len(spec.AccessModes) > 0 {
		return nil
	}

	profile := c.profiles.Get("", class.Name)

	switch {
	case profile == nil && len(spec.AccessModes) > 0:
		return nil
	case profile == nil:
		return fmt.Errorf("cannot get StorageProfile: storageprofiles.cdi.kubevirt.io %q not found", class.Name)
	}

	for _, set := range profile.Status.ClaimPropertySets {
		fits := open || set.VolumeMode != nil && *set.VolumeMode == *spec.VolumeMode
		if len(spec.AccessModes) > 0 {
			fits = fits && subset(spec.AccessModes, set.AccessModes)
		}

		if !fits || len(set.AccessModes) == 0 {
			continue
		}

		if open {
			spec.VolumeMode = set.VolumeMode
		}

		if len(spec.AccessModes) == 0 {
			spec.AccessModes = set.AccessModes
		}

		return nil
	}

	switch {
	case len(spec.AccessModes) > 0:
		return nil
	case open:
		return fmt.Errorf("no accessMode specified in StorageProfile %s", class.Name)
	default:
		return fmt.Errorf("no matching accessMode specified in StorageProfile %s", class.Name)
	}
}

func subset(some, all []corev1.PersistentVolumeAccessMode) bool {
	for _, mode := range some {
		found := false
		for _, other := range all {
			found = found || other == mode
		}

		if !found {
			return false
		}
	}

	return true
}

// size adds what a file system needs to what is asked for. A clone that says nothing is as large as its source.
func (c *Controller) size(dv *cdi.DataVolume, of *snapshotv1.VolumeSnapshot, spec *corev1.PersistentVolumeClaimSpec) error {
	asked, ok := spec.Resources.Requests[corev1.ResourceStorage]

	if !ok || asked.IsZero() {
		from, clone := cloneSource(dv)
		if !clone {
			return errors.New("PVC Spec is not valid - missing storage size")
		}

		if of != nil {
			spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: *of.Status.RestoreSize}

			return nil
		}

		source := c.claims.Get(from.namespace, from.name)
		if source == nil {
			return fmt.Errorf("the source pvc %s doesn't exist", from.name)
		}

		size := source.Spec.Resources.Requests[corev1.ResourceStorage]
		if have, ok := source.Status.Capacity[corev1.ResourceStorage]; ok && !sameClass(source, spec) {
			size = have
		}

		spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: size}

		return nil
	}

	if asked.Value() < align {
		return errors.New("PVC Spec is not valid - storage size should be at least 1MiB")
	}

	if spec.VolumeMode != nil && *spec.VolumeMode == corev1.PersistentVolumeBlock {
		return nil
	}

	spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(required(c.opts.overhead(), asked.Value()), resource.BinarySI)

	return nil
}

func sameClass(pvc *corev1.PersistentVolumeClaim, spec *corev1.PersistentVolumeClaimSpec) bool {
	return pvc.Spec.StorageClassName != nil && spec.StorageClassName != nil && *pvc.Spec.StorageClassName == *spec.StorageClassName
}

// room is how large a disk a claim can hold.
func (c *Controller) room(pvc *corev1.PersistentVolumeClaim) int64 {
	size := pvc.Spec.Resources.Requests[corev1.ResourceStorage]
	if have, ok := pvc.Status.Capacity[corev1.ResourceStorage]; ok {
		size = have
	}

	if block(pvc) {
		return size.Value()
	}

	return usable(c.opts.overhead(), size.Value())
}

func block(pvc *corev1.PersistentVolumeClaim) bool {
	return pvc.Spec.VolumeMode != nil && *pvc.Spec.VolumeMode == corev1.PersistentVolumeBlock
}

// checkSource says what is wrong with the source of a clone. A snapshot that is right is returned.
func (c *Controller) checkSource(dv *cdi.DataVolume) (*snapshotv1.VolumeSnapshot, event) {
	from, clone := cloneSource(dv)

	switch {
	case !clone:
		return nil, event{}
	case from.snapshot():
		return c.checkSnapshot(from)
	}

	source := c.claims.Get(from.namespace, from.name)
	if source == nil {
		return nil, withoutSource(from)
	}

	var asked resource.Quantity

	switch {
	case dv.Spec.PVC != nil:
		asked = dv.Spec.PVC.Resources.Requests[corev1.ResourceStorage]
	case dv.Spec.Storage != nil:
		asked = dv.Spec.Storage.Resources.Requests[corev1.ResourceStorage]
	}

	size := source.Spec.Resources.Requests[corev1.ResourceStorage]
	least := size.Value()

	if dv.Spec.Storage != nil && !block(source) {
		least = usable(c.opts.overhead(), least) // What is asked for does not count the file system.
	}

	if !asked.IsZero() && asked.Value() < least {
		return nil, event{corev1.EventTypeWarning, "CloneValidationFailed",
			fmt.Sprintf("target resources requests storage size is smaller than the source %d < %d", asked.Value(), least)}
	}

	return nil, event{}
}

func withoutSource(from source) event {
	return event{corev1.EventTypeWarning, "CloneWithoutSource", fmt.Sprintf("The source %s %s doesn't exist", from.word(), from.name)}
}
