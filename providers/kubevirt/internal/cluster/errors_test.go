package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

var (
	vms     = schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachines"}
	secrets = schema.GroupResource{Resource: "secrets"}

	getVM    = Op{Verb: "get", Resource: "virtualmachines.kubevirt.io", Namespace: "omni", Name: "vm"}
	listVMs  = Op{Verb: "list", Resource: "virtualmachines.kubevirt.io", Namespace: "omni"}
	deleteVM = Op{Verb: "delete", Resource: "virtualmachines.kubevirt.io", Namespace: "omni", Name: "vm"}
	createVM = Op{Verb: "create", Resource: "virtualmachines.kubevirt.io", Namespace: "omni", Name: "vm"}
)

func status(code int32, reason metav1.StatusReason, message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: code, Reason: reason, Message: message}}
}

func TestAnswersAreToldApart(t *testing.T) {
	for _, test := range []struct {
		name string
		op   Op
		err  error
		kind driver.Kind
		want []string
	}{
		{"object is not there", getVM, apierrors.NewNotFound(vms, "vm"), driver.KindNotFound, []string{`get virtualmachines.kubevirt.io "vm" in namespace "omni"`}},
		{
			"kind is not served", getVM, apierrors.NewGenericServerResponse(404, "get", vms, "vm", "404 page not found", 0, true), driver.KindTransient,
			[]string{"are KubeVirt and its Containerized Data Importer installed"},
		},
		{"list of a kind that is not served", listVMs, status(404, metav1.StatusReasonNotFound, "the server could not find the requested resource"), driver.KindTransient, []string{"KubeVirt"}},
		{"list with a not-found of anything", listVMs, apierrors.NewNotFound(vms, ""), driver.KindTransient, nil},
		{
			"namespace is not there", createVM, apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "omni"), driver.KindTransient,
			[]string{"create the namespace", Manifest},
		},
		{
			"quota", createVM, apierrors.NewForbidden(vms, "vm", errors.New("exceeded quota: q, requested: requests.memory=4Gi, used: requests.memory=8Gi, limited: requests.memory=8Gi")),
			driver.KindCapacity, []string{"exceeded quota: q", "limited: requests.memory=8Gi"},
		},
		{"quota that wants limits", createVM, apierrors.NewForbidden(vms, "vm", errors.New("failed quota: q: must specify limits.memory")), driver.KindTransient, []string{"the machine class does not set"}},
		{"limit range", createVM, apierrors.NewForbidden(vms, "vm", errors.New("maximum memory usage per Container is 1Gi, but limit is 4Gi")), driver.KindTerminal, []string{"LimitRange"}},
		{
			"missing right", createVM,
			apierrors.NewForbidden(vms, "", errors.New(`User "system:serviceaccount:omni:p" cannot create resource "virtualmachines" in API group "kubevirt.io" in the namespace "omni"`)),
			driver.KindTransient, []string{`lacks the right to create virtualmachines.kubevirt.io in namespace "omni"`, "apply " + Manifest},
		},
		{"namespace goes", createVM, apierrors.NewForbidden(vms, "vm", errors.New("unable to create new content in namespace omni because it is being terminated")), driver.KindTransient, []string{"being deleted"}},
		{"credentials", listVMs, apierrors.NewUnauthorized("Unauthorized"), driver.KindTransient, []string{"check the kubeconfig or the token"}},
		{"webhook", createVM, status(422, metav1.StatusReasonInvalid, `admission webhook "virtualmachine-validator.kubevirt.io" denied the request: spec.x is bad`), driver.KindTerminal, []string{"spec.x is bad", "change the machine class"}},
		{"webhook with another code", createVM, status(403, metav1.StatusReasonForbidden, `admission webhook "policy.example.org" denied the request: no bridge`), driver.KindTerminal, []string{"no bridge"}},
		{
			"webhook of a deletion", deleteVM, status(403, metav1.StatusReasonForbidden, `admission webhook "protect.example.org" denied the request: it is protected`), driver.KindTransient,
			[]string{"it is protected", "refuses the deletion", "delete it by hand"},
		},
		{
			"policy of a deletion", deleteVM, status(422, metav1.StatusReasonInvalid, `virtualmachines.kubevirt.io "vm" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no`),
			driver.KindTransient, []string{"refuses the deletion"},
		},
		{"policy", createVM, status(422, metav1.StatusReasonInvalid, `virtualmachines.kubevirt.io "vm" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no`), driver.KindTerminal, nil},
		{"webhook that does not answer", createVM, apierrors.NewInternalError(errors.New(`failed calling webhook "x": context deadline exceeded`)), driver.KindTransient, []string{"does not answer"}},
		{
			"schema", createVM, apierrors.NewInvalid(schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachine"}, "vm", field.ErrorList{field.Required(field.NewPath("spec", "template"), "")}),
			driver.KindTerminal, []string{"spec.template"},
		},
		{"bad request of a change", createVM, apierrors.NewBadRequest("strict decoding error: unknown field \"spec.x\""), driver.KindTerminal, []string{"unknown field"}},
		{"bad request of a read", listVMs, apierrors.NewBadRequest("bad selector"), driver.KindTransient, nil},
		{"too large", createVM, apierrors.NewRequestEntityTooLargeError("limit is 3145728"), driver.KindTerminal, nil},
		{"conflict", createVM, apierrors.NewConflict(vms, "vm", errors.New("modified")), driver.KindTransient, nil},
		{"there already", createVM, apierrors.NewAlreadyExists(vms, "vm"), driver.KindTransient, nil},
		{"too old", listVMs, apierrors.NewResourceExpired("too old"), driver.KindTransient, nil},
		{"fault of the server", getVM, apierrors.NewInternalError(errors.New("etcd leader changed")), driver.KindTransient, []string{"etcd leader changed"}},
		{"no answer", getVM, &url.Error{Op: "Get", URL: "https://user:canary@k8s.example:6443/apis/x?token=canary", Err: errors.New("connection refused")}, driver.KindTransient, []string{"connection refused", "at k8s.example:6443"}},
		{"pause", getVM, &url.Error{Op: "Get", URL: "https://k8s/", Err: &pauseError{code: 429, after: 7 * time.Second, text: "slow down"}}, driver.KindThrottled, []string{"slow down"}},
		{"pause of a server in trouble", getVM, &url.Error{Op: "Get", URL: "https://k8s/", Err: &pauseError{code: 503, after: 7 * time.Second, text: "apiserver is shutting down"}}, driver.KindTransient, []string{"shutting down"}},
		{"quiet time", getVM, &url.Error{Op: "Get", URL: "https://k8s/canary", Err: driver.Pending(time.Second, "the cloud asks to be left alone")}, driver.KindPending, []string{"left alone"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := classify(t.Context(), test.op, fmt.Errorf("wrapped: %w", test.err))

			assert.Equal(t, test.kind, driver.KindOf(got), "%v", got)
			assert.True(t, strings.HasPrefix(got.Error(), test.op.String()+": "), "%v", got)
			assert.NotContains(t, got.Error(), "canary")

			for _, want := range test.want {
				assert.Contains(t, got.Error(), want)
			}
		})
	}
}

