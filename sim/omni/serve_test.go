package omni_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/siderolabs/omni/client/pkg/client"
	sideropb "github.com/siderolabs/siderolink/api/siderolink"

	sim "github.com/omni-infra/omni-infra-providers/sim/omni"
)

// listen returns a listener on a free port of loopback.
func listen(t *testing.T) net.Listener {
	t.Helper()

	var config net.ListenConfig

	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	return l
}

// TestSocketsOutliveARestart serves the API in plain text and the machine API with TLS on loopback.
func TestSocketsOutliveARestart(t *testing.T) {
	o := start(t, sim.Options{})
	api := listen(t)
	machine, certificate, err := sim.TLS(listen(t), "127.0.0.1", "omni.test")
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- o.Serve(ctx, api, machine) }()

	c, err := client.New("http://"+api.Addr().String(), client.WithServiceAccount(o.AdminKey()))
	require.NoError(t, err)

	defer c.Close() //nolint:errcheck // only a test's

	require.NoError(t, getVersion(within(t, time.Minute), c))
	require.NoError(t, o.Restart(within(t, time.Minute), 0))
	require.Eventually(t, func() bool { return getVersion(within(t, time.Minute), c) == nil }, time.Minute, 10*time.Millisecond)

	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(certificate))

	conn, err := grpc.NewClient(machine.Addr().String(),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})))
	require.NoError(t, err)

	defer conn.Close() //nolint:errcheck // only a test's

	_, err = sideropb.NewProvisionServiceClient(conn).Provision(within(t, time.Minute), &sideropb.ProvisionRequest{})
	require.ErrorContains(t, err, "node_uuid must not be empty")

	cancel()
	require.NoError(t, <-ended)
	assert.Error(t, getVersion(within(t, time.Minute), c), "the sockets are closed")
}

// TestConnectionsWaitForRun serves an Omni that does not run yet, and one that never does.
func TestConnectionsWaitForRun(t *testing.T) {
	for name, runs := range map[string]bool{"runs later": true, "never runs": false} {
		t.Run(name, func(t *testing.T) {
			o, err := sim.New(sim.Options{})
			require.NoError(t, err)

			api := listen(t)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 2)

			go func() { ended <- o.Serve(ctx, api, listen(t)) }()

			c, err := client.New("http://"+api.Addr().String(), client.WithServiceAccount(o.AdminKey()))
			require.NoError(t, err)

			defer c.Close() //nolint:errcheck // only a test's

			answer := make(chan error, 1)

			go func() { answer <- getVersion(ctx, c) }()

			// The connection is there before Run is.
			time.Sleep(50 * time.Millisecond)

			if runs {
				go func() { ended <- o.Run(ctx) }()

				require.NoError(t, <-answer)
			}

			cancel()
			require.NoError(t, <-ended)

			if runs {
				require.NoError(t, <-ended)
			} else {
				require.Error(t, <-answer)
			}
		})
	}
}

func TestAnOmniRunsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})

		synctest.Wait()
		assert.EqualError(t, o.Run(t.Context()), "run the simulated Omni: it ran already")
	})
}
