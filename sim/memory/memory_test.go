package memory_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/memory"
)

const userData = "user-data-canary"

// inBubble runs test on a fake clock with a cloud that is closed at its end.
func inBubble(t *testing.T, opts memory.Options, test func(t *testing.T, cloud *memory.Cloud, client *memory.Client)) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		cloud := memory.New(opts)
		defer cloud.Close()

		test(t, cloud, cloud.Client())
	})
}

func makeVM(t *testing.T, c *memory.Client, name string) memory.VM {
	t.Helper()

	volume, err := c.CreateVolume(t.Context(), memory.VolumeSpec{Name: name, SizeGiB: 1})
	require.NoError(t, err)

	synctest.Wait()

	vm, err := c.CreateVM(t.Context(), memory.VMSpec{
		Name: name, Cores: 1, MemoryMiB: 512, VolumeIDs: []string{volume.ID}, UserData: userData,
		Tags: map[string]string{"owner": "test"},
	})
	require.NoError(t, err)

	return vm
}

func requireStatus(t *testing.T, want int, err error) {
	t.Helper()

	require.Equal(t, want, memory.StatusOf(err), "error: %v", err)
}

func requireState(t *testing.T, c *memory.Client, id string, want memory.State) {
	t.Helper()

	vm, err := c.GetVM(t.Context(), id)
	require.NoError(t, err)
	require.Equal(t, want, vm.State)
}

func TestMachineTakesTheTimeThatItIsGiven(t *testing.T) {
	opts := memory.Options{Durations: map[memory.Op]time.Duration{
		memory.OpCreateVM: 30 * time.Second, memory.OpStartVM: 10 * time.Second, memory.OpDeleteVM: time.Minute,
	}}

	inBubble(t, opts, func(t *testing.T, cloud *memory.Cloud, c *memory.Client) {
		vm := makeVM(t, c, "a")
		require.Equal(t, memory.Creating, vm.State)
		requireStatus(t, http.StatusConflict, c.StartVM(t.Context(), vm.ID))

		time.Sleep(30*time.Second + 1)
		requireState(t, c, vm.ID, memory.Stopped)
		require.NoError(t, c.StartVM(t.Context(), vm.ID))
		requireState(t, c, vm.ID, memory.Starting)

		time.Sleep(10*time.Second + 1)
		requireState(t, c, vm.ID, memory.Running)
		requireStatus(t, http.StatusConflict, c.DeleteVM(t.Context(), vm.ID))
		require.NoError(t, c.StopVM(t.Context(), vm.ID))
		requireState(t, c, vm.ID, memory.Stopped)
		require.NoError(t, c.DeleteVM(t.Context(), vm.ID))
		requireStatus(t, http.StatusConflict, c.DeleteVolume(t.Context(), vm.VolumeIDs[0]))

		time.Sleep(time.Minute + 1)

		_, err := c.GetVM(t.Context(), vm.ID)
		requireStatus(t, http.StatusNotFound, err)
		require.NoError(t, c.DeleteVolume(t.Context(), vm.VolumeIDs[0]))
		require.Empty(t, cloud.Ledger().Leaks())
	})
}

func TestNothingReturnsUserData(t *testing.T) {
	inBubble(t, memory.Options{}, func(t *testing.T, cloud *memory.Cloud, c *memory.Client) {
		require.NoError(t, cloud.Ledger().Secret("user data", userData))

		vm := makeVM(t, c, "a")
		require.Empty(t, vm.UserData)

		vms, err := c.ListVMs(t.Context(), map[string]string{"owner": "test"})
		require.NoError(t, err)
		require.Len(t, vms, 1)
		require.Empty(t, vms[0].UserData)

		none, err := c.ListVMs(t.Context(), map[string]string{"owner": "other"})
		require.NoError(t, err)
		require.Empty(t, none)

		require.Equal(t, []string{`volume volume-1 "a" is left`, `vm vm-1 "a" is left`}, cloud.Ledger().Leaks())
	})
}

func TestGuestLivesWhileTheMachineIsOn(t *testing.T) {
	var running, boots atomic.Int32

	opts := memory.Options{Boot: func(ctx context.Context, vm memory.VM) {
		if vm.UserData == userData {
			boots.Add(1)
		}

		running.Add(1)
		defer running.Add(-1)

		<-ctx.Done()
	}}

	inBubble(t, opts, func(t *testing.T, cloud *memory.Cloud, c *memory.Client) {
		vm := makeVM(t, c, "a")
		expect := func(wantRunning, wantBoots int32) {
			t.Helper()
			synctest.Wait()
			require.Equal(t, wantRunning, running.Load())
			require.Equal(t, wantBoots, boots.Load())
		}

		require.NoError(t, c.StartVM(t.Context(), vm.ID))
		expect(1, 1)
		require.NoError(t, c.RebootVM(t.Context(), vm.ID))
		expect(1, 2)
		require.NoError(t, c.StopVM(t.Context(), vm.ID))
		expect(0, 2)
		require.NoError(t, c.StartVM(t.Context(), vm.ID))
		expect(1, 3)
		require.NoError(t, cloud.SwitchOff(vm.ID))
		expect(0, 3)
		require.NoError(t, c.StartVM(t.Context(), vm.ID))
		expect(1, 4)
		require.NoError(t, cloud.DeleteMachine(vm.ID))
		expect(0, 4)
	})
}

