package memory_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	provider "github.com/omni-infra/omni-infra-providers/providers/memory"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

var ref = driver.Ref{ProviderID: "memory", RequestID: "workers-x7k2p9"}

// slow makes every operation of the cloud take a while.
var slow = map[cloud.Op]time.Duration{
	cloud.OpImportImage: 4 * time.Second, cloud.OpCreateVolume: 3 * time.Second, cloud.OpCreateVM: 2 * time.Second,
	cloud.OpStartVM: 2 * time.Second, cloud.OpStopVM: 2 * time.Second, cloud.OpRebootVM: 3 * time.Second,
	cloud.OpDeleteVM: 2 * time.Second, cloud.OpDeleteVolume: 3 * time.Second,
}

type image struct{}

func (image) Key() string { return "376567988ad3-v1.13.5-amd64" }
func (image) URL() string {
	return "https://factory.example/image/376567988ad3/v1.13.5/nocloud-amd64.raw.xz"
}
func (image) Open(context.Context) (io.ReadCloser, error) { return nil, errors.New("not used") }

func request(r driver.Ref) driver.Request {
	return driver.Request{Ref: r, Identity: driver.NewIdentity(r), TalosVersion: "v1.13.5", ClassData: "{cores: 4}"}
}

func task(r driver.Ref) driver.Task {
	return driver.Task{
		Request: request(r), Join: driver.Join{UserData: "join-token-canary"}, Image: image{}, Progress: func(string) {},
	}
}

// inBubble runs test on a fake clock, with a cloud that finds every exposed join token.
func inBubble(t *testing.T, opts cloud.Options, test func(t *testing.T, c *cloud.Cloud)) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		c := cloud.New(opts)
		defer c.Close()

		require.NoError(t, c.Ledger().Secret("join token", task(ref).Join.UserData))
		test(t, c)
	})
}

// repeat calls f as the library does, until it succeeds, can never succeed, its process is dead, or ten minutes have passed.
// A pause of zero is a bug: it would spin.
func repeat(t *testing.T, f func() error) error {
	t.Helper()

	var err error

	for start := time.Now(); time.Since(start) < 10*time.Minute; time.Sleep(max(driver.PauseOf(err), time.Second)) {
		if err = f(); err == nil || driver.KindOf(err) == driver.KindTerminal || errors.Is(err, ledger.ErrDisconnected) {
			return err
		}

		if driver.KindOf(err) == driver.KindPending {
			require.NotZero(t, driver.PauseOf(err), "pending without a pause: %v", err)
		}
	}

	return err
}

// provision runs all phases from the first again until all succeed in one go.
func provision(t *testing.T, d *provider.Driver, r driver.Ref) error {
	t.Helper()

	return repeat(t, func() error {
		plan, err := d.Plan(t.Context(), request(r))
		if err != nil {
			return err
		}

		for _, phase := range plan.Phases {
			if err := phase.Ensure(t.Context(), task(r)); err != nil {
				return fmt.Errorf("%s: %w", phase.Name, err)
			}
		}

		return nil
	})
}

func remove(t *testing.T, d *provider.Driver, r driver.Ref) error {
	t.Helper()

	return repeat(t, func() error {
		done, err := d.Remove(t.Context(), r)
		if err == nil && !done {
			return errors.New("not done")
		}

		return err
	})
}

func requireOneMachine(t *testing.T, c *cloud.Cloud) {
	t.Helper()

	machines := c.Machines()
	require.Len(t, machines, 1, c.Ledger().History())
	require.True(t, machines[0].On)
	require.Equal(t, driver.NewIdentity(ref).UUID, machines[0].UUID)
	require.Equal(t, []string{`volume volume-1 "workers-x7k2p9-root" is left`, `vm vm-1 "workers-x7k2p9" is left`}, c.Ledger().Leaks())
}

func requireNothing(t *testing.T, c *cloud.Cloud) {
	t.Helper()

	require.Empty(t, c.Ledger().Leaks(), c.Ledger().History())
}

