package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v4/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// GuestAgentExtension is the Talos extension with the QEMU guest agent.
const GuestAgentExtension = "siderolabs/qemu-guest-agent"

// CDI's annotations: the first makes it fill a volume that nobody uses yet, the second keeps it from removing a DataVolume that has
// been filled.
const (
	annotationBindImmediate     = "cdi.kubevirt.io/storage.bind.immediate.requested"
	annotationDeleteAfterFilled = "cdi.kubevirt.io/storage.deleteAfterCompletion"
)

// BootImage is the boot image of the class, nil when system disks come from container images. What the request asks for is added
// to it.
func (c ClassData) BootImage() *driver.ImageSpec {
	if c.Image.Source == SourceContainerDisk {
		return nil
	}

	spec := &driver.ImageSpec{
		Platform: "nocloud", Arch: c.Architecture, Format: "qcow2", SecureBoot: c.SecureBoot,
		Extensions: slices.Clone(c.Extensions), KernelArgs: slices.Clone(c.KernelArgs),
	}

	if c.GuestAgent {
		spec.Extensions = append([]string{GuestAgentExtension}, spec.Extensions...)
	}

	return spec
}

// ImageVolume is an image in the cluster: one for all machines of the same contents, storage class and volume mode in a namespace.
type ImageVolume struct {
	ProviderID string
	Namespace  string
	// Key names the contents, URL is where they come from; see driver.Image.
	Key, URL string
	// TalosVersion and Arch are part of its name.
	TalosVersion string
	Arch         driver.Arch
	// CertConfigMap is the ConfigMap with the certificates of who signs for URL, beside those that all know; empty for none.
	CertConfigMap string
	// StorageClassName and VolumeMode are those of the volume; empty for the cluster's default and for CDI's choice.
	StorageClassName, VolumeMode string
	// SnapshotClass is that of the snapshot, empty for the cluster's default.
	SnapshotClass string
	// VirtualSize is the size of the disk in bytes; see VirtualSize.
	VirtualSize int64
	// Version is that of the provider, LastUsed when a machine was last made from it.
	Version  string
	LastUsed time.Time
}

// ImageVolume is the image in the cluster that the class's machines are made from.
func (c ClassData) ImageVolume(req driver.Request, image driver.Image, version string) ImageVolume {
	return ImageVolume{
		ProviderID: req.ProviderID, Namespace: c.Namespace, Key: image.Key(), URL: image.URL(), TalosVersion: req.TalosVersion,
		Arch: c.Architecture, StorageClassName: c.StorageClassName, VolumeMode: c.VolumeMode, SnapshotClass: c.Image.SnapshotClass, Version: version,
	}
}

func (i ImageVolume) meta() metav1.ObjectMeta {
	annotations := map[string]string{
		AnnotationProvider: i.ProviderID, AnnotationVersion: i.Version, AnnotationImageKey: i.Key,
	}

	if !i.LastUsed.IsZero() {
		annotations[AnnotationLastUsed] = i.LastUsed.UTC().Format(time.RFC3339)
	}

	return metav1.ObjectMeta{
		Namespace: i.Namespace, Name: i.Name(), Annotations: annotations,
		Labels: map[string]string{LabelProvider: LabelValue(i.ProviderID), LabelImage: i.Name(), labelManagedBy: FieldManager},
	}
}

// DataVolume imports the image. Its size is what a machine sees: CDI adds what a file system takes for itself.
func (i ImageVolume) DataVolume() *cdiv1.DataVolume {
	dv := &cdiv1.DataVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: cdiv1.SchemeGroupVersion.String(), Kind: "DataVolume"},
		ObjectMeta: i.meta(),
		Spec: cdiv1.DataVolumeSpec{
			ContentType: cdiv1.DataVolumeKubeVirt,
			Source:      &cdiv1.DataVolumeSource{HTTP: &cdiv1.DataVolumeSourceHTTP{URL: i.URL, CertConfigMap: i.CertConfigMap}},
			Storage:     storage(ceilMiB(i.VirtualSize), i.StorageClassName, i.VolumeMode, string(corev1.ReadWriteOnce)),
		},
	}
	dv.Annotations[annotationBindImmediate] = "true"
	dv.Annotations[annotationDeleteAfterFilled] = "false"

	return dv
}

// Snapshot is the snapshot of the imported image, of which clones are made with SourceSnapshot.
func (i ImageVolume) Snapshot() *snapshotv1.VolumeSnapshot {
	name := i.Name()
	s := &snapshotv1.VolumeSnapshot{
		TypeMeta:   metav1.TypeMeta{APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshot"},
		ObjectMeta: i.meta(),
		Spec:       snapshotv1.VolumeSnapshotSpec{Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &name}},
	}

	if i.SnapshotClass != "" {
		s.Spec.VolumeSnapshotClassName = &i.SnapshotClass
	}

	return s
}

// ImageMark is the ownership mark of an image's object.
type ImageMark struct {
	ProviderID, Name, Key, Version string
	// LastUsed is zero when the object does not tell.
	LastUsed time.Time
}

// ImageMarkOf reads the mark of an image's object. It is not ok for one without a mark, or with one that contradicts itself.
func ImageMarkOf(o metav1.Object) (ImageMark, bool) {
	has, says := o.GetLabels(), o.GetAnnotations()
	m := ImageMark{ProviderID: says[AnnotationProvider], Name: has[LabelImage], Key: says[AnnotationImageKey], Version: says[AnnotationVersion]}

	if m.ProviderID == "" || m.Key == "" || m.Name != o.GetName() || has[LabelProvider] != LabelValue(m.ProviderID) || has[LabelRequest] != "" {
		return ImageMark{}, false
	}

	if used, err := time.Parse(time.RFC3339, says[AnnotationLastUsed]); err == nil {
		m.LastUsed = used
	}

	return m, true
}

// QCOW2HeaderSize is how much of an image VirtualSize reads.
const QCOW2HeaderSize = 32

// VirtualSize is the size in bytes of the disk in a qcow2 image, of which header is the beginning.
func VirtualSize(header []byte) (int64, error) {
	if len(header) < QCOW2HeaderSize || string(header[:4]) != "QFI\xfb" {
		return 0, errors.New("read the image's size: it is not in the format qcow2")
	}

	size := binary.BigEndian.Uint64(header[24:32])
	if size == 0 || size > 1<<46 {
		return 0, fmt.Errorf("read the image's size: its header says %d bytes", size)
	}

	return int64(size), nil
}

// CheckSize refuses a system disk that the image does not fit on.
func (c ClassData) CheckSize(virtualSize int64) error {
	if have := int64(c.DiskSize) << 30; virtualSize > have {
		return driver.Terminalf("disk_size: got %d GiB, but the image has %d MiB: want %d or more", c.DiskSize, ceilMiB(virtualSize)>>20, (virtualSize+1<<30-1)>>30)
	}

	return nil
}

func ceilMiB(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 << 20 }

// storage asks CDI for a volume; empty texts leave the choice to it.
func storage(bytes int64, class, volumeMode, accessMode string) *cdiv1.StorageSpec {
	s := &cdiv1.StorageSpec{
		Resources: corev1.VolumeResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(bytes, resource.BinarySI)},
		},
	}

	if class != "" {
		s.StorageClassName = &class
	}

	if volumeMode != "" {
		mode := corev1.PersistentVolumeMode(volumeMode)
		s.VolumeMode = &mode
	}

	if accessMode != "" {
		s.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(accessMode)}
	}

	return s
}
