package cdi

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdi "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// adoptable says whether a DataVolume takes a claim that it has not made as it is.
func adoptable(dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim) bool {
	allowed, _ := strconv.ParseBool(dv.Annotations[annAdopt]) // Anything else denies it.

	return allowed && (dv.UID == "" || pvc.Annotations[annCreatedFor] != string(dv.UID))
}

// hasData says whether there is nothing to do for a claim: it was filled, or is taken as it is.
func hasData(dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim) bool {
	return pvc.Annotations[annPopulatedFor] == dv.Name || adoptable(dv, pvc)
}

// adopt takes over a claim that needs nothing. Any other claim is in the way.
func (c *Controller) adopt(ctx context.Context, dv *cdi.DataVolume, pvc *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, event, error) {
	if !hasData(dv, pvc) {
		return nil, event{corev1.EventTypeWarning, "ErrResourceExists",
			fmt.Sprintf("Resource %q already exists and is not managed by DataVolume", pvc.Name)}, nil
	}

	if owner := metav1.GetControllerOf(pvc); owner != nil {
		return nil, event{}, fmt.Errorf("Object %s/%s is already owned by another %s controller %s", //nolint:staticcheck // As CDI words it.
			pvc.Namespace, pvc.Name, owner.Kind, owner.Name)
	}

	pvc = pvc.DeepCopy()
	pvc.OwnerReferences = append(pvc.OwnerReferences, *metav1.NewControllerRef(dv, kube.DataVolumes.GroupVersionKind))

	updated, err := c.claims.Update(ctx, pvc)
	if err == nil {
		c.claims.Put(updated)
	}

	return updated, event{}, err
}