func TestEachPhaseMayRunTwice(t *testing.T) {
	for name, durations := range map[string]map[cloud.Op]time.Duration{"instant": nil, "slow": slow} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, cloud.Options{Durations: durations}, func(t *testing.T, c *cloud.Cloud) {
				d := provider.New(c.Client())

				plan, err := d.Plan(t.Context(), request(ref))
				require.NoError(t, err)
				require.Equal(t, map[string]string{"vm": "workers-x7k2p9", "volume": "workers-x7k2p9-root"}, plan.Names)

				for _, phase := range plan.Phases {
					for range 2 {
						require.NoError(t, repeat(t, func() error { return phase.Ensure(t.Context(), task(ref)) }), phase.Name)
					}
				}

				requireOneMachine(t, c)
				require.Equal(t, 1, c.Machines()[0].Boots)
			})
		})
	}
}

func TestRemoveMayRunAtAnyTime(t *testing.T) {
	inBubble(t, cloud.Options{Durations: slow}, func(t *testing.T, c *cloud.Cloud) {
		d := provider.New(c.Client())

		plan, err := d.Plan(t.Context(), request(ref))
		require.NoError(t, err)

		for made := range len(plan.Phases) + 1 {
			for i, phase := range plan.Phases[:made] {
				// The last one is left under way.
				if err := phase.Ensure(t.Context(), task(ref)); i < made-1 && err != nil {
					require.NoError(t, repeat(t, func() error { return phase.Ensure(t.Context(), task(ref)) }))
				}
			}

			require.NoError(t, remove(t, d, ref), "after %d phases", made)
			requireNothing(t, c)
			require.NoError(t, remove(t, d, ref), "what is gone is no error")
		}
	})
}

func TestLostReplyMakesOneMachine(t *testing.T) {
	for _, op := range []cloud.Op{
		cloud.OpImportImage, cloud.OpCreateVolume, cloud.OpCreateVM, cloud.OpStartVM, cloud.OpStopVM, cloud.OpDeleteVM, cloud.OpDeleteVolume,
	} {
		t.Run(string(op), func(t *testing.T) {
			inBubble(t, cloud.Options{Durations: slow}, func(t *testing.T, c *cloud.Cloud) {
				d := provider.New(c.Client())
				c.Inject(cloud.Fault{Op: op, Lost: true})
				require.NoError(t, provision(t, d, ref))
				requireOneMachine(t, c)
				require.NoError(t, remove(t, d, ref))
				requireNothing(t, c)
			})
		})
	}
}

func TestCrashAfterAnyCallMakesOneMachine(t *testing.T) {
	run := func(t *testing.T, n int, lost bool) (calls int) {
		inBubble(t, cloud.Options{}, func(t *testing.T, c *cloud.Cloud) {
			d := provider.New(c.Client())
			c.Ledger().CrashAfter(n, lost, func() {})

			restarted := func(step func(*testing.T, *provider.Driver, driver.Ref) error) error {
				err := step(t, d, ref)
				if errors.Is(err, ledger.ErrDisconnected) {
					d = provider.New(c.Client())
					err = step(t, d, ref)
				}

				return err
			}

			require.NoError(t, restarted(provision))
			requireOneMachine(t, c)
			require.NoError(t, restarted(remove))
			requireNothing(t, c)

			calls = c.Ledger().Calls()
		})

		return calls
	}

	for n := range run(t, 0, false) {
		run(t, n+1, true)
		run(t, n+1, false)
	}
}

func TestForeignObjectsStayAsTheyAre(t *testing.T) {
	inBubble(t, cloud.Options{}, func(t *testing.T, c *cloud.Cloud) {
		other := driver.Ref{ProviderID: "other", RequestID: ref.RequestID}
		d := provider.New(c.Client())

		require.NoError(t, provision(t, d, other))

		for _, o := range []struct{ kind, name string }{{"vm", ref.RequestID}, {"volume", ref.RequestID + "-root"}} {
			_, err := c.AddForeign(o.kind, o.name)
			require.NoError(t, err)
		}

		before, objects := c.Machines(), c.Ledger().Objects()

		_, err := d.Find(t.Context(), ref)
		require.True(t, driver.IsNotFound(err), "a name is no mark: %v", err)

		require.NoError(t, provision(t, d, ref))
		require.Len(t, c.Machines(), 3)
		require.NoError(t, remove(t, d, ref))
		require.Equal(t, before, c.Machines())
		require.Subset(t, c.Ledger().Objects(), objects)

		list, err := d.List(t.Context(), ref.ProviderID)
		require.NoError(t, err)
		require.Empty(t, list)
	})
}

