package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// silent is a server that counts what it is asked for and never ends a watch.
type silent struct{ lists, watches int }

func (s *silent) mirror(k *Cluster) *Mirror[*corev1.Secret] {
	return NewMirror(k, Source[*corev1.Secret]{
		Op: Op{Verb: "list", Resource: "secrets"}, Renew: ShortWatch,
		List: func(context.Context, metav1.ListOptions) ([]*corev1.Secret, string, error) {
			s.lists++

			return nil, "1", nil
		},
		Watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			s.watches++

			return watch.NewFake(), nil
		},
	})
}

// begin runs a mirror until end is called.
func begin(ctx context.Context, m *Mirror[*corev1.Secret]) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})

	go func() {
		defer close(done)

		_ = m.Run(ctx, func(*corev1.Secret, bool) {}) //nolint:errcheck // it is the context's
	}()

	return func() { cancel(); <-done }
}

func TestWatchThatTheServerNeverEndsIsOpenedAgainWithinAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &silent{}
		m := server.mirror(&Cluster{timeout: DefaultCallTimeout, transport: &transport{}})
		end := begin(t.Context(), m)

		time.Sleep(24 * time.Hour)

		_, live := m.All()
		assert.True(t, live)
		assert.GreaterOrEqual(t, server.watches, 24*60)
		assert.Equal(t, 1, server.lists, "each goes on where the last one ended")

		end()
	})
}

func TestMirrorIsLiveForAMomentBetweenTwoWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &silent{}
		m := server.mirror(&Cluster{timeout: DefaultCallTimeout, transport: &transport{}})
		live := func() bool { _, live := m.All(); return live }

		end := begin(t.Context(), m)
		synctest.Wait()
		require.True(t, live())

		end()
		time.Sleep(resumeTime - time.Second)
		require.True(t, live(), "it may be resumed")
		time.Sleep(time.Second)
		require.False(t, live(), "it is not")

		end = begin(t.Context(), m)
		synctest.Wait()
		require.True(t, live())
		require.Equal(t, 1, server.lists)

		end()
		m.Close()
		require.False(t, live(), "what it shows is not to be relied on")
	})
}
