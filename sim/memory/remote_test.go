package memory_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/memory"
)

// served returns a cloud and the path of the socket that it is served on.
func served(t *testing.T, opts memory.Options) (cloud *memory.Cloud, socket string) {
	t.Helper()

	cloud = memory.New(opts)
	t.Cleanup(cloud.Close)

	socket = filepath.Join(t.TempDir(), "cloud")

	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)

	server := &httptest.Server{Listener: l, Config: &http.Server{Handler: memory.Handler(cloud)}}
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})

	return cloud, socket
}

func TestRemoteCloudAnswersAsALocalOne(t *testing.T) {
	booted := make(chan memory.VM, 4)
	_, socket := served(t, memory.Options{MaxVMs: 1, Boot: func(ctx context.Context, vm memory.VM) {
		booted <- vm

		<-ctx.Done()
	}})
	c, ctx := memory.Dial(socket), t.Context()
	tags := map[string]string{"owner": "me"}

	require.NoError(t, c.Ping(ctx))

	image, err := c.ImportImage(ctx, "talos", "https://images.example/talos", tags)
	require.NoError(t, err)

	volume, err := c.CreateVolume(ctx, memory.VolumeSpec{Name: "disk", ImageID: image.ID, SizeGiB: 1, Tags: tags})
	require.NoError(t, err)

	spec := memory.VMSpec{Name: "a", Cores: 1, MemoryMiB: 1, VolumeIDs: []string{volume.ID}, UserData: userData, Tags: tags}
	vm, err := c.CreateVM(ctx, spec)
	require.NoError(t, err)
	require.NoError(t, c.StartVM(ctx, vm.ID))

	guest := <-booted
	require.Equal(t, userData, guest.UserData)
	require.Equal(t, "https://images.example/talos", guest.ImageURL)

	require.NoError(t, c.RebootVM(ctx, vm.ID))
	<-booted

	found, err := c.ListVMs(ctx, tags)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, 2, found[0].Boots)
	require.Empty(t, found[0].UserData)

	others, err := c.ListVMs(ctx, map[string]string{"owner": "you"})
	require.NoError(t, err)
	require.Empty(t, others)

	// What says no, says it with its status and reason.
	_, err = c.CreateVM(ctx, spec)
	requireStatus(t, http.StatusConflict, err)
	require.ErrorContains(t, err, `volume "volume-1" is attached to machine "vm-1"`)
	_, err = c.GetVM(ctx, "vm-9")
	requireStatus(t, http.StatusNotFound, err)

	require.NoError(t, c.StopVM(ctx, vm.ID))
	require.NoError(t, c.DeleteVM(ctx, vm.ID))
	require.NoError(t, c.DeleteVolume(ctx, volume.ID))
	require.NoError(t, c.DeleteImage(ctx, image.ID))

	volumes, err := c.ListVolumes(ctx, nil)
	require.NoError(t, err)
	require.Empty(t, volumes)
}

func TestOwnerOfARemoteCloudSeesAndSwitchesAllMachines(t *testing.T) {
	cloud, socket := served(t, memory.Options{})
	owner, ctx := memory.DialOwner(socket), t.Context()
	vm := makeRemoteVM(t, memory.Dial(socket))

	require.NoError(t, owner.Power(ctx, vm.ID, true))

	machines, err := owner.Machines(ctx)
	require.NoError(t, err)
	require.Equal(t, cloud.Machines(), machines)
	require.True(t, machines[0].On)

	requireStatus(t, http.StatusConflict, owner.Power(ctx, vm.ID, true))
	require.NoError(t, owner.Power(ctx, vm.ID, false))
	require.NoError(t, owner.DeleteMachine(ctx, vm.ID))
	requireStatus(t, http.StatusNotFound, owner.DeleteMachine(ctx, vm.ID))

	machines, err = owner.Machines(ctx)
	require.NoError(t, err)
	require.Empty(t, machines)
}

func makeRemoteVM(t *testing.T, c *memory.Client) memory.VM {
	t.Helper()

	volume, err := c.CreateVolume(t.Context(), memory.VolumeSpec{Name: "disk", SizeGiB: 1})
	require.NoError(t, err)

	vm, err := c.CreateVM(t.Context(), memory.VMSpec{Name: "a", Cores: 1, MemoryMiB: 1, VolumeIDs: []string{volume.ID}})
	require.NoError(t, err)

	return vm
}

func TestRemoteWatchMissesNothingAndBreaksWithTheCloud(t *testing.T) {
	cloud, socket := served(t, memory.Options{})
	c := memory.Dial(socket)
	vm := makeRemoteVM(t, c)

	events, ended := make(chan memory.Event), make(chan error, 1)

	go func() { ended <- c.WatchVMs(t.Context(), func(e memory.Event) { events <- e }) }()

	// The first change may come before the watch is there.
	require.Eventually(t, func() bool {
		require.NoError(t, c.StartVM(t.Context(), vm.ID))
		require.NoError(t, c.StopVM(t.Context(), vm.ID))

		select {
		case e := <-events:
			return e.VM.ID == vm.ID && !e.Deleted
		case <-time.After(50 * time.Millisecond):
			return false
		}
	}, 10*time.Second, time.Millisecond)

	require.NoError(t, cloud.DeleteMachine(vm.ID))

	for e := range events {
		if e.Deleted {
			break
		}
	}

	cloud.BreakWatches()
	require.ErrorIs(t, <-ended, memory.ErrWatchBroken)
}

func TestCallWithoutAnAnswerIsALostConnection(t *testing.T) {
	cloud, socket := served(t, memory.Options{})
	c := memory.Dial(socket)

	cloud.Inject(memory.Fault{Op: memory.OpCreateVolume, Lost: true})

	_, err := c.CreateVolume(t.Context(), memory.VolumeSpec{Name: "disk", SizeGiB: 1})
	require.ErrorIs(t, err, memory.ErrConnection)

	volumes, err := c.ListVolumes(t.Context(), nil)
	require.NoError(t, err)
	require.Len(t, volumes, 1)

	require.ErrorIs(t, memory.Dial(socket+"-none").Ping(t.Context()), memory.ErrConnection)

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, c.Ping(gone), context.Canceled)
}
