package main

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// serveOmni serves a simulated Omni on loopback until the test and its subtests end.
func serveOmni(t *testing.T) (o *omni.Omni, endpoint string) {
	t.Helper()

	api, machines := listen(t), listen(t)
	endpoint = "http://" + api.Addr().String()

	o, err := omni.New(omni.Options{APIURL: endpoint, MachineAPIURL: "grpc://" + machines.Addr().String()})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)

	go func() { ended <- o.Run(ctx) }()
	go func() { ended <- o.Serve(ctx, api, machines) }()

	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
		assert.NoError(t, <-ended)
	})

	return o, endpoint
}

func listen(t *testing.T) net.Listener {
	t.Helper()

	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	return l
}
