package kubevirt_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// Without virt-api all that KubeVirt serves by itself is answered by the aggregator, while machines and instances are there as ever.
func TestSubresourcesWithoutVirtAPIAreUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		w.create(diskless("a", kubevirtv1.RunStrategyHalted))
		after(time.Second)

		restore := w.Server().Cut(virt.SubresourceVersion)

		for _, want := range []string{"error trying to reach service: dial tcp 10.96.0.17:443: connect: connection refused", "service unavailable"} {
			err := w.core.CoreV1().RESTClient().Put().AbsPath("/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/a/start").
				Do(t.Context()).Error()
			require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)

			status, ok := err.(apierrors.APIStatus) //nolint:errorlint // It is what the client returns.
			require.True(t, ok)
			require.Equal(t, want, status.Status().Details.Causes[0].Message)

			_, err = w.core.Discovery().ServerResourcesForGroupVersion("subresources.kubevirt.io/v1")
			require.True(t, apierrors.IsServiceUnavailable(err), "%v", err)

			time.Sleep(time.Minute)
		}

		require.Equal(t, "Stopped", w.status("a"))
		restore()

		code, message := w.call("virtualmachines", "a", "start", "")
		require.Equal(t, http.StatusAccepted, code, message)
	})
}