func TestListIsWholeOrAnError(t *testing.T) {
	inBubble(t, cloud.Options{}, func(t *testing.T, c *cloud.Cloud) {
		d := provider.New(c.Client())
		second := driver.Ref{ProviderID: ref.ProviderID, RequestID: "workers-2"}

		require.NoError(t, provision(t, d, ref))
		require.NoError(t, provision(t, d, second))
		require.NoError(t, c.DeleteMachine(c.Machines()[1].ID))

		list, err := d.List(t.Context(), ref.ProviderID)
		require.NoError(t, err)
		require.Len(t, list, 2)
		require.Equal(t, ref, list[0].Ref)
		require.Equal(t, driver.PowerOn, list[0].Power)
		require.Equal(t, second, list[1].Ref, "the volume that the deleted machine left")
		require.True(t, list[1].Incomplete)

		for _, op := range []cloud.Op{cloud.OpListVMs, cloud.OpListVolumes} {
			c.Inject(cloud.Fault{Op: op, Err: cloud.Unavailable()})

			list, err = d.List(t.Context(), ref.ProviderID)
			require.Error(t, err, op)
			require.Nil(t, list)
		}
	})
}

func TestFailedImageIsImportedAgain(t *testing.T) {
	fetches := 0
	opts := cloud.Options{Durations: slow, Fetch: func(context.Context, string) error {
		if fetches++; fetches == 1 {
			return errors.New("500 from the factory")
		}

		return nil
	}}

	inBubble(t, opts, func(t *testing.T, c *cloud.Cloud) {
		d := provider.New(c.Client())

		plan, err := d.Plan(t.Context(), request(ref))
		require.NoError(t, err)
		require.ErrorContains(t, plan.Phases[0].Ensure(t.Context(), task(ref)), "is creating")
		synctest.Wait()
		require.ErrorContains(t, plan.Phases[0].Ensure(t.Context(), task(ref)), "500 from the factory")
		require.NoError(t, provision(t, d, ref))
		requireOneMachine(t, c)
	})
}

func TestOneImageServesMachinesThatAreMadeAtOnce(t *testing.T) {
	inBubble(t, cloud.Options{Durations: slow, Latency: time.Second}, func(t *testing.T, c *cloud.Cloud) {
		d := provider.New(c.Client())
		errs := make(chan error)

		for i := range 20 {
			go func() {
				errs <- provision(t, d, driver.Ref{ProviderID: ref.ProviderID, RequestID: fmt.Sprintf("workers-%d", i)})
			}()
		}

		for range 20 {
			assert.NoError(t, <-errs)
		}

		images, err := c.Client().ListImages(t.Context(), nil)
		require.NoError(t, err)
		require.Len(t, images, 1)
		require.Len(t, c.Machines(), 20)
	})
}

func TestSwitchAndReboot(t *testing.T) {
	inBubble(t, cloud.Options{Durations: slow}, func(t *testing.T, c *cloud.Cloud) {
		d := provider.New(c.Client())
		require.NoError(t, provision(t, d, ref))

		first, err := d.Find(t.Context(), ref)
		require.NoError(t, err)

		for _, want := range []driver.Power{driver.PowerOn, driver.PowerOff, driver.PowerOff, driver.PowerOn} {
			require.NoError(t, repeat(t, func() error { return d.SetPower(t.Context(), ref, want) }))

			got, err := d.Find(t.Context(), ref)
			require.NoError(t, err)
			require.Equal(t, want, got.Power)
		}

		require.NoError(t, repeat(t, func() error { return d.Reboot(t.Context(), ref) }))
		time.Sleep(time.Minute)

		last, err := d.Find(t.Context(), ref)
		require.NoError(t, err)
		require.Equal(t, "1", first.Boot)
		require.Equal(t, "3", last.Boot)

		require.NoError(t, d.SetPower(t.Context(), ref, driver.PowerOff))
		time.Sleep(time.Minute)
		require.ErrorContains(t, d.Reboot(t.Context(), ref), "stopped")
	})
}

