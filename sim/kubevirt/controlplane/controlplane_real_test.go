//go:build real

package controlplane_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admission "k8s.io/api/admission/v1"
	registration "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/controlplane"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/definitions"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// TestControlPlaneServesDefinitionsAccountsAndSubresources holds what every other test on it builds on: schemas are enforced, rights
// too, and calls of the subresources reach their handler with the name of the caller.
func TestControlPlaneServesDefinitionsAccountsAndSubresources(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()

	begin := time.Now()

	plane, err := controlplane.Start(ctx)
	require.NoError(t, err)

	defer func() { require.NoError(t, plane.Close()) }()

	ctx, done := plane.During(ctx)
	defer done()

	t.Log("ready after", time.Since(begin))

	all, err := definitions.All()
	require.NoError(t, err)
	require.NoError(t, plane.Define(ctx, all))
	t.Log("definitions served after", time.Since(begin))

	caller := make(chan string, 1)

	require.NoError(t, plane.Aggregate(ctx, schema.GroupVersion{Group: "subresources.kubevirt.io", Version: "v1"},
		[]metav1.APIResource{{Name: "virtualmachines/start", Namespaced: true, Verbs: metav1.Verbs{"update"}}},
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who, _ := request.UserFrom(r.Context())
			what, _ := request.RequestInfoFrom(r.Context())
			caller <- fmt.Sprintf("%s: %s %s/%s of %s/%s", who.GetName(), what.Verb, what.Resource, what.Subresource, what.Namespace, what.Name)

			w.WriteHeader(http.StatusAccepted)
		})))
	t.Log("subresources served after", time.Since(begin))

	require.NoError(t, plane.Apply(ctx,
		[]byte("{apiVersion: v1, kind: Namespace, metadata: {name: machines}}"),
		[]byte("{apiVersion: v1, kind: ServiceAccount, metadata: {name: provider, namespace: machines}}"),
		[]byte("{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: provider, namespace: machines}, rules: ["+
			"{apiGroups: [kubevirt.io], resources: [virtualmachines], verbs: [create]}, "+
			"{apiGroups: [subresources.kubevirt.io], resources: [virtualmachines/start], verbs: [update]}]}"),
		[]byte("{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: provider, namespace: machines}, "+
			"roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: provider}, subjects: [{kind: ServiceAccount, name: provider, namespace: machines}]}"),
	))

	config, err := plane.As(ctx, "machines", "provider")
	require.NoError(t, err)

	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)

	resource := schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}
	machines := client.Resource(resource).Namespace("machines")

	create := func(spec map[string]any, dryRun ...string) error {
		_, err := machines.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": map[string]any{"name": "m"}, "spec": spec,
		}}, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict, DryRun: dryRun})

		return err
	}

	template := map[string]any{"spec": map[string]any{"domain": map[string]any{"devices": map[string]any{}}}}

	// The rights of a role that has just been bound are not at once everywhere.
	require.Eventually(t, func() bool { return apierrors.IsInvalid(create(map[string]any{"runStrategy": "Always"})) }, time.Minute, 50*time.Millisecond)
	require.True(t, apierrors.IsBadRequest(create(map[string]any{"runStrategy": "Always", "template": template, "no": "such field"})))

	machine := schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachines"}
	mux := http.NewServeMux()
	mux.Handle("/mutate", kube.Webhook(func(_ context.Context, r *admission.AdmissionRequest) *admission.AdmissionResponse {
		return kube.Patch(map[string]any{"/metadata/annotations": map[string]string{"by": r.UserInfo.Username}})
	}))
	mux.Handle("/validate", kube.Webhook(func(_ context.Context, r *admission.AdmissionRequest) *admission.AdmissionResponse {
		if !strings.Contains(string(r.Object.Raw), `"runStrategy":"Always"`) {
			return &admission.AdmissionResponse{Result: &metav1.Status{Code: http.StatusUnprocessableEntity, Message: "no such strategy"}}
		}

		return kube.Allow()
	}))

	operations := []registration.OperationType{registration.Create}

	require.NoError(t, plane.AddWebhooks(ctx, "virt-api", mux,
		controlplane.Webhook{Name: "mutator.virtualmachine.kubevirt.io", Path: "/mutate", Mutating: true, Resource: machine, Operations: operations},
		controlplane.Webhook{Name: "validator.virtualmachine.kubevirt.io", Path: "/validate", Resource: machine, Operations: operations}))

	// Webhooks too are not at once everywhere.
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		err := create(map[string]any{"runStrategy": "Sometimes", "template": template}, metav1.DryRunAll)
		assert.ErrorContains(t, err, `admission webhook "validator.virtualmachine.kubevirt.io" denied the request: no such strategy`)
	}, time.Minute, 50*time.Millisecond)

	require.NoError(t, create(map[string]any{"runStrategy": "Always", "template": template}))

	admin, err := dynamic.NewForConfig(plane.Admin())
	require.NoError(t, err)

	made, err := admin.Resource(resource).Namespace("machines").Get(ctx, "m", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"by": "system:serviceaccount:machines:provider"}, made.GetAnnotations())

	_, err = machines.Get(ctx, "m", metav1.GetOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)

	status := func(verb string) int {
		http1, err := rest.HTTPClientFor(config)
		require.NoError(t, err)

		req, err := http.NewRequestWithContext(ctx, http.MethodPut,
			config.Host+"/apis/subresources.kubevirt.io/v1/namespaces/machines/virtualmachines/m/"+verb, strings.NewReader("{}"))
		require.NoError(t, err)

		resp, err := http1.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())

		return resp.StatusCode
	}

	require.Equal(t, http.StatusAccepted, status("start"))
	require.Equal(t, "system:serviceaccount:machines:provider: update virtualmachines/start of machines/m", <-caller)
	require.Equal(t, http.StatusForbidden, status("stop"))
}

