//go:build real

package machine_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/clustertest"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
)

// gates are the feature gates that some classes need, which are closed in KubeVirt by default: its webhooks say so, after the API server's
// own judgement.
var gates = map[string]string{"devices": "Host Devices", "passt-core": "PasstBinding"}

// TestRealAPIServerTakesTheObjectsOfTheMatrix lets a real API server judge all that the matrix of classes gives, by the definitions'
// schemas and rules, without a field that it does not know, by KubeVirt's webhooks, and under the rights of the provider's own manifest.
func TestRealAPIServerTakesTheObjectsOfTheMatrix(t *testing.T) {
	cluster, err := clustertest.Start(kubevirt.ControllerOptions{})
	require.NoError(t, err)

	defer func() { require.NoError(t, cluster.Close()) }()

	namespace, account, err := cluster.NewNamespace(t.Context())
	require.NoError(t, err)

	client, err := dynamic.NewForConfig(account)
	require.NoError(t, err)

	files, err := filepath.Glob("testdata/matrix/*.objects.yaml")
	require.NoError(t, err)
	require.Greater(t, len(files), 30)

	judged := 0

	for _, file := range files {
		class := strings.TrimSuffix(filepath.Base(file), ".objects.yaml")

		t.Run(class, func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)

			for document := range bytes.SplitSeq(text, []byte("---\n")) {
				var u unstructured.Unstructured
				require.NoError(t, yaml.UnmarshalStrict(document, &u.Object))

				u.SetNamespace(namespace)

				resource, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())

				_, err := client.Resource(resource).Namespace(namespace).Create(t.Context(), &u, metav1.CreateOptions{
					DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict,
				})
				judged++

				if gate := gates[class]; gate != "" && u.GetKind() == "VirtualMachine" {
					require.ErrorContains(t, err, "denied the request: "+gate+" feature gate is not enabled")

					continue
				}

				require.NoError(t, err, "%s", document)
			}
		})
	}

	t.Log(judged, "objects were judged")
}
