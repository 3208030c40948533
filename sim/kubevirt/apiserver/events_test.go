package apiserver_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestEventsGoAnHourAfterTheyWereWrittenLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kube(t, start(t).Admin()).CoreV1().Events("default")
		about := core.ObjectReference{Namespace: "default"}

		for _, name := range []string{"a", "b"} {
			_, err := c.Create(t.Context(), &core.Event{ObjectMeta: metav1.ObjectMeta{Name: name}, InvolvedObject: about}, metav1.CreateOptions{})
			require.NoError(t, err)
		}

		w, err := c.Watch(t.Context(), metav1.ListOptions{TimeoutSeconds: new(int64(24 * 60 * 60))})
		require.NoError(t, err)

		defer w.Stop()

		require.Equal(t, watch.Added, (<-w.ResultChan()).Type)
		require.Equal(t, watch.Added, (<-w.ResultChan()).Type)

		time.Sleep(50 * time.Minute)

		b, err := c.Get(t.Context(), "b", metav1.GetOptions{})
		require.NoError(t, err)

		b.Count = 2
		_, err = c.Update(t.Context(), b, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.Equal(t, watch.Modified, (<-w.ResultChan()).Type)

		time.Sleep(11 * time.Minute)

		gone := <-w.ResultChan()
		require.Equal(t, watch.Deleted, gone.Type)
		require.Equal(t, "a", gone.Object.(*core.Event).Name)

		_, err = c.Get(t.Context(), "b", metav1.GetOptions{})
		require.NoError(t, err)

		time.Sleep(50 * time.Minute)

		_, err = c.Get(t.Context(), "b", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	})
}