func TestControlPlaneLeavesNothing(t *testing.T) {
	plane, err := controlplane.Start(t.Context())
	require.NoError(t, err)

	pids, dir := children(t)
	require.Len(t, pids, 2, "etcd and kube-apiserver")
	require.DirExists(t, dir)

	during, done := plane.During(t.Context())
	defer done()

	require.NoError(t, plane.Close())
	require.NoError(t, plane.Close(), "closing twice is closing")

	require.NoDirExists(t, dir)
	require.ErrorContains(t, context.Cause(during), "closed")

	pids, _ = children(t)
	require.Empty(t, pids)
}

// TestEndOfAProgramIsToldAtOnce kills a program, as the kernel does when there is no memory.
func TestEndOfAProgramIsToldAtOnce(t *testing.T) {
	for _, program := range []string{"etcd", "kube-apiserver"} {
		t.Run(program, func(t *testing.T) {
			plane, err := controlplane.Start(t.Context())
			require.NoError(t, err)

			defer func() { require.NoError(t, plane.Close()) }()

			during, done := plane.During(t.Context())
			defer done()

			pids, dir := children(t)
			require.NoError(t, syscall.Kill(pids[program], syscall.SIGKILL))

			select {
			case <-during.Done():
			case <-time.After(time.Minute):
				t.Fatal("nobody tells of it")
			}

			require.ErrorContains(t, context.Cause(during), program+" has ended: signal: killed: ")

			require.NoError(t, plane.Close())
			require.NoDirExists(t, dir)

			pids, _ = children(t)
			require.Empty(t, pids)
		})
	}
}

// children are the processes that this one has started, by name, and the folder that they work in. Those of a run beside it are another's.
func children(t *testing.T) (pids map[string]int, dir string) {
	t.Helper()

	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)

	pids = map[string]int{}

	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}

		// pid (name) state parent; it may have ended meanwhile.
		stat, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		if fields := strings.Fields(string(stat)); err != nil || fields[3] != strconv.Itoa(os.Getpid()) {
			continue
		}

		program, err := os.Readlink(filepath.Join("/proc", entry.Name(), "exe"))
		if err != nil {
			continue
		}

		if dir, err = os.Readlink(filepath.Join("/proc", entry.Name(), "cwd")); err == nil {
			pids[filepath.Base(program)] = pid
		}
	}

	return pids, dir
}

func TestControlPlaneWithoutProgramsSaysWhereToFindThem(t *testing.T) {
	t.Setenv(controlplane.ProgramsEnv, "")

	_, err := controlplane.Start(t.Context())
	require.ErrorContains(t, err, "make conformance-real-kubevirt")
}