func TestPausesAreKeptWhateverTheKind(t *testing.T) {
	for _, code := range []int{429, 500, 503} {
		got := classify(t.Context(), getVM, &pauseError{code: code, after: 7 * time.Second})
		assert.Equal(t, 7*time.Second, driver.PauseOf(got), code)
	}
}

func TestLateAnswerSaysHowLate(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 0, errors.New("the Kubernetes API has not answered within 20s"))
	defer cancel()

	<-ctx.Done()
	require.EqualError(t, classify(ctx, listVMs, ctx.Err()), `list virtualmachines.kubevirt.io in namespace "omni": the Kubernetes API has not answered within 20s`)
}

func TestServersThatRepeatASecretAreNotRepeated(t *testing.T) {
	token := "canary-v2:" + strings.Repeat("x", 40)
	encoded := base64.StdEncoding.EncodeToString([]byte("machine: " + token))
	op := Op{Verb: "create", Resource: "secrets", Namespace: "omni", Name: "vm-user-data"}

	got := classify(t.Context(), op, apierrors.NewInternalError(fmt.Errorf(`failed calling webhook "x": cannot process {"data":{"userdata":"%s"}}`, encoded)))

	assert.NotContains(t, got.Error(), encoded)
	assert.NotContains(t, got.Error(), encoded[8:40])
	assert.Contains(t, got.Error(), "failed calling webhook")
	assert.Contains(t, got.Error(), "(hidden)")
}

func TestTextsOfTheClusterAreBounded(t *testing.T) {
	got := classify(t.Context(), createVM, status(422, metav1.StatusReasonInvalid, strings.Repeat("long\n", 10_000)))
	assert.Less(t, len(got.Error()), 2000)
	assert.NotContains(t, got.Error(), "\n")
}

func TestWhatCallersTellApart(t *testing.T) {
	assert.True(t, Exists(classify(t.Context(), createVM, apierrors.NewAlreadyExists(vms, "vm"))))
	assert.True(t, Conflicts(classify(t.Context(), createVM, apierrors.NewConflict(vms, "vm", errors.New("uid")))))
	assert.True(t, Forbidden(classify(t.Context(), getVM, apierrors.NewForbidden(vms, "vm", errors.New("no")))))
	assert.True(t, Unserved(classify(t.Context(), getVM, apierrors.NewGenericServerResponse(404, "get", vms, "vm", "", 0, true))))
	assert.False(t, Unserved(classify(t.Context(), getVM, apierrors.NewNotFound(vms, "vm"))))
	assert.False(t, Exists(nil))
	assert.False(t, Unserved(nil))
}

func FuzzTextsAreFitToBeShown(f *testing.F) {
	f.Add("secrets", "data: aGVsbG8gd29ybGQgaGVsbG8gd29ybGQgaGVsbG8=")
	f.Add("virtualmachines.kubevirt.io", "\xff\xfe\nspec")

	f.Fuzz(func(t *testing.T, resource, text string) {
		got := discreet(Op{Resource: resource}, text)
		require.NotContains(t, got, "\n")
		require.LessOrEqual(t, len([]rune(got)), mostText+1)

		if resource == secrets.Resource {
			require.NotRegexp(t, `[A-Za-z0-9+/_-]{24,}`, got)
		}
	})
}
