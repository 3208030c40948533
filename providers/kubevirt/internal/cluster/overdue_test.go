package cluster

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRevkAdviceNamesWhatIsMissing(t *testing.T) {
	for _, r := range []string{"network-attachment-definitions.k8s.cni.cncf.io", "volumesnapshots.snapshot.storage.k8s.io"} {
		err := classify(context.Background(), Op{Verb: "get", Resource: r, Namespace: "n", Name: "x"}, &apierrors.StatusError{ErrStatus: metav1.Status{
			Code: 404, Reason: metav1.StatusReasonNotFound, Message: "the server could not find the requested resource", Details: &metav1.StatusDetails{}}})
		assert.NotContains(t, err.Error(), "KubeVirt and its Containerized Data Importer installed")
	}
}
