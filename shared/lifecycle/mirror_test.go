package lifecycle

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// incarnation returns a copy of record "a" as it was created at a second and then updated so often.
func incarnation(t *testing.T, created, version int) *record {
	t.Helper()

	r := newRecord("test", "a")
	r.md.SetCreated(time.Unix(int64(created), 0))

	for r.md.SetVersion(resource.VersionUndefined.Next()); r.md.Version().Value() < uint64(version); {
		r.md.SetVersion(r.md.Version().Next())
	}

	return r
}

func TestLateNewsOfADestroyedResourceIsIgnored(t *testing.T) {
	told := 0
	m := newMirror[*record]("ns", "kind", nil, func(_, _ *record) { told++ })
	event := func(kind state.EventType, r *record) {
		t.Helper()
		require.NoError(t, m.apply(state.Event{Type: kind, Resource: r}, nil))
	}

	m.put(incarnation(t, 1, 3))
	m.drop("a")

	event(state.Updated, incarnation(t, 1, 4))

	_, ok := m.get("a")
	assert.False(t, ok, "it was destroyed, whatever its version")

	// The next one is made before the watch has told of the end of the first.
	m.put(incarnation(t, 2, 1))
	event(state.Updated, incarnation(t, 1, 5))
	event(state.Destroyed, incarnation(t, 1, 6))

	now, ok := m.get("a")
	require.True(t, ok)
	assert.Equal(t, int64(2), now.md.Created().Unix())

	event(state.Updated, incarnation(t, 2, 2))
	event(state.Created, incarnation(t, 2, 1))

	now, _ = m.get("a")
	assert.Equal(t, uint64(2), now.md.Version().Value())

	event(state.Destroyed, incarnation(t, 2, 3))

	_, ok = m.get("a")
	assert.False(t, ok)
	assert.Empty(t, m.gone)
	assert.Positive(t, told)
}

func TestFullLookUndoesNoWriteOfOurOwn(t *testing.T) {
	m := newMirror[*record]("ns", "kind", nil, func(_, _ *record) {})

	m.put(incarnation(t, 1, 4))
	m.replace(map[resource.ID]*record{"a": incarnation(t, 1, 3)})

	now, _ := m.get("a")
	assert.Equal(t, uint64(4), now.md.Version().Value())

	m.drop("a")
	m.replace(map[resource.ID]*record{"a": incarnation(t, 1, 4)})

	_, ok := m.get("a")
	assert.False(t, ok)

	m.replace(map[resource.ID]*record{})
	assert.Empty(t, m.gone)
}

func TestFullLookDoesNotLoseWhatWasMadeMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gaps{down: map[resource.Type]bool{}, cuts: map[resource.Type]chan struct{}{}, opened: map[resource.Type][]time.Time{}, lag: time.Second}
		m := newMirror[*record]("ns", "kind", nil, func(_, _ *record) {})

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		m.put(incarnation(t, 1, 1))

		go m.run(ctx, g, func(error) {})

		time.Sleep(500 * time.Millisecond)

		late := incarnation(t, 2, 1)
		late.md = resource.NewMetadata("ns", "kind", "b", resource.VersionUndefined.Next())
		m.put(late)
		require.NoError(t, m.awaitFilled(ctx))

		_, ok := m.get("a")
		assert.False(t, ok, "it was known before, and the look does not show it")

		_, ok = m.get("b")
		assert.True(t, ok, "it was made while the look was taken")
	})
}
