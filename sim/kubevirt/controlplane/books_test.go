package controlplane_test

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/controlplane"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// server answers every call with the same object.
type server struct{ calls []string }

func (s *server) RoundTrip(req *http.Request) (*http.Response, error) {
	s.calls = append(s.calls, req.Method+" "+req.URL.Path)

	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
		Body: io.NopCloser(strings.NewReader(`{"apiVersion":"kubevirt.io/v1","kind":"VirtualMachine","metadata":{"name":"m","namespace":"n"}}`)),
	}, nil
}

func site(t *testing.T) (*server, *ledger.Ledger, dynamic.ResourceInterface) {
	t.Helper()

	s, l := &server{}, ledger.New()

	client, err := dynamic.NewForConfig(&rest.Config{
		Host: "https://kubernetes.test", QPS: -1, Transport: &controlplane.Transport{Next: s, Session: l.Session(), Ledger: l},
	})
	require.NoError(t, err)

	resource := schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}

	return s, l, client.Resource(resource).Namespace("n")
}

func machine(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": map[string]any{"name": name}}}
}

func TestCallsAreBookedAsAccessRulesNameThem(t *testing.T) {
	_, l, machines := site(t)
	ctx := t.Context()

	_, err := machines.Create(ctx, machine("m"), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = machines.Apply(ctx, "m", machine("m"), metav1.ApplyOptions{FieldManager: "us"})
	require.NoError(t, err)
	_, err = machines.Patch(ctx, "m", types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = machines.Update(ctx, machine("m"), metav1.UpdateOptions{}, "restart")
	require.NoError(t, err)
	_, err = machines.Get(ctx, "m", metav1.GetOptions{})
	require.NoError(t, err)
	_, err = machines.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.NoError(t, machines.Delete(ctx, "m", metav1.DeleteOptions{}))

	var calls []string

	for line := range strings.Lines(l.History()) {
		calls = append(calls, strings.Join(strings.Fields(line)[2:], " "))
	}

	require.Equal(t, []string{
		"create virtualmachines n", "patch virtualmachines n/m", "patch virtualmachines n/m", "update virtualmachines/restart n/m",
		"get virtualmachines n/m", "list virtualmachines n", "delete virtualmachines n/m",
	}, calls)
}

func TestLostReplyHasItsEffectAndACutCallHasNone(t *testing.T) {
	for kind, effects := range map[ledger.FaultKind]int{ledger.Lost: 1, ledger.Cut: 0} {
		s, l, machines := site(t)
		l.Inject(ledger.Fault{Kind: kind, Op: "create"})

		_, err := machines.Create(t.Context(), machine("m"), metav1.CreateOptions{})
		require.ErrorIs(t, err, syscall.ECONNRESET)
		require.Len(t, s.calls, effects)
	}
}

func TestFaultsSpeakAsKubernetesDoes(t *testing.T) {
	for kind, is := range map[ledger.FaultKind]func(error) bool{
		ledger.NotFound: apierrors.IsNotFound, ledger.Conflict: apierrors.IsConflict, ledger.Throttled: apierrors.IsTooManyRequests,
		ledger.Unavailable: apierrors.IsServiceUnavailable, ledger.Full: apierrors.IsForbidden, ledger.Unauthorized: apierrors.IsUnauthorized,
		ledger.Echo: apierrors.IsInternalError,
	} {
		require.Contains(t, controlplane.Faults, kind)

		// client-go waits as often as it is told to, up to ten times.
		synctest.Test(t, func(t *testing.T) {
			s, l, machines := site(t)
			l.Inject(ledger.Fault{Kind: kind, Op: "create", Times: -1})

			_, err := machines.Create(t.Context(), machine("m"), metav1.CreateOptions{})
			require.True(t, is(err), "%s: %v", kind, err)
			require.Empty(t, s.calls, "a fault has no effect")
		})
	}
}

func TestSecretOutsideOfASecretIsExposed(t *testing.T) {
	_, l, machines := site(t)
	require.NoError(t, l.Secret("join token", "hush-hush-hush"))

	m := machine("m")
	m.SetAnnotations(map[string]string{"user-data": "hush-hush-hush"})

	_, err := machines.Create(t.Context(), m, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{`secret "join token" is in create virtualmachines n`}, l.Leaks())
}