func TestGuestThatEndsSwitchesTheMachineOff(t *testing.T) {
	opts := memory.Options{Boot: func(ctx context.Context, _ memory.VM) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Hour):
		}
	}}

	inBubble(t, opts, func(t *testing.T, _ *memory.Cloud, c *memory.Client) {
		vm := makeVM(t, c, "a")
		require.NoError(t, c.StartVM(t.Context(), vm.ID))
		requireState(t, c, vm.ID, memory.Running)
		time.Sleep(time.Hour + 1)
		requireState(t, c, vm.ID, memory.Stopped)
	})
}

func TestFaultsHitTheCallsTheyAreMeantFor(t *testing.T) {
	inBubble(t, memory.Options{}, func(t *testing.T, cloud *memory.Cloud, c *memory.Client) {
		list := func() error {
			_, err := c.ListVMs(t.Context(), nil)

			return err
		}

		cloud.Inject(memory.Fault{Op: memory.OpListVMs, After: 1, Times: 2, Err: memory.Throttled(time.Minute)})
		require.NoError(t, c.Ping(t.Context()))
		require.NoError(t, list())
		requireStatus(t, http.StatusTooManyRequests, list())
		requireStatus(t, http.StatusTooManyRequests, list())
		require.NoError(t, list())

		cloud.Inject(memory.Fault{Times: -1, Err: memory.Unavailable()})
		requireStatus(t, http.StatusServiceUnavailable, c.Ping(t.Context()))
		requireStatus(t, http.StatusServiceUnavailable, list())
		cloud.ClearFaults()
		require.NoError(t, list())

		cloud.Inject(memory.Fault{Op: memory.OpCreateVolume, Lost: true})

		_, err := c.CreateVolume(t.Context(), memory.VolumeSpec{Name: "v", SizeGiB: 1})
		require.ErrorIs(t, err, memory.ErrConnection)

		volumes, err := c.ListVolumes(t.Context(), nil)
		require.NoError(t, err)
		require.Len(t, volumes, 1, "the lost call had its effect")

		cloud.Inject(memory.Fault{Op: memory.OpPing, Hang: true})

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()

		require.ErrorIs(t, c.Ping(ctx), context.DeadlineExceeded)
	})
}

func TestFullCloudTakesNoMachine(t *testing.T) {
	inBubble(t, memory.Options{MaxVMs: 1}, func(t *testing.T, _ *memory.Cloud, c *memory.Client) {
		vm := makeVM(t, c, "a")
		volume, err := c.CreateVolume(t.Context(), memory.VolumeSpec{Name: "b", SizeGiB: 1})
		require.NoError(t, err)

		spec := memory.VMSpec{Name: "b", Cores: 1, MemoryMiB: 1, VolumeIDs: []string{volume.ID}}
		_, err = c.CreateVM(t.Context(), spec)
		requireStatus(t, http.StatusInsufficientStorage, err)

		require.NoError(t, c.DeleteVM(t.Context(), vm.ID))
		_, err = c.CreateVM(t.Context(), spec)
		require.NoError(t, err)
	})
}

func TestImageIsFetchedByTheCloud(t *testing.T) {
	opts := memory.Options{
		Durations: map[memory.Op]time.Duration{memory.OpImportImage: time.Minute},
		Fetch: func(ctx context.Context, url string) error {
			if url == "https://factory.example/missing" {
				return errors.New("404 not found")
			}

			return ctx.Err()
		},
	}

	inBubble(t, opts, func(t *testing.T, _ *memory.Cloud, c *memory.Client) {
		good, err := c.ImportImage(t.Context(), "good", "https://factory.example/good", nil)
		require.NoError(t, err)
		require.Equal(t, memory.Creating, good.State)

		_, err = c.ImportImage(t.Context(), "good", "https://factory.example/good", nil)
		requireStatus(t, http.StatusConflict, err)

		bad, err := c.ImportImage(t.Context(), "bad", "https://factory.example/missing", nil)
		require.NoError(t, err)

		time.Sleep(time.Minute + 1)

		good, err = c.GetImage(t.Context(), good.ID)
		require.NoError(t, err)
		require.Equal(t, memory.Available, good.State)

		bad, err = c.GetImage(t.Context(), bad.ID)
		require.NoError(t, err)
		require.Equal(t, memory.Failed, bad.State)
		require.Equal(t, "404 not found", bad.Reason)
		require.NoError(t, c.DeleteImage(t.Context(), bad.ID))
	})
}

