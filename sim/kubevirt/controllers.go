package kubevirt

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/cdi"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/kubernetes"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/snapshots"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// ControllerOptions shape the controllers of a cluster. The zero value takes no time for anything, boots nothing, and has the storage
// class "standard".
type ControllerOptions struct {
	// Virt, CDI, Kubernetes and Snapshots shape the parts. Virt.Content, CDI.Node, CDI.Withheld and Snapshots.Restoring are set here,
	// and Kubernetes.Silent is what Classes say.
	Virt       virt.Options
	CDI        cdi.Options
	Kubernetes kubernetes.Options
	Snapshots  snapshots.Options
	// Namespaces are made if they are not there.
	Namespaces []string
	// Classes are the storage classes; none is "standard", the default one, of a CSI driver that binds at once and clones by snapshots.
	Classes []StorageClass
	// SnapshotClasses are the classes of volume snapshots; nil is "snapshots", the default one of Driver.
	SnapshotClasses []SnapshotClass
}

// Driver is the CSI driver of storage classes that say no other.
const Driver = "csi.sim.example"

// SnapshotClass is a class of volume snapshots.
type SnapshotClass struct {
	Name    string
	Default bool
	// Driver is the CSI driver; empty is Driver.
	Driver string
	// Retain keeps what the driver has when a snapshot is deleted.
	Retain bool
}

// StorageClass is a storage class with what CDI knows of it.
type StorageClass struct {
	Name    string
	Default bool
	// WaitForFirstConsumer binds claims only when a machine uses them.
	WaitForFirstConsumer bool
	// Driver is the CSI driver, with "csi" in its name; empty is Driver.
	Driver string
	// Plain is a class whose provisioner is no CSI driver: claims are bound before they are filled, and clones are copies.
	Plain bool
	// Block prefers volumes that are block devices to file systems; Shared lets several nodes mount them.
	Block, Shared bool
	// Unknown leaves the class out of CDI's storage profiles' knowledge: claims have to say their access modes.
	Unknown bool
	// Silent is a class whose provisioner never answers.
	Silent bool
	// Clone is how clones within the class are made; empty is CDI's own choice.
	Clone cdiv1.CDICloneStrategy
}

// Controllers are all that makes an API server a cluster with KubeVirt.
type Controllers struct {
	Virt       *virt.Controller
	CDI        *cdi.Controller
	Kubernetes *kubernetes.Controller
	Snapshots  *snapshots.Controller

	opts           ControllerOptions
	client         *kube.Client
	mirrors        *kube.Mirrors
	admission      *virt.Admission
	dataAdmission  *cdi.Admission
	storageClasses kube.Resource[storagev1.StorageClass, *storagev1.StorageClass]
	snapClasses    kube.Resource[snapshotv1.VolumeSnapshotClass, *snapshotv1.VolumeSnapshotClass]
	profiles       kube.Resource[cdiv1.StorageProfile, *cdiv1.StorageProfile]
	namespaces     kube.Resource[corev1.Namespace, *corev1.Namespace]
}

// NewControllers returns the controllers for an API server, which has the kinds of package definitions. The configuration is that of an
// administrator (of the group system:masters): webhooks let it do what KubeVirt's own components may do.
func NewControllers(config *rest.Config, opts ControllerOptions) (c *Controllers, err error) {
	if len(opts.Classes) == 0 {
		opts.Classes = []StorageClass{{Name: "standard", Default: true}}
	}

	if opts.SnapshotClasses == nil {
		opts.SnapshotClasses = []SnapshotClass{{Name: "snapshots", Default: true}}
	}

	c = &Controllers{opts: opts}

	if c.client, err = kube.NewClient(config); err != nil {
		return nil, err
	}

	c.mirrors = kube.NewMirrors(c.client)

	if len(opts.Virt.Nodes) == 0 {
		opts.Virt.Nodes = []virt.Node{{Name: "node-1"}}
	}

	opts.CDI.Node = opts.Virt.Nodes[0].Name

	// Nobody asks before all controllers are there.
	opts.CDI.Withheld = func(namespace, claim string) bool { return c.Kubernetes.Withheld(namespace, claim) }

	for _, class := range opts.Classes {
		if class.Silent {
			opts.Kubernetes.Silent = append(opts.Kubernetes.Silent, class.Name)
		}
	}

	if c.CDI, err = cdi.New(c.mirrors, opts.CDI); err != nil {
		return nil, err
	}

	opts.Virt.Content = c.CDI.Content

	if c.Virt, err = virt.New(c.mirrors, opts.Virt); err != nil {
		return nil, err
	}

	if c.Kubernetes, err = kubernetes.New(c.mirrors, opts.Kubernetes); err != nil {
		return nil, err
	}

	opts.Snapshots.Restoring = c.CDI.Restoring

	if c.Snapshots, err = snapshots.New(c.mirrors, opts.Snapshots); err != nil {
		return nil, err
	}

	if c.admission, err = virt.NewAdmission(c.client, opts.Virt.Configuration); err != nil {
		return nil, err
	}

	if c.dataAdmission, err = cdi.NewAdmission(c.client); err != nil {
		return nil, err
	}

	if c.storageClasses, err = kube.Of[storagev1.StorageClass](c.client, kube.StorageClasses); err != nil {
		return nil, err
	}

	if c.snapClasses, err = kube.Of[snapshotv1.VolumeSnapshotClass](c.client, kube.VolumeSnapshotClasses); err != nil {
		return nil, err
	}

	if c.profiles, err = kube.Of[cdiv1.StorageProfile](c.client, kube.StorageProfiles); err != nil {
		return nil, err
	}

	c.namespaces, err = kube.Of[corev1.Namespace](c.client, kube.Namespaces)

	return c, err
}

