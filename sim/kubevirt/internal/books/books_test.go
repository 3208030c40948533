package books_test

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/books"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

const (
	machines = "/apis/kubevirt.io/v1/namespaces/n/virtualmachines"
	machine  = machines + "/m"
)

func call(t *testing.T, method, path string) books.Call {
	t.Helper()

	c, err := books.CallOf(httptest.NewRequestWithContext(t.Context(), method, path, nil))
	require.NoError(t, err)

	return c
}

func TestCallsAreNamedAsAccessRulesNameThem(t *testing.T) {
	for _, tt := range []struct {
		method, path string
		op, object   string
		watches      bool
	}{
		{http.MethodPost, machines, "create virtualmachines", "n", false},
		{http.MethodGet, machines, "list virtualmachines", "n", false},
		{http.MethodGet, machines + "?watch=true", "watch virtualmachines", "n", true},
		{http.MethodDelete, machines, "deletecollection virtualmachines", "n", false},
		{http.MethodGet, machine, "get virtualmachines", "n/m", false},
		{http.MethodPut, machine, "update virtualmachines", "n/m", false},
		{http.MethodPatch, machine, "patch virtualmachines", "n/m", false},
		{http.MethodDelete, machine, "delete virtualmachines", "n/m", false},
		{http.MethodPatch, machine + "/status", "patch virtualmachines/status", "n/m", false},
		{http.MethodPut, "/apis/subresources.kubevirt.io/v1/namespaces/n/virtualmachines/m/restart", "update virtualmachines/restart", "n/m", false},
		{http.MethodGet, "/apis/kubevirt.io/v1/virtualmachines", "list virtualmachines", "", false},
		{http.MethodGet, "/api/v1/nodes/a", "get nodes", "a", false},
		{http.MethodGet, "/api/v1/namespaces", "list namespaces", "", false},
		{http.MethodGet, "/api/v1/namespaces/n", "get namespaces", "n", false},
		{http.MethodPut, "/api/v1/namespaces/n/finalize", "update namespaces/finalize", "n", false},
		{http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", "create selfsubjectaccessreviews", "", false},
		{http.MethodGet, "/version", "get /version", "", false},
		{http.MethodGet, "/apis/kubevirt.io/v1", "get /apis/kubevirt.io/v1", "", false},
	} {
		c := call(t, tt.method, tt.path)
		require.Equal(t, []any{tt.op, tt.object, tt.watches}, []any{c.Op, c.Object, c.Watches()}, "%s %s", tt.method, tt.path)
	}
}

func TestFaultsAreAnsweredInTheWordsOfAnAPIServer(t *testing.T) {
	const (
		text   = "text/plain; charset=utf-8"
		json   = "application/json"
		create = `{"metadata":{"name":"new"},"spec":{"userData":"hush"}}`
	)

	for _, tt := range []struct {
		kind         ledger.FaultKind
		method, path string
		sent         string
		code         int
		contentType  string
		body         string
	}{
		{ledger.NotFound, http.MethodGet, machine, "", 404, text, "404 page not found\n"},
		{ledger.Throttled, http.MethodGet, machine, "", 429, text, "Too many requests, please try again later.\n"},
		{ledger.Conflict, http.MethodPut, machine, create, 409, json, `"Operation cannot be fulfilled on virtualmachines.kubevirt.io \"m\": ` +
			`the object has been modified; please apply your changes to the latest version and try again"`},
		{ledger.Full, http.MethodPost, machines, create, 403, json, `"virtualmachines.kubevirt.io \"new\" is forbidden: exceeded quota: machines, ` +
			`requested: limits.memory=2Gi, used: limits.memory=16Gi, limited: limits.memory=16Gi"`},
		{ledger.Unauthorized, http.MethodGet, machine, "", 401, json, `"reason":"Unauthorized"`},
		{ledger.Unavailable, http.MethodGet, machine, "", 503, json, `"etcdserver: leader changed"`},
		{ledger.Echo, http.MethodPost, machines, create, 500, json, `failed calling webhook \"mutator.sim.example\": cannot process ` +
			`{\"metadata\":{\"name\":\"new\"},\"spec\":{\"userData\":\"hush\"}}`},
	} {
		require.Contains(t, books.Faults(), tt.kind)

		a := call(t, tt.method, tt.path).AnswerTo(&ledger.FaultError{Kind: tt.kind, RetryAfter: 1500 * time.Millisecond}, []byte(tt.sent))
		require.Equal(t, tt.code, a.Code, tt.kind)
		require.Equal(t, tt.contentType, a.Header.Get("Content-Type"), tt.kind)
		require.Contains(t, string(a.Body), tt.body, tt.kind)

		if tt.kind == ledger.Throttled {
			require.Equal(t, "2", a.Header.Get("Retry-After"))
		}
	}
}

func TestOnlySecretsMayCarrySecrets(t *testing.T) {
	l := ledger.New()
	require.NoError(t, l.Secret("join token", "hush-hush-hush"))

	call(t, http.MethodPost, "/api/v1/namespaces/n/secrets").Scan(l, []byte("hush-hush-hush"))
	require.Empty(t, l.Leaks())

	call(t, http.MethodPost, machines).Scan(l, []byte("hush-hush-hush"))
	require.Equal(t, []string{`secret "join token" is in create virtualmachines n`}, l.Leaks())
}
