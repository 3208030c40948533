package cluster_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// busy asks for a pause of 20 seconds once.
type busy struct{ calls []time.Time }

func (b *busy) RoundTrip(req *http.Request) (*http.Response, error) {
	b.calls = append(b.calls, time.Now())

	resp := &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Request: req,
		Body: io.NopCloser(strings.NewReader(`{"kind": "SecretList", "apiVersion": "v1"}`)),
	}

	if len(b.calls) == 1 {
		resp.StatusCode = http.StatusTooManyRequests
		resp.Header.Set("Retry-After", "20")
	}

	return resp, nil
}

func TestPauseThatTheServerAsksForHoldsAllCallsWhoeverWasToldOfIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &busy{}
		k := connect(t, cluster.Config{Rest: &rest.Config{Host: "https://k8s.test", Transport: server}})
		list := func(ctx context.Context) error {
			_, err := k.Secrets().List(ctx, "default", metav1.ListOptions{})

			return err
		}

		require.Equal(t, driver.KindThrottled, driver.KindOf(list(t.Context())))

		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		err := list(short)
		assert.Equal(t, driver.KindThrottled, driver.KindOf(err), "a call without the time to wait fails: %v", err)
		assert.Equal(t, 20*time.Second, driver.PauseOf(err))
		assert.Len(t, server.calls, 1, "and is not made")

		ctx, end := context.WithTimeout(t.Context(), time.Minute)
		defer end()

		require.NoError(t, list(ctx))
		require.Len(t, server.calls, 2)
		assert.Equal(t, 20*time.Second, server.calls[1].Sub(server.calls[0]))
	})
}
