package provider

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Images from which no machine was made for the configured time are deleted in the background, now and then, when the library looks at the
// machines: that shows that this process is the one that acts. A look costs no call while the watches are open, and without them there
// is none. Machines do not need the image that they were made from: their disks are copies of it.

// sweepTimeout bounds a sweep.
const sweepTimeout = 5 * time.Minute

// sweepIfDue starts a sweep if the last one began long enough ago. The first one is not before a whole interval has passed, so that
// commands that only look at what there is delete nothing.
func (d *Driver) sweepIfDue(providerID string) {
	if d.config.KeepImages {
		return
	}

	d.mu.Lock()
	defer d.mu.Unlock()

	if d.closed || time.Since(d.swept) < d.config.SweepInterval {
		return
	}

	d.swept = time.Now()

	d.background.Go(func() {
		ctx, cancel := context.WithTimeout(d.life, sweepTimeout)
		defer cancel()

		if err := d.sweepImages(ctx, providerID); err != nil && d.life.Err() == nil {
			d.log.Warn("images that nothing uses may be left in the cluster until the next sweep", zap.Error(err))
		}
	})
}

func (d *Driver) sweepImages(ctx context.Context, providerID string) error {
	var errs []error

	for _, namespace := range d.config.Operator.Namespaces {
		ms := d.seen.of(providerID, namespace)
		if ms == nil {
			continue
		}

		volumes, volumesLive := ms.volumes.All()
		claims, claimsLive := ms.claims.All()

		if !volumesLive || !claimsLive {
			continue
		}

		// An image may have either, or both.
		due := map[string]metav1.Object{}

		for _, claim := range claims {
			if d.unused(providerID, claim) {
				due[claim.Name] = claim
			}
		}

		for _, v := range volumes {
			if _, isImage := machine.ImageMarkOf(v); isImage {
				delete(due, v.Name)
			}

			if d.unused(providerID, v) {
				due[v.Name] = v
			}
		}

		if len(due) > 0 {
			errs = append(errs, d.sweepDue(ctx, providerID, namespace, due))
		}
	}

	return errors.Join(errs...)
}

// unused reports whether an object is an image from which no machine was made for long enough.
func (d *Driver) unused(providerID string, o metav1.Object) bool {
	mark, ok := machine.ImageMarkOf(o)
	if !ok || mark.ProviderID != providerID || o.GetDeletionTimestamp() != nil {
		return false
	}

	last := mark.LastUsed
	if created := o.GetCreationTimestamp().Time; created.After(last) {
		last = created
	}

	return time.Since(last) >= d.config.ImageMaxAge && !d.images.reserved(imageRef{o.GetNamespace(), o.GetName()})
}

// sweepPage is how many objects of a namespace, whosever they are, are looked at with one call.
const sweepPage = 500

// sweepDue deletes the images of a namespace that are due, unless somebody, of whatever provider, is at copying them.
func (d *Driver) sweepDue(ctx context.Context, providerID, namespace string, due map[string]metav1.Object) error {
	volumes, err := d.cluster.DataVolumes().ListPaged(ctx, namespace, sweepPage)
	if err != nil {
		return err
	}

	vms, err := d.cluster.VirtualMachines().ListPaged(ctx, namespace, sweepPage)
	if err != nil {
		return err
	}

	var errs []error

	for _, o := range due {
		if !copied(o, volumes, vms) {
			errs = append(errs, d.sweepImage(ctx, providerID, o))
		}
	}

	return errors.Join(errs...)
}

// copied reports whether an image is being copied, or is to be.
func copied(image metav1.Object, volumes []*cdiv1.DataVolume, vms []*kubevirtv1.VirtualMachine) bool {
	namespace, name := image.GetNamespace(), image.GetName()

	for _, v := range volumes {
		if copies(v, namespace, name) && v.Status.Phase != cdiv1.Succeeded {
			return true
		}
	}

	// Virtual machines whose disks are yet to be made name it too.
	for _, vm := range vms {
		for _, t := range vm.Spec.DataVolumeTemplates {
			v := &cdiv1.DataVolume{ObjectMeta: metav1.ObjectMeta{Namespace: vm.Namespace, Name: t.Name}, Spec: t.Spec}
			if copies(v, namespace, name) && !vm.Status.Created && !made(volumes, v) {
				return true
			}
		}
	}

	return false
}

// sweepImage deletes an image that is due and that nobody copies.
func (d *Driver) sweepImage(ctx context.Context, providerID string, o metav1.Object) error {
	namespace, name := o.GetNamespace(), o.GetName()

	if d.images.reserved(imageRef{namespace, name}) {
		return nil
	}

	snapshot, err := d.cluster.Unstructured(ctx, snapshots, namespace, name)

	switch {
	case driver.IsNotFound(err) || cluster.Unserved(err) || cluster.Forbidden(err):
	case err != nil:
		return err
	default:
		if mark, ok := machine.ImageMarkOf(snapshot); ok && mark.ProviderID == providerID {
			if err := d.cluster.DeleteUnstructured(ctx, snapshots, snapshot); err != nil && !driver.IsNotFound(err) {
				return err
			}
		}
	}

	if v, ok := o.(*cdiv1.DataVolume); ok {
		err = d.cluster.DataVolumes().Delete(ctx, v)
	} else {
		err = d.cluster.Claims().Delete(ctx, o)
	}

	if err != nil {
		return err
	}

	d.images.forget(imageRef{namespace, name})
	d.log.Info("an image that nothing used is deleted", zap.String("namespace", namespace), zap.String("image", name))

	return nil
}

// made reports whether a template's DataVolume is there, filled.
func made(volumes []*cdiv1.DataVolume, template *cdiv1.DataVolume) bool {
	return slices.ContainsFunc(volumes, func(v *cdiv1.DataVolume) bool { return v.Name == template.Name && v.Status.Phase == cdiv1.Succeeded })
}

// copies reports whether a DataVolume is filled from the image, or its snapshot.
func copies(v *cdiv1.DataVolume, namespace, name string) bool {
	from := func(ns, n string) bool { return n == name && (ns == namespace || ns == "" && v.Namespace == namespace) }

	switch s := v.Spec.Source; {
	case s == nil:
		return false
	case s.PVC != nil:
		return from(s.PVC.Namespace, s.PVC.Name)
	case s.Snapshot != nil:
		return from(s.Snapshot.Namespace, s.Snapshot.Name)
	default:
		return false
	}
}
