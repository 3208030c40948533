// Package talos_test holds seeds to the decoders of Talos and the join configuration of Omni. It is apart from package nocloud so
// that the fuzz tests there build without those two.
package talos_test

import (
	"strings"
	"testing"

	"github.com/siderolabs/omni/client/pkg/siderolink"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/resources/network"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/nocloud"
)

func TestOmnisJoinConfigReachesTalos(t *testing.T) {
	options, err := siderolink.NewJoinOptions(
		siderolink.WithMachineAPIURL("grpc://omni.example.org:8090"), siderolink.WithJoinToken("token"),
		siderolink.WithEventSinkPort(8091), siderolink.WithLogServerPort(8092),
	)
	require.NoError(t, err)

	joinConfig, err := options.RenderJoinConfig()
	require.NoError(t, err)

	seed, err := nocloud.New(nocloud.Config{Hostname: "a", UserData: string(joinConfig)})
	require.NoError(t, err)

	userData, ok := seed.Document(nocloud.UserData)
	require.True(t, ok)

	config, err := configloader.NewFromBytes(userData)
	require.NoError(t, err)
	assert.Equal(t, "grpc://omni.example.org:8090?jointoken=token", config.SideroLink().APIUrl().String())
}

func TestTalosTakesEveryHostnameOfASeed(t *testing.T) {
	for _, hostname := range []string{"a", "12", "null", "Talos-7xk2p", strings.Repeat("a", 63), "a.example.org"} {
		_, err := nocloud.New(nocloud.Config{Hostname: hostname, UserData: "kind: x"})
		require.NoError(t, err, hostname)
		require.NoError(t, new(network.HostnameSpecSpec).ParseFQDN(hostname), hostname)
	}
}
