package cluster_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

const token = "canary-token-of-the-provider"

// serve starts a server that knows the provider, and returns the configuration of its client.
func serve(t *testing.T) (*apiserver.Server, *rest.Config) {
	t.Helper()

	s, err := apiserver.New(apiserver.Options{})
	require.NoError(t, err)
	t.Cleanup(s.Close)

	s.SetUser(apiserver.User{Name: "system:serviceaccount:omni:provider", Token: token})

	return s, s.Client(s.Ledger().Session(), token)
}

func connect(t *testing.T, c cluster.Config) *cluster.Cluster {
	t.Helper()

	k, err := cluster.New(c)
	require.NoError(t, err)
	t.Cleanup(k.Close)

	return k
}

func secret(name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"ours": "yes"}}}
}

// follow runs a mirror of the secrets until the test ends.
func follow(t *testing.T, k *cluster.Cluster, renew time.Duration) (*cluster.Mirror[*corev1.Secret], func() []error) {
	t.Helper()

	m := k.Secrets().Mirror("default", "ours=yes", renew, nil)
	ctx, cancel := context.WithCancel(t.Context())

	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs []error
	)

	wg.Go(func() {
		// As the library does: again, after a pause.
		for ctx.Err() == nil {
			err := m.Run(ctx, func(*corev1.Secret, bool) {})

			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()

			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	synctest.Wait()

	return m, func() []error {
		mu.Lock()
		defer mu.Unlock()

		return errs
	}
}

func names(m *cluster.Mirror[*corev1.Secret]) (found []string, live bool) {
	all, live := m.All()
	for _, s := range all {
		found = append(found, s.Name)
	}

	return found, live
}

func TestMirrorShowsWhatThereIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, config := serve(t)
		k := connect(t, cluster.Config{Rest: config})

		_, err := k.Secrets().Create(t.Context(), secret("before"), "test")
		require.NoError(t, err)

		m, _ := follow(t, k, cluster.LongWatch)
		got, live := names(m)
		assert.Equal(t, []string{"before"}, got)
		assert.True(t, live)

		made, err := k.Secrets().Create(t.Context(), secret("after"), "test")
		require.NoError(t, err)
		synctest.Wait()

		got, _ = names(m)
		assert.ElementsMatch(t, []string{"before", "after"}, got)

		require.NoError(t, k.Secrets().Delete(t.Context(), made))
		synctest.Wait()

		_, ok := m.Get("after")
		assert.False(t, ok)
	})
}

func TestWatchThatEndsIsResumedWithoutAList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)
		k := connect(t, cluster.Config{Rest: config})
		m, errs := follow(t, k, cluster.ShortWatch)

		time.Sleep(time.Hour)
		synctest.Wait()

		_, live := names(m)
		assert.True(t, live)
		assert.Empty(t, errs())
		assert.Equal(t, 1, s.Ledger().CallsOf("list secrets"))
		assert.Greater(t, s.Ledger().CallsOf("watch secrets"), 100, "a watch that shows that the cluster can be reached is opened often")

		s.CutWatches()

		_, err := k.Secrets().Create(t.Context(), secret("meanwhile"), "test")
		require.NoError(t, err)
		time.Sleep(5 * time.Second)

		got, _ := names(m)
		assert.Equal(t, []string{"meanwhile"}, got)
		assert.Equal(t, 1, s.Ledger().CallsOf("list secrets"))
	})
}

func TestForgottenHistoryIsReadAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)
		k := connect(t, cluster.Config{Rest: config})

		gone, err := k.Secrets().Create(t.Context(), secret("gone"), "test")
		require.NoError(t, err)

		m, errs := follow(t, k, cluster.LongWatch)

		// What happens while the server cannot be reached is not seen, and its history is gone afterwards.
		s.Stop()
		time.Sleep(10500 * time.Millisecond)

		_, live := names(m)
		assert.False(t, live)
		assert.NotEmpty(t, errs())

		s.Start()

		admin := connect(t, cluster.Config{Rest: s.Admin()})
		require.NoError(t, admin.Secrets().Delete(t.Context(), gone))

		for _, name := range []string{"a", "b"} {
			_, err := admin.Secrets().Create(t.Context(), secret(name), "test")
			require.NoError(t, err)
		}

		s.Compact()
		time.Sleep(10 * time.Second)

		got, live := names(m)
		assert.True(t, live)
		assert.ElementsMatch(t, []string{"a", "b"}, got)
		assert.Equal(t, 2, s.Ledger().CallsOf("list secrets"))
	})
}

func TestMirrorWhoseWatchIsNotLetInIsNotLive(t *testing.T) {
	for _, fault := range []ledger.FaultKind{ledger.Unavailable, ledger.Unauthorized, ledger.Hang, ledger.Cut} {
		t.Run(string(fault), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, config := serve(t)
				k := connect(t, cluster.Config{Rest: config})
				m, _ := follow(t, k, cluster.ShortWatch)

				undo := s.Ledger().Inject(ledger.Fault{Kind: fault, For: time.Hour, Times: -1})
				time.Sleep(26 * time.Second)
				synctest.Wait()

				_, live := names(m)
				assert.False(t, live)

				undo()
				time.Sleep(time.Minute)

				_, live = names(m)
				assert.True(t, live)
			})
		})
	}
}

func TestPauseThatTheServerAsksForIsTheLibrarys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)
		k := connect(t, cluster.Config{Rest: config})

		s.Ledger().Inject(ledger.Fault{Kind: ledger.Throttled, For: 7 * time.Second, Times: 1})

		started := time.Now()
		_, err := k.Secrets().Get(t.Context(), "default", "s")
		require.Equal(t, driver.KindThrottled, driver.KindOf(err), "%v", err)
		assert.Equal(t, 7*time.Second, driver.PauseOf(err))
		assert.Zero(t, time.Since(started), "client-go sleeps through it otherwise")
		assert.Equal(t, 1, s.Ledger().Calls())

		not := errors.New("not yet")
		_, err = k.Secrets().Get(driver.WithTurn(t.Context(), func(context.Context) error { return driver.Pending(time.Second, "%w", not) }), "default", "s")
		require.ErrorIs(t, err, not)
		assert.Equal(t, driver.KindPending, driver.KindOf(err))
		assert.Equal(t, 1, s.Ledger().Calls())
	})
}

func TestReadOverABrokenConnectionIsMadeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)
		k := connect(t, cluster.Config{Rest: config})

		s.Ledger().Inject(ledger.Fault{Kind: ledger.Cut, For: time.Hour, Times: -1})

		_, err := k.Secrets().Get(t.Context(), "default", "s")
		require.ErrorContains(t, err, "connection reset by peer")
		assert.Equal(t, driver.KindTransient, driver.KindOf(err))
		assert.Equal(t, 1, s.Ledger().Calls(), "client-go tries ten times otherwise")
		assert.False(t, k.Trusted())
	})
}

func TestCallsAreLimitedInAllTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, config := serve(t)
		k := connect(t, cluster.Config{Rest: config, QPS: 10, Burst: 5})
		started := time.Now()

		for range 25 {
			_, err := k.Secrets().List(t.Context(), "default", metav1.ListOptions{})
			require.NoError(t, err)
		}

		assert.InDelta(t, 2, time.Since(started).Seconds(), 0.2)
	})
}

func TestCallThatHangsEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)
		k := connect(t, cluster.Config{Rest: config})
		s.Ledger().Inject(ledger.Fault{Kind: ledger.Hang, For: time.Hour, Times: -1})

		started := time.Now()
		_, err := k.Secrets().Get(t.Context(), "default", "s")
		require.ErrorContains(t, err, "has not answered within 20s")
		assert.Equal(t, cluster.DefaultCallTimeout, time.Since(started))
	})
}

func TestRotatedTokenIsTakenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)
		config.BearerToken = ""

		file := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(file, []byte(token), 0o600))

		k := connect(t, cluster.Config{Rest: config, TokenFile: file})
		m, errs := follow(t, k, cluster.ShortWatch)

		_, live := names(m)
		require.True(t, live, "%v", errs())

		require.True(t, s.RotateToken("system:serviceaccount:omni:provider", "canary-next"))
		require.NoError(t, os.WriteFile(file, []byte("canary-next"), 0o600))

		time.Sleep(2 * time.Minute)
		synctest.Wait()

		_, err := k.Secrets().List(t.Context(), "default", metav1.ListOptions{})
		require.NoError(t, err)

		_, live = names(m)
		assert.True(t, live, "%v", errs())
	})
}

func TestTokenFileThatIsMissingIsNamed(t *testing.T) {
	_, err := cluster.New(cluster.Config{Rest: &rest.Config{Host: "https://k8s.example"}, TokenFile: "/nothing/token"})
	require.ErrorContains(t, err, "/nothing/token")
}

// recorder keeps the last request.
type recorder struct{ last *http.Request }

func (r *recorder) RoundTrip(req *http.Request) (*http.Response, error) {
	r.last = req

	return nil, errors.New("seen")
}

func TestCallsSayWhoMakesThem(t *testing.T) {
	r := &recorder{}
	k := connect(t, cluster.Config{
		Transport: r, UserAgent: "omni-infra-provider-kubevirt/v1", ImpersonateUser: "system:serviceaccount:omni:machines", ImpersonateGroups: []string{"a", "b"},
	})

	_, err := k.Secrets().Get(t.Context(), "default", "s")
	require.ErrorContains(t, err, "seen")
	assert.Equal(t, "omni-infra-provider-kubevirt/v1", r.last.Header.Get("User-Agent"))
	assert.Equal(t, "system:serviceaccount:omni:machines", r.last.Header.Get("Impersonate-User"))
	assert.Equal(t, []string{"a", "b"}, r.last.Header["Impersonate-Group"])

	_, err = cluster.New(cluster.Config{Transport: r, ImpersonateGroups: []string{"a"}})
	require.ErrorContains(t, err, "without a user")
}

func TestChangesAreMadeToTheObjectThatWasSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, config := serve(t)
		k := connect(t, cluster.Config{Rest: config})

		first, err := k.Secrets().Create(t.Context(), secret("s"), "test")
		require.NoError(t, err)
		require.NoError(t, k.Secrets().Delete(t.Context(), first))
		require.NoError(t, k.Secrets().Delete(t.Context(), first), "what has gone is no error")

		second, err := k.Secrets().Create(t.Context(), secret("s"), "test")
		require.NoError(t, err)

		fields := map[string]any{"apiVersion": "v1", "kind": "Secret", "data": map[string][]byte{"a": []byte("b")}}

		_, err = k.Secrets().Apply(t.Context(), first, fields, "test")
		require.True(t, cluster.Conflicts(err), "%v", err)
		require.True(t, cluster.Conflicts(k.Secrets().Delete(t.Context(), first)))

		got, err := k.Secrets().Apply(t.Context(), second, fields, "test")
		require.NoError(t, err)
		assert.Equal(t, "b", string(got.Data["a"]))
		assert.Equal(t, "yes", got.Labels["ours"], "what is not given is left alone")
	})
}

func TestManyObjectsAreListedInPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, config := serve(t)
		k := connect(t, cluster.Config{Rest: config})

		for _, name := range []string{"a", "b", "c", "d", "e"} {
			_, err := k.Secrets().Create(t.Context(), secret(name), "test")
			require.NoError(t, err)
		}

		all, err := k.Secrets().ListPaged(t.Context(), "default", 2)
		require.NoError(t, err)
		require.Len(t, all, 5)
		assert.Equal(t, "e", all[4].Name)
		assert.Equal(t, 3, s.Ledger().CallsOf("list secrets"))
	})
}
