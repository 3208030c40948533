package kubernetes

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// Withheld says whether there is no volume for a claim for now: its provisioner fails, or never answers.
func (c *Controller) Withheld(namespace, name string) bool {
	pvc := c.claims.Get(namespace, name)
	if pvc == nil || pvc.Status.Phase == corev1.ClaimBound {
		return false
	}

	class, message := c.class(pvc)
	if class == nil || message != "" {
		return false
	}

	_, withheld := c.withheld(kube.Key(pvc), class)

	return withheld
}

// withheld says whether a provisioner does not do its work, with the message of one that answers.
func (c *Controller) withheld(key string, class *storagev1.StorageClass) (message string, withheld bool) {
	if message := c.unbound(key); message != "" {
		return message, true
	}

	return "", slices.Contains(c.opts.Silent, class.Name)
}

// hint is what the controller of volumes says of a claim whose provisioner has not answered yet.
func hint(pvc *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	return prime(pvc) + fmt.Sprintf("Waiting for a volume to be created either by the external provisioner '%s' or manually by the system "+
		"administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.", class.Provisioner)
}

// unfilled says whether a populator has yet to fill a claim. It is bound only then.
func unfilled(pvc *corev1.PersistentVolumeClaim) bool {
	return pvc.Annotations[usePopulator] == "true" && pvc.Annotations[populated] == ""
}

// prime is what CDI puts before Events that it repeats: those of the claim that it fills in place of this one, which is none here.
func prime(pvc *corev1.PersistentVolumeClaim) string {
	if !unfilled(pvc) {
		return ""
	}

	return fmt.Sprintf("[prime-%s] : ", pvc.UID)
}
