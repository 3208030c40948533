package guests

import (
	"io/fs"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

func TestMachineReportsTheImageThatItBootedFrom(t *testing.T) {
	for url, want := range map[string][2]string{
		"https://factory.example/image/376567/v1.13.5/nocloud-amd64.raw.xz": {"376567", "v1.13.5"},
		"https://example.org/talos.raw.xz":                                  {},
		"registry.example/talos:v1":                                         {},
		"":                                                                  {},
	} {
		schematic, version := imageOf(url)
		require.Equal(t, want, [2]string{schematic, version}, url)
	}
}

func TestSeedHasTheDocumentsOfTheVolume(t *testing.T) {
	require.Nil(t, Seed(virt.Guest{}))

	files, err := Seed(virt.Guest{Namespace: "n", Name: "a", Hostname: "a", UserData: []byte("user"), NetworkData: []byte("network")})()
	require.NoError(t, err)

	for name, want := range map[string]string{
		"user-data": "user", "network-config": "network", "meta-data": "instance-id: a.n\nlocal-hostname: a\n",
	} {
		got, err := fs.ReadFile(files, name)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
}
