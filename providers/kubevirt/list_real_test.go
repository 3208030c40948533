//go:build real

package kubevirt_test

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// unsteady is an API server that breaks a connection, is overloaded, and then answers.
type unsteady struct{ calls int }

func (u *unsteady) RoundTrip(r *http.Request) (*http.Response, error) {
	u.calls++

	code, text := http.StatusOK, `{"apiVersion":"v1","kind":"SecretList","items":[{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"}}]}`

	switch u.calls {
	case 1:
		return nil, syscall.ECONNRESET
	case 2:
		code, text = http.StatusServiceUnavailable, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"ServiceUnavailable","code":503}`
	}

	return &http.Response{
		StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(text)), Request: r,
	}, nil
}

func TestFailureOfOneCallIsNoWordOnWhatThereIs(t *testing.T) {
	server := &unsteady{}

	admin, err := dynamic.NewForConfig(&rest.Config{Host: "https://kubernetes.test", Transport: server, QPS: -1})
	require.NoError(t, err)

	c := &cloud{t: t, life: t.Context(), admin: admin, namespace: "n"}

	require.Len(t, c.list(kinds[len(kinds)-1]), 1)
	require.Equal(t, 3, server.calls)
}
