package cluster

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAdviceNamesWhatIsMissing(t *testing.T) {
	const (
		ours   = "(the cluster does not serve this kind: are KubeVirt and its Containerized Data Importer installed?)"
		others = "(the cluster does not serve this kind: is what defines it installed?)"
	)

	for resource, advice := range map[string]string{
		"virtualmachines.kubevirt.io":                          ours,
		"datavolumes.cdi.kubevirt.io":                          ours,
		"virtualmachineinstancetypes.instancetype.kubevirt.io": ours,
		"network-attachment-definitions.k8s.cni.cncf.io":       others,
		"volumesnapshots.snapshot.storage.k8s.io":              others,
	} {
		err := classify(context.Background(), Op{Verb: "get", Resource: resource, Namespace: "n", Name: "x"}, &apierrors.StatusError{ErrStatus: metav1.Status{
			Code: 404, Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource", Details: &metav1.StatusDetails{},
		}})
		assert.ErrorContains(t, err, advice, resource)
	}
}
