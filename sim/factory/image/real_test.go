//go:build real

package image_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/siderolabs/image-factory/pkg/schematic"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/factory"
	"github.com/omni-infra/omni-infra-providers/sim/factory/image"
)

func TestConcurrentRequestsShareOneBuildThatOutlivesTheFirst(t *testing.T) {
	cache, err := os.UserCacheDir()
	require.NoError(t, err)

	builder := &image.Builder{Dir: filepath.Join(cache, "image-factory-sim")}
	require.NoError(t, builder.Prepare(t.Context()))

	// Never built before: the name of the test's directory is in the schematic.
	wanted := factory.Image{ID: "concurrent", Version: "v1.13.5", Platform: "nocloud", Arch: "amd64", Format: "raw"}
	wanted.Schematic.Customization = schematic.Customization{ExtraKernelArgs: []string{"test=" + t.TempDir()}}

	first, leave := context.WithCancel(t.Context())

	var (
		all   sync.WaitGroup
		paths [8]string
		infos [8]os.FileInfo
		errs  [8]error
	)

	for i := range paths {
		ctx := t.Context()
		if i == 0 {
			ctx = first
		}

		all.Go(func() {
			if paths[i], errs[i] = builder.Path(ctx, wanted); errs[i] == nil {
				infos[i], errs[i] = os.Stat(paths[i])
			}
		})
	}

	leave()
	all.Wait()

	t.Cleanup(func() { os.Remove(paths[1]) }) //nolint:errcheck // A file of the cache.

	for i := 1; i < len(paths); i++ {
		require.NoError(t, errs[i])
		require.Equal(t, paths[1], paths[i])
		require.True(t, os.SameFile(infos[1], infos[i]), "one build, one file")
	}

	left, err := filepath.Glob(filepath.Join(builder.Dir, ".building-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}
