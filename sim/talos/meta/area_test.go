package meta_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/talos/meta"
)

func openFile(t testing.TB) *os.File {
	t.Helper()

	file, err := os.OpenFile(filepath.Join(t.TempDir(), "disk"), os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })

	return file
}

func TestValuesOutliveReopening(t *testing.T) {
	file := openFile(t)
	require.NoError(t, meta.Format(file, map[uint8]string{12: "from the image"}))

	area, err := meta.Open(file)
	require.NoError(t, err)

	for _, value := range []string{"one", "two", "three"} {
		require.NoError(t, area.Set(meta.UniqueMachineToken, value))

		again, err := meta.Open(file)
		require.NoError(t, err)

		got, ok := again.Get(meta.UniqueMachineToken)
		require.True(t, ok)
		require.Equal(t, value, got)

		got, ok = again.Get(12)
		require.True(t, ok)
		require.Equal(t, "from the image", got)
	}
}

func TestTornWriteLeavesTheValueBeforeIt(t *testing.T) {
	file := openFile(t)
	require.NoError(t, meta.Format(file, nil))

	area, err := meta.Open(file)
	require.NoError(t, err)
	require.NoError(t, area.Set(meta.UUIDOverride, "before"))

	before, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.NoError(t, area.Set(meta.UUIDOverride, "after"))

	after, err := os.ReadFile(file.Name())
	require.NoError(t, err)

	changed := 0

	for i := range after {
		if before[i] == after[i] {
			continue
		}

		changed++

		torn := append(append([]byte{}, after[:i]...), before[i:]...)
		_, err = file.WriteAt(torn, 0)
		require.NoError(t, err)

		reopened, err := meta.Open(file)
		require.NoError(t, err)

		value, _ := reopened.Get(meta.UUIDOverride)
		require.Equal(t, "before", value, "torn at byte %d", i)
	}

	require.NotZero(t, changed)
}

func TestWipeLeavesNoCopyOnDisk(t *testing.T) {
	file := openFile(t)
	require.NoError(t, meta.Format(file, nil))

	area, err := meta.Open(file)
	require.NoError(t, err)
	require.NoError(t, area.Set(meta.UniqueMachineToken, "a-secret"))
	require.NoError(t, area.Set(meta.UniqueMachineToken, "a-secret"))
	require.NoError(t, area.Wipe())

	data, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.NotContains(t, string(data), "a-secret")

	reopened, err := meta.Open(file)
	require.NoError(t, err)

	_, ok := reopened.Get(meta.UniqueMachineToken)
	require.False(t, ok)
}

func TestAForeignDiskHoldsNoArea(t *testing.T) {
	file := openFile(t)

	_, err := meta.Open(file)
	require.ErrorIs(t, err, meta.ErrNoArea, "shorter than an area")

	require.NoError(t, file.Truncate(meta.Size))

	_, err = meta.Open(file)
	require.ErrorIs(t, err, meta.ErrNoArea, "zeros")
}

func TestValuesTooLargeAreRefused(t *testing.T) {
	file := openFile(t)
	require.NoError(t, meta.Format(file, nil))

	area, err := meta.Open(file)
	require.NoError(t, err)
	require.NoError(t, area.Set(10, "kept"))
	require.ErrorContains(t, area.Set(11, string(make([]byte, meta.Size))), "do not fit")

	reopened, err := meta.Open(file)
	require.NoError(t, err)

	value, ok := reopened.Get(10)
	require.True(t, ok)
	require.Equal(t, "kept", value)
}

func FuzzOpenNeverPanics(f *testing.F) {
	f.Add([]byte("SIMMETA1\x01\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00"))

	f.Fuzz(func(t *testing.T, head []byte) {
		file := openFile(t)
		require.NoError(t, file.Truncate(meta.Size))

		_, err := file.WriteAt(head, 0)
		require.NoError(t, err)

		if area, err := meta.Open(file); err == nil {
			require.NoError(t, area.Set(1, "x"))
		}
	})
}