func TestWatchTellsOfOurMachinesAlone(t *testing.T) {
	inBubble(t, cloud.Options{}, func(t *testing.T, c *cloud.Cloud) {
		d := provider.New(c.Client())
		seen := map[driver.Ref]bool{}
		ended := make(chan error, 1)

		go func() { ended <- d.Watch(t.Context(), ref.ProviderID, func(r driver.Ref) { seen[r] = true }) }()

		synctest.Wait()
		require.NoError(t, provision(t, d, ref))
		require.NoError(t, provision(t, d, driver.Ref{ProviderID: "other", RequestID: "r"}))

		_, err := c.AddForeign("vm", ref.RequestID)
		require.NoError(t, err)

		c.BreakWatches()
		require.ErrorIs(t, <-ended, cloud.ErrWatchBroken)
		require.Equal(t, map[driver.Ref]bool{ref: true}, seen)
	})
}

func TestErrorsOfTheCloudKeepTheirKind(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want driver.Kind
	}{
		{cloud.Throttled(time.Minute), driver.KindThrottled},
		{cloud.Full(), driver.KindCapacity},
		{cloud.Unavailable(), driver.KindTransient},
		{cloud.ErrConnection, driver.KindTransient},
		{&cloud.Error{Status: http.StatusBadRequest, Message: "no"}, driver.KindTerminal},
	} {
		t.Run(tt.err.Error(), func(t *testing.T) {
			inBubble(t, cloud.Options{}, func(t *testing.T, c *cloud.Cloud) {
				d := provider.New(c.Client())
				c.Inject(cloud.Fault{Op: cloud.OpCreateVM, Err: tt.err})

				plan, err := d.Plan(t.Context(), request(ref))
				require.NoError(t, err)

				for _, phase := range plan.Phases {
					if err = phase.Ensure(t.Context(), task(ref)); err != nil {
						break
					}
				}

				require.ErrorIs(t, err, tt.err)
				require.ErrorContains(t, err, `create machine "workers-x7k2p9"`)
				require.Equal(t, tt.want, driver.KindOf(err))

				c.Inject(cloud.Fault{Err: tt.err})
				require.Equal(t, tt.want, driver.KindOf(d.Check(t.Context())))
			})
		})
	}
}

func TestBadClassDataNamesTheFieldAndTouchesNothing(t *testing.T) {
	inBubble(t, cloud.Options{}, func(t *testing.T, c *cloud.Cloud) {
		d := provider.New(c.Client())

		for data, want := range map[string]string{
			"{cores: 0}": "cores", "{core: 1}": "cores", "{memory: big}": "memory", "{disk_size: 1}": "disk_size", "{arch: mips}": "arch",
		} {
			req := request(ref)
			req.ClassData = data

			_, err := d.Plan(t.Context(), req)
			require.ErrorContains(t, err, want, data)
			require.Equal(t, driver.KindTerminal, driver.KindOf(err))
		}

		require.Zero(t, c.Ledger().Calls())
		require.Contains(t, provider.Schema(), `"disk_size"`)
	})
}

func TestListThatWasNotAnsweredSaysNothing(t *testing.T) {
	inBubble(t, cloud.Options{}, func(t *testing.T, c *cloud.Cloud) {
		d := provider.New(c.Client())
		require.NoError(t, provision(t, d, ref))

		c.Ledger().Inject(ledger.Fault{Kind: ledger.NotFound, Op: "list", Times: -1})

		_, err := d.Find(t.Context(), ref)
		require.False(t, driver.IsNotFound(err), "it would be made twice: %v", err)

		done, err := d.Remove(t.Context(), ref)
		require.False(t, done)
		require.False(t, driver.IsNotFound(err), "it would be forgotten: %v", err)
	})
}
