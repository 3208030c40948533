package mvcc

import (
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// secrets returns a storage of secrets, and a count of how often a stored one was read.
func secrets(t *testing.T) (*Storage, *counted) {
	t.Helper()

	scheme := runtime.NewScheme()
	require.NoError(t, core.AddToScheme(scheme))

	codec := &counted{Codec: serializer.NewCodecFactory(scheme).LegacyCodec(core.SchemeGroupVersion)}

	return New(1000, nil).Storage("/secrets", codec, func() runtime.Object { return &core.Secret{} }), codec
}

type counted struct {
	runtime.Codec
	reads int
}

func (c *counted) Decode(data []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	c.reads++

	return c.Codec.Decode(data, kind, into)
}

func create(t *testing.T, s *Storage, name string) *core.Secret {
	t.Helper()

	made := &core.Secret{}
	object := &core.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string][]byte{"key": []byte("value")}}
	require.NoError(t, s.Create(t.Context(), "/secrets/"+name, object, made, 0))

	return made
}

func next(t *testing.T, w watch.Interface) (watch.EventType, *core.Secret, runtime.CacheableObject) {
	t.Helper()

	select {
	case e := <-w.ResultChan():
		object, ok := e.Object.(runtime.CacheableObject)
		require.True(t, ok, "%T has texts to share", e.Object)

		return e.Type, object.GetObject().(*core.Secret), object
	case <-time.After(10 * time.Second):
		require.FailNow(t, "no event came")

		return "", nil, nil
	}
}

func TestValueIsReadOnceHoweverManyLookAtIt(t *testing.T) {
	s, codec := secrets(t)
	all := storage.ListOptions{ResourceVersion: "100", Recursive: true, Predicate: storage.Everything}

	var watches []watch.Interface

	for range 3 {
		w, err := s.Watch(t.Context(), "/secrets/", all)
		require.NoError(t, err)
		t.Cleanup(w.Stop)

		watches = append(watches, w)
	}

	made := create(t, s, "a")

	var events []runtime.CacheableObject

	for _, w := range watches {
		kind, got, event := next(t, w)
		require.Equal(t, watch.Added, kind)
		require.Equal(t, made, got)

		events = append(events, event)
	}

	require.NoError(t, s.Get(t.Context(), "/secrets/a", storage.GetOptions{}, &core.Secret{}))
	require.Equal(t, 1, codec.reads)

	writes := 0
	write := func(_ runtime.Object, w io.Writer) error {
		writes++
		_, err := io.WriteString(w, "text")

		return err
	}

	for _, e := range events {
		require.NoError(t, e.CacheEncode("json", write, io.Discard))
	}

	require.Equal(t, 1, writes)

	fail := errors.New("cannot be written")
	require.ErrorIs(t, events[0].CacheEncode("other", func(runtime.Object, io.Writer) error { return fail }, io.Discard), fail)
}

func TestWhoChangesWhatTheyReadChangesNothingElse(t *testing.T) {
	s, _ := secrets(t)
	want := create(t, s, "a").DeepCopy()

	got := &core.Secret{}
	require.NoError(t, s.Get(t.Context(), "/secrets/a", storage.GetOptions{}, got))
	got.Data["key"][0] = 'X'

	list := &core.SecretList{}
	require.NoError(t, s.GetList(t.Context(), "/secrets/", storage.ListOptions{Recursive: true, Predicate: storage.Everything}, list))
	require.Equal(t, []core.Secret{*want}, list.Items)
	list.Items[0].Data["key"][0] = 'X'

	require.NoError(t, s.Get(t.Context(), "/secrets/a", storage.GetOptions{}, got))
	require.Equal(t, want, got)
}

func TestObjectThatGoesIsToldOfWithTheRevisionOfItsEnd(t *testing.T) {
	s, _ := secrets(t)
	made := create(t, s, "a")

	w, err := s.Watch(t.Context(), "/secrets/", storage.ListOptions{ResourceVersion: made.ResourceVersion, Recursive: true, Predicate: storage.Everything})
	require.NoError(t, err)
	t.Cleanup(w.Stop)

	removed := &core.Secret{}
	require.NoError(t, s.Delete(t.Context(), "/secrets/a", removed, &storage.Preconditions{}, storage.ValidateAllObjectFunc, nil, storage.DeleteOptions{}))

	kind, got, _ := next(t, w)
	require.Equal(t, watch.Deleted, kind)
	require.Equal(t, removed, got)
	require.Equal(t, fmt.Sprint(s.db.Revision()), got.ResourceVersion)
	require.NotEqual(t, made.ResourceVersion, got.ResourceVersion)
}

func TestFewOldObjectsAreKept(t *testing.T) {
	s, _ := secrets(t)

	for i := range 3 * remembered {
		create(t, s, fmt.Sprint(i))
	}

	kept := 0

	for _, c := range s.db.changes {
		if c.memo.read != nil {
			kept++
		}
	}

	require.LessOrEqual(t, kept, remembered)
	require.NotZero(t, kept)
}
