package guests

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMachineReportsTheImageThatItBootedFrom(t *testing.T) {
	for _, tt := range []struct{ name, url, schematic, version string }{
		{"factory", "https://factory.example/image/376567/v1.13.5/nocloud-amd64.raw.xz", "376567", "v1.13.5"},
		{"factory below a path", "https://example.org/talos/image/376567/v1.13.5/nocloud-amd64.raw.xz", "376567", "v1.13.5"},
		{"other server", "https://example.org/talos.raw.xz", "", ""},
		{"short", "https://factory.example/image/376567", "", ""},
		{"none", "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			schematic, version := imageOf(tt.url)
			require.Equal(t, tt.schematic, schematic)
			require.Equal(t, tt.version, version)
		})
	}
}
