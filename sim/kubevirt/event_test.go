package kubevirt_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/kubernetes"
)

func TestWhatHappensAgainIsOneEventThatIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		remove := w.Kubernetes.Inject(kubernetes.Fault{Unbound: "there is no room"})
		w.create(machine("a"))
		after(24 * time.Hour)

		about := func() []corev1.Event {
			events, err := w.core.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=ProvisioningFailed"})
			require.NoError(t, err)

			return events.Items
		}

		got := about()
		require.Len(t, got, 1)
		require.Greater(t, got[0].Count, int32(100))
		require.Greater(t, got[0].LastTimestamp.Sub(got[0].FirstTimestamp.Time), 23*time.Hour)

		remove()
		after(2 * time.Hour)
		require.Empty(t, about())
	})
}
