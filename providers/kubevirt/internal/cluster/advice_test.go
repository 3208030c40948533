package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestRevkWatchThatTheServerNeverEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &Cluster{timeout: DefaultCallTimeout, transport: &transport{}}
		opened := 0
		m := NewMirror(k, Source[*corev1.Secret]{
			Op: Op{Verb: "list", Resource: "secrets"}, Renew: ShortWatch,
			List: func(context.Context, metav1.ListOptions) ([]*corev1.Secret, string, error) { return nil, "1", nil },
			Watch: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
				opened++
				return watch.NewFake(), nil
			},
		})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = m.Run(ctx, func(*corev1.Secret, bool) {}) }()
		time.Sleep(24 * time.Hour)
		_, live := m.All()
		assert.True(t, !live || opened > 1, "after a day of a silent watch of %s: live=%v, opened %d time(s)", ShortWatch, live, opened)
		cancel()
		<-done
	})
}
