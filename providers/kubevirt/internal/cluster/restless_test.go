package cluster_test

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
)

// mostOpenings is where a transport that ends watches stops doing so: without a pause between them a test would never end.
const mostOpenings = 20_000

// restless ends watches as soon as they are open, as API servers do right after a definition was installed.
type restless struct {
	next   http.RoundTripper
	ends   atomic.Bool
	opened atomic.Int64
}

func (r *restless) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.next.RoundTrip(req)
	if err != nil || req.URL.Query().Get("watch") == "" || !r.ends.Load() || r.opened.Add(1) > mostOpenings {
		return resp, err
	}

	err = resp.Body.Close()
	resp.Body = io.NopCloser(strings.NewReader(""))

	return resp, err
}

func TestWatchThatEndsAtOnceIsOpenedOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)

		r := &restless{}
		r.ends.Store(true)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			r.next = next

			return r
		})

		k := connect(t, cluster.Config{Rest: config})
		m, errs := follow(t, k, cluster.LongWatch)

		time.Sleep(time.Hour)
		synctest.Wait()

		assert.LessOrEqual(t, r.opened.Load(), int64(time.Hour/time.Second)+1)
		assert.Greater(t, r.opened.Load(), int64(100), "it is tried again all the time")
		assert.Equal(t, 1, s.Ledger().CallsOf("list secrets"), "what is known is known still")
		assert.Empty(t, errs())

		_, live := names(m)
		assert.False(t, live, "what a watch does not tell may be old")

		_, err := k.Secrets().Create(t.Context(), secret("meanwhile"), "test")
		require.NoError(t, err)
		r.ends.Store(false)
		time.Sleep(2 * time.Second)

		got, live := names(m)
		assert.True(t, live)
		assert.Equal(t, []string{"meanwhile"}, got)
	})
}
