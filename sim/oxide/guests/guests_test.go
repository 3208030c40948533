package guests

import (
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMachineReportsTheImageThatItBootedFrom(t *testing.T) {
	id := strings.Repeat("0a", 32)

	for name, tt := range map[string]struct{ text, image, schematic, version string }{
		"of a provider":    {`omni-1 omni-infra.dev/1 {"image":"` + id + `-v1.13.5-amd64"}`, "v1.13.5", id, "v1.13.5"},
		"version alone":    {"talos", "1.13.5", "", "v1.13.5"},
		"somebody's image": {"ubuntu", "noble", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			schematic, version := imageOf(tt.text, tt.image)
			require.Equal(t, tt.schematic, schematic)
			require.Equal(t, tt.version, version)
		})
	}
}

func TestVolumeHasTheFilesOfTheSeed(t *testing.T) {
	data, err := fs.ReadFile(volume(map[string][]byte{"user-data": []byte("x")}), "user-data")
	require.NoError(t, err)
	require.Equal(t, "x", string(data))
}