func TestWatchTellsEveryChangeUntilItBreaks(t *testing.T) {
	inBubble(t, memory.Options{}, func(t *testing.T, cloud *memory.Cloud, c *memory.Client) {
		var states []memory.State

		ended := make(chan error, 1)

		go func() {
			ended <- c.WatchVMs(t.Context(), func(e memory.Event) {
				if e.Deleted {
					states = append(states, "gone")

					return
				}

				states = append(states, e.VM.State)
			})
		}()

		synctest.Wait()

		vm := makeVM(t, c, "a")
		require.NoError(t, c.StartVM(t.Context(), vm.ID))
		require.NoError(t, cloud.DeleteMachine(vm.ID))
		synctest.Wait()
		require.Equal(t, []memory.State{
			memory.Creating, memory.Stopped, memory.Starting, memory.Running, "gone",
		}, states)

		cloud.BreakWatches()
		require.ErrorIs(t, <-ended, memory.ErrWatchBroken)
	})
}

func TestForeignObjectsAreNoLeak(t *testing.T) {
	inBubble(t, memory.Options{}, func(t *testing.T, cloud *memory.Cloud, _ *memory.Client) {
		for _, kind := range []string{"image", "volume", "vm"} {
			_, err := cloud.AddForeign(kind, "theirs")
			require.NoError(t, err)
		}

		_, err := cloud.AddForeign("planet", "mars")
		require.ErrorContains(t, err, "image, volume, vm")
		require.Empty(t, cloud.Ledger().Leaks())
		require.Len(t, cloud.Machines(), 1)
	})
}

func TestJitterIsRepeatable(t *testing.T) {
	measure := func(seed uint64) (took time.Duration) {
		inBubble(t, memory.Options{Latency: time.Second, Jitter: 0.5, Seed: seed},
			func(t *testing.T, _ *memory.Cloud, c *memory.Client) {
				start := time.Now()
				require.NoError(t, c.Ping(t.Context()))
				took = time.Since(start)
			})

		return took
	}

	require.Equal(t, measure(1), measure(1))
	require.NotEqual(t, measure(1), measure(2))
	require.InDelta(t, time.Second, measure(1), float64(500*time.Millisecond))
}

func TestClosedCloudRefusesCalls(t *testing.T) {
	cloud := memory.New(memory.Options{})
	client := cloud.Client()
	cloud.Close()
	requireStatus(t, http.StatusServiceUnavailable, client.Ping(t.Context()))
}

func TestCallIsNotMadeUnlessTheClientIsLet(t *testing.T) {
	cloud := memory.New(memory.Options{})
	t.Cleanup(cloud.Close)

	client, not := cloud.Client(), errors.New("not now")
	client.Before = func(context.Context) error { return not }

	require.ErrorIs(t, client.Ping(t.Context()), not)
	require.ErrorIs(t, client.WatchVMs(t.Context(), nil), not)
	require.Zero(t, cloud.Ledger().Calls())

	client.Before = func(context.Context) error { return nil }

	require.NoError(t, client.Ping(t.Context()))
	require.Equal(t, 1, cloud.Ledger().Calls())
}

func TestHiddenMachineIsMissingFromSoManyLists(t *testing.T) {
	inBubble(t, memory.Options{}, func(t *testing.T, cloud *memory.Cloud, c *memory.Client) {
		vm := makeVM(t, c, "a")
		cloud.HideMachine(vm.ID, 2)

		for _, want := range []int{0, 0, 1} {
			vms, err := c.ListVMs(t.Context(), nil)
			require.NoError(t, err)
			require.Len(t, vms, want)
		}

		requireState(t, c, vm.ID, memory.Stopped)
	})
}

func TestFaultsOfTheBooksAreSaidInTheCloudsOwnWords(t *testing.T) {
	for kind, want := range map[ledger.FaultKind]int{
		ledger.NotFound: 404, ledger.Conflict: 409, ledger.Throttled: 429, ledger.Full: 507, ledger.Unauthorized: 401,
		ledger.Unavailable: 503, ledger.Echo: 500,
	} {
		c := memory.New(memory.Options{})
		c.Ledger().Inject(ledger.Fault{Kind: kind})

		_, err := c.Client().CreateVM(t.Context(), memory.VMSpec{Name: "vm", UserData: "all of the request"})
		require.Equal(t, want, memory.StatusOf(err), kind)
		require.Equal(t, kind == ledger.Echo, strings.Contains(err.Error(), "all of the request"), err)
		c.Close()
	}
}
