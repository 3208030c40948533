package kubevirt_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/kubernetes"
)

// saidOf are the Events of a claim, each once: type, reason and message.
func (w *world) saidOf(name string) (all []string) {
	w.Helper()

	events, err := w.core.CoreV1().Events(ns).List(w.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=PersistentVolumeClaim,involvedObject.name=" + name,
	})
	require.NoError(w, err)

	seen := map[string]bool{}

	for _, e := range events.Items {
		if text := fmt.Sprintf("%s %s: %s", e.Type, e.Reason, e.Message); !seen[text] {
			seen[text] = true

			all = append(all, text)
		}
	}

	return all
}

// What the controller of volumes says while a provisioner is at it, or is not there at all: nothing of it is a warning.
const external = "Waiting for a volume to be created either by the external provisioner 'csi.sim.example' or manually by the system " +
	"administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."

func TestClaimOfAProvisionerThatNeverAnswersStaysPendingWithoutAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Classes = []kubevirt.StorageClass{{Name: "silent", Default: true, Silent: true}}

		w := start(t, opts)
		_, err := w.AddForeign("claim", "plain")
		require.NoError(t, err)
		w.create(machine("a"))
		after(time.Hour)

		require.Equal(t, corev1.ClaimPending, w.claim("plain").Status.Phase)
		require.Equal(t, []string{"Normal ExternalProvisioning: " + external}, w.saidOf("plain"))

		// CDI fills a volume of its own, whose Events it repeats.
		require.Contains(t, w.saidOf("a"), fmt.Sprintf("Normal ExternalProvisioning: [prime-%s] : %s", w.claim("a").UID, external))
		require.Equal(t, cdiv1.ImportScheduled, w.volume("a").Status.Phase)

		reason, _ := told(w.volume("a"), cdiv1.DataVolumeRunning)
		require.Equal(t, "Unschedulable", reason)
		require.Equal(t, "Provisioning", w.status("a"))
	})
}

func TestClaimWithoutAnyStorageClassSaysSoWithoutAWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Classes = []kubevirt.StorageClass{{Name: "other"}}

		w := start(t, opts)
		_, err := w.AddForeign("claim", "plain")
		require.NoError(t, err)
		after(time.Minute)

		require.Equal(t, []string{
			"Normal FailedBinding: no persistent volumes available for this claim and no storage class is set",
		}, w.saidOf("plain"))
	})
}

// The claim that nobody can provision has both, a hint of the controller and the warning of the provisioner.
func TestProvisionerThatFailsWarnsBesideTheHint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		remove := w.Kubernetes.Inject(kubernetes.Fault{Unbound: "pool is full"})
		w.create(machine("a"))
		after(time.Minute)

		prime := fmt.Sprintf("[prime-%s] : ", w.claim("a").UID)
		require.ElementsMatch(t, []string{
			"Normal ExternalProvisioning: " + prime + external,
			"Warning ProvisioningFailed: " + prime + `failed to provision volume with StorageClass "standard": pool is full`,
		}, w.saidOf("a"))
		require.Equal(t, cdiv1.ImportScheduled, w.volume("a").Status.Phase, "nothing is imported to nowhere")

		remove()
		after(time.Minute)
		require.Equal(t, "Running", w.status("a"))
	})
}