// Prepare makes the namespaces, the storage classes and their profiles, and the snapshot classes, as far as they are not there.
func (c *Controllers) Prepare(ctx context.Context) error {
	for _, name := range c.opts.Namespaces {
		_, err := c.namespaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create namespace %q: %w", name, err)
		}
	}

	for _, class := range c.opts.Classes {
		if err := c.addClass(ctx, class); err != nil {
			return fmt.Errorf("create storage class %q: %w", class.Name, err)
		}
	}

	for _, class := range c.opts.SnapshotClasses {
		if err := c.addSnapshotClass(ctx, class); err != nil {
			return fmt.Errorf("create snapshot class %q: %w", class.Name, err)
		}
	}

	return nil
}

func (c *Controllers) addSnapshotClass(ctx context.Context, class SnapshotClass) error {
	object := &snapshotv1.VolumeSnapshotClass{
		ObjectMeta: metav1.ObjectMeta{Name: class.Name, Annotations: map[string]string{}}, Driver: cmp.Or(class.Driver, Driver),
		DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}

	if class.Default {
		object.Annotations["snapshot.storage.kubernetes.io/is-default-class"] = "true"
	}

	if class.Retain {
		object.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
	}

	if _, err := c.snapClasses.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}

	return nil
}

func (c *Controllers) addClass(ctx context.Context, class StorageClass) error {
	object := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: class.Name, Annotations: map[string]string{}}, Provisioner: cmp.Or(class.Driver, Driver),
		ReclaimPolicy:     new(corev1.PersistentVolumeReclaimDelete),
		VolumeBindingMode: new(storagev1.VolumeBindingImmediate), AllowVolumeExpansion: new(true),
	}

	if class.Default {
		object.Annotations["storageclass.kubernetes.io/is-default-class"] = "true"
	}

	if class.WaitForFirstConsumer {
		object.VolumeBindingMode = new(storagev1.VolumeBindingWaitForFirstConsumer)
	}

	if class.Plain {
		object.Provisioner = "local.sim.example"
	}

	if _, err := c.storageClasses.Create(ctx, object); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}

	profile := &cdiv1.StorageProfile{ObjectMeta: metav1.ObjectMeta{Name: class.Name}}

	made, err := c.profiles.Create(ctx, profile)

	switch {
	case apierrors.IsAlreadyExists(err):
		if made, err = c.profiles.Get(ctx, "", class.Name); err != nil {
			return err
		}
	case err != nil:
		return err
	}

	made.Status = cdiv1.StorageProfileStatus{StorageClass: &class.Name, Provisioner: &object.Provisioner}

	if class.Clone != "" {
		made.Status.CloneStrategy = &class.Clone
	}

	if !class.Unknown {
		made.Status.ClaimPropertySets = propertySets(class)
	}

	if _, err = c.profiles.Update(ctx, made, "status"); apierrors.IsNotFound(err) {
		_, err = c.profiles.Update(ctx, made)
	}

	return err
}

// propertySets are the modes that claims of a class can have, the preferred one first.
func propertySets(class StorageClass) []cdiv1.ClaimPropertySet {
	mode := corev1.ReadWriteOnce
	if class.Shared {
		mode = corev1.ReadWriteMany
	}

	set := func(volume corev1.PersistentVolumeMode) cdiv1.ClaimPropertySet {
		return cdiv1.ClaimPropertySet{AccessModes: []corev1.PersistentVolumeAccessMode{mode}, VolumeMode: &volume}
	}

	if class.Block {
		return []cdiv1.ClaimPropertySet{set(corev1.PersistentVolumeBlock), set(corev1.PersistentVolumeFilesystem)}
	}

	return []cdiv1.ClaimPropertySet{set(corev1.PersistentVolumeFilesystem), set(corev1.PersistentVolumeBlock)}
}

// Run works until ctx ends.
func (c *Controllers) Run(ctx context.Context) {
	var work sync.WaitGroup

	work.Go(func() { c.mirrors.Run(ctx) })
	work.Go(func() { c.Virt.Run(ctx) })
	work.Go(func() { c.CDI.Run(ctx) })
	work.Go(func() { c.Kubernetes.Run(ctx) })
	work.Go(func() { c.Snapshots.Run(ctx) })
	work.Wait()
}

// API serves the subresources of virt-api, of the group virt.SubresourceVersion, behind an APIService.
func (c *Controllers) API() http.Handler { return c.Virt.API() }

// Webhooks serves all admission webhooks for AdmissionReview requests: for virtualmachines and virtualmachineinstances at
// virt.MutatePath and virt.ValidatePath, for datavolumes at cdi.ValidatePath, each for CREATE and UPDATE.
func (c *Controllers) Webhooks() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(virt.MutatePath, c.admission.Handler())
	mux.Handle(virt.ValidatePath, c.admission.Handler())
	mux.Handle(cdi.ValidatePath, c.dataAdmission.Handler())

	return mux
}

// DeleteMachine deletes a machine, as someone with kubectl would.
func (c *Controllers) DeleteMachine(ctx context.Context, m virt.Machine) error {
	vms, err := kube.Of[metav1.PartialObjectMetadata](c.client, kube.VirtualMachines)
	if err != nil {
		return err
	}

	return vms.Delete(ctx, &metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: types.UID(m.UID)}, metav1.DeletePropagationBackground)
}

// ownerTime is how long a call of the cluster's owner may take.
const ownerTime = 30 * time.Second
