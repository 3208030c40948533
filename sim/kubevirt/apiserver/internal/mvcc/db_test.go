package mvcc

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func keys(pairs []pair) (got []string) {
	for _, p := range pairs {
		got = append(got, p.key+"="+string(p.data))
	}

	return got
}

func put(t *testing.T, d *DB, key, data string) int64 {
	t.Helper()

	now := d.get(key)
	written, ok := d.put(key, []byte(data), now.revision)
	require.True(t, ok)

	return written.revision
}

func remove(t *testing.T, d *DB, key string) int64 {
	t.Helper()

	now := d.get(key)
	last, ok := d.remove(key, now.revision)
	require.True(t, ok)

	return last.revision
}

func TestWriteToAnOtherStateThanReadIsRefused(t *testing.T) {
	d := New(10, nil)
	was := put(t, d, "/a/1", "x")

	_, ok := d.put("/a/1", []byte("y"), 0)
	require.False(t, ok, "it is there")
	_, ok = d.put("/a/2", []byte("y"), was)
	require.False(t, ok, "it is not there")
	_, ok = d.remove("/a/1", was-1)
	require.False(t, ok)

	put(t, d, "/a/1", "y")
	_, ok = d.remove("/a/1", was)
	require.False(t, ok)
}

func TestOldStatesAreListedUntilTheyAreCompacted(t *testing.T) {
	d := New(100, nil)
	put(t, d, "/a/2", "x")
	first := put(t, d, "/a/1", "x")
	put(t, d, "/a/1", "y")
	put(t, d, "/b/1", "z")
	second := remove(t, d, "/a/2")

	pairs, revision, ok := d.list("/a/", true, 0)
	require.True(t, ok)
	require.Equal(t, second, revision)
	require.Equal(t, []string{"/a/1=y"}, keys(pairs))

	pairs, _, ok = d.list("/a/", true, first)
	require.True(t, ok)
	require.Equal(t, []string{"/a/1=x", "/a/2=x"}, keys(pairs))

	_, _, ok = d.list("/a/", true, second+1)
	require.False(t, ok, "the future is not there")

	d.Compact()

	_, _, ok = d.list("/a/", true, first)
	require.False(t, ok)
	_, _, ok = d.since(first)
	require.False(t, ok)

	pairs, _, ok = d.list("/a/", true, second)
	require.True(t, ok, "the present is there")
	require.Equal(t, []string{"/a/1=y"}, keys(pairs))
}

func TestHistoryIsBounded(t *testing.T) {
	d := New(10, nil)
	for i := range 100 {
		put(t, d, fmt.Sprintf("/a/%d", i%3), "x")
	}

	require.LessOrEqual(t, len(d.changes), 10)
	require.Equal(t, d.changes[0].revision-1, d.Compacted())

	_, _, ok := d.since(d.Compacted())
	require.True(t, ok)
}

func TestAnyOldStateIsWhatItWas(t *testing.T) {
	const steps = 300

	random := rand.New(rand.NewPCG(1, 0)) // Repeatable is what it has to be.
	d := New(steps, nil)
	states := map[int64][]string{}

	for range steps {
		key := fmt.Sprintf("/a/%d", random.IntN(10))

		if d.get(key).data != nil && random.IntN(3) == 0 {
			remove(t, d, key)
		} else {
			put(t, d, key, fmt.Sprint(random.IntN(1000)))
		}

		pairs, revision, _ := d.list("/a/", true, 0)
		states[revision] = keys(pairs)
	}

	for revision, want := range states {
		pairs, _, ok := d.list("/a/", true, revision)
		require.True(t, ok)
		require.Equal(t, want, keys(pairs))
	}
}

func TestChangesAreToldWithWhatWasBefore(t *testing.T) {
	var told []string

	d := New(10, func(before, after []byte) { told = append(told, string(before)+">"+string(after)) })
	put(t, d, "/a/1", "x")
	put(t, d, "/a/1", "y")
	remove(t, d, "/a/1")
	require.Equal(t, []string{">x", "x>y", "y>"}, told)
}
