package main

import (
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
	"github.com/omni-infra/omni-infra-providers/sim/memory/guests"
)

// serveCloud serves a cloud that outlives the provider, and returns what the provider calls it.
func serveCloud(t *testing.T) (c *cloud.Cloud, address string) {
	t.Helper()

	g := guests.Guests{Log: zap.NewNop()}
	c = cloud.New(cloud.Options{Boot: g.Boot})
	t.Cleanup(c.Close)

	socket := filepath.Join(t.TempDir(), "cloud")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)

	server := &http.Server{Handler: cloud.Handler(c)} //nolint:gosec // it serves the test
	ended := make(chan error, 1)

	go func() { ended <- server.Serve(listener) }()

	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-ended, http.ErrServerClosed)
	})

	return c, "unix:" + socket
}

func TestSweepRemovesOnDemandWhatIsLeftOver(t *testing.T) {
	s := newSite(t)
	c, address := serveCloud(t)
	_, stop := s.start("--cloud", address)

	s.request("kept")
	s.request("lost")
	s.await("both machines run", func() bool {
		infos := s.machines()

		return len(infos) == 2 && infos[0].Power == "on" && infos[1].Power == "on"
	})

	stop()

	assert.Equal(t, "0 things left over; the cloud has 2 machines of this provider, Omni 2 requests\n", s.run("sweep", "--cloud", address, "--grace", "1s"))

	// Omni loses a request while no provider is there.
	ctx := t.Context()
	res, err := s.omni.State().Get(ctx, infra.NewMachineRequest("lost").Metadata())
	require.NoError(t, err)
	_, err = s.omni.State().Teardown(ctx, res.Metadata())
	require.NoError(t, err)
	s.update(res, func(r resource.Resource) { *r.Metadata().Finalizers() = nil }, state.WithExpectedPhaseAny())
	s.await("the request is gone", func() bool {
		err := s.omni.State().Destroy(ctx, res.Metadata())

		return err == nil || state.IsNotFoundError(err)
	})

	out := s.run("sweep", "--cloud", address, "--grace", "1s")
	assert.Regexp(t, `(?m)^orphan +lost +vm-\d+ +\ds +no +`, out)
	assert.Contains(t, out, "1 thing left over; the cloud has 2 machines of this provider, Omni 1 request\nnothing was removed: this was a dry run")
	assert.Len(t, c.Machines(), 2)

	out = s.run("sweep", "--cloud", address, "--grace", "1s", "--remove")
	assert.Regexp(t, `(?m)^orphan +lost +vm-\d+ +\ds +yes +`, out)
	require.Len(t, c.Machines(), 1)
	assert.Equal(t, "kept", c.Machines()[0].Name)
}
