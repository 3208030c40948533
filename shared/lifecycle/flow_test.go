package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// driverCalls are all calls that the library makes to a driver, and whether one belongs to a request.
var driverCalls = []struct {
	name       string
	ofARequest bool
	// text is what an error says of the call.
	text string
	// limit is its deadline.
	limit time.Duration
}{
	{"plan", true, "planning", time.Minute},
	{"ensure", true, "create-machine", time.Hour},
	{"find", true, "finding the machine", time.Minute},
	{"power", true, "switching the machine off", time.Minute},
	{"reboot", true, "rebooting the machine", time.Minute},
	{"remove", true, "removing the machine", time.Minute},
	{"list", false, "listing the cloud's machines", time.Minute},
	{"check", false, "checking the cloud", 15 * time.Second},
	{"watch", false, "watching the cloud", time.Hour},
}

// provoke brings request "pool-bad" to where the library makes the call.
func (w *world) provoke(call string) {
	switch call {
	case "plan", "ensure", "find":
		w.request("pool-bad")
	case "power":
		w.annotate("pool-bad", lifecycle.PowerAnnotation, "off")
	case "reboot":
		w.annotate("pool-bad", lifecycle.RebootAnnotation, "1")
	case "remove":
		w.teardown("pool-bad")
	case "list", "check", "watch":
	}
}

// misbehave runs a provider in whose driver one call goes wrong, for one request or for the provider as a whole, and checks
// that it is told and that nothing else suffers. f gets the world when it has gone wrong, and the text that tells.
func misbehave(t *testing.T, wrong func(ctx context.Context) error, f func(w *world, call string, told func() string)) {
	for _, call := range driverCalls {
		t.Run(call.name, func(t *testing.T) {
			run(t, func(w *world) {
				switch call.name {
				case "power", "reboot", "remove":
					w.joined("pool-bad")
				}

				w.joined("pool-old")
				w.cloud.set(func(ctx context.Context, name, request string) error {
					if name == call.name && (request == "pool-bad" || !call.ofARequest) {
						return wrong(ctx)
					}

					return nil
				})
				w.provoke(call.name)
				w.wait(2*call.limit + 3*time.Minute)

				w.made("pool-good")
				w.teardown("pool-old")
				w.wait(time.Second)
				assert.Empty(t, w.finalizers("pool-old"))
				assert.NotContains(t, w.cloud.names(), "pool-old")

				f(w, call.text, func() string {
					if status, ok := w.status("pool-bad"); ok && call.ofARequest {
						return status.TypedSpec().Value.Error
					}

					return w.health()
				})

				w.cloud.set(nil)
				w.wait(call.limit + 3*time.Minute)
				assert.Empty(t, w.health(), "it heals by itself")

				switch call.name {
				case "remove":
					assert.Empty(t, w.finalizers("pool-bad"))
				case "list", "check", "watch":
				default:
					assert.Empty(t, w.failure("pool-bad"))
					assert.Contains(t, w.cloud.names(), "pool-bad")
				}
			}, func(w *world) { w.driver = watching{w.cloud} })
		})
	}
}

func TestPanicInAnyCallOfTheDriverIsToldAndStopsNothingElse(t *testing.T) {
	misbehave(t, func(context.Context) error { panic("index out of range") }, func(w *world, call string, told func() string) {
		want := call + ": internal error of the provider, please report it: panic: index out of range"
		assert.Contains(w.t, told(), want)
		assert.Contains(w.t, w.health(), want)
	})
}

func TestCallThatTakesTooLongIsToldAndStopsNothingElse(t *testing.T) {
	misbehave(t, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, func(w *world, call string, told func() string) {
		if call == "watching the cloud" {
			assert.Empty(w.t, w.health(), "a stream of events is renewed, that is all")

			return
		}

		assert.Contains(w.t, told(), call+" took longer than ")
	})
}

// A driver that ignores its context cannot be ended. It keeps a goroutine, and no more than one for each request.
func TestCallThatNeverEndsIsToldAndStopsNothingElse(t *testing.T) {
	var (
		release chan struct{}
		under   atomic.Int32
	)

	misbehave(t, func(context.Context) error {
		if release == nil {
			release = make(chan struct{})
		}

		under.Add(1)
		defer under.Add(-1)

		<-release

		return errors.New("the connection was reset at last")
	}, func(w *world, call string, told func() string) {
		assert.EqualValues(w.t, 1, under.Load())
		assert.Contains(w.t, told(), call)
		assert.Contains(w.t, told(), "does not end")
		assert.Contains(w.t, w.health(), call)

		w.wait(10 * time.Minute)
		assert.EqualValues(w.t, 1, under.Load(), "nothing else is asked for the same request")

		w.stop()

		entries := w.logs.FilterMessage("shutdown waits no longer for a call of the driver").All()
		require.Len(w.t, entries, 1)
		assert.Equal(w.t, call, entries[0].ContextMap()["call"])

		w.start()
		w.wait(time.Second)
		close(release)

		release = nil
	})
}

// Making is not begun beside removing, also when the driver does not let go of the call that makes.
func TestNothingIsRemovedWhileItIsStillBeingMade(t *testing.T) {
	run(t, func(w *world) {
		release := make(chan struct{})
		w.cloud.ensure = func(context.Context, driver.Task) error { <-release; return nil }

		w.request("pool-a")
		w.wait(time.Minute)
		w.teardown("pool-a")
		w.wait(3 * time.Minute)
		assert.Zero(t, w.cloud.count("remove pool-a"))
		assert.NotEmpty(t, w.finalizers("pool-a"))
		assert.Contains(t, w.health(), `create-machine for "pool-a" is under way for `)

		close(release)
		w.wait(time.Second)
		assert.Empty(t, w.finalizers("pool-a"), "the end of the call brings the next turn at once")
		assert.Empty(t, w.cloud.names())
	})
}

func TestThrottledCloudIsAskedNothingByAnybody(t *testing.T) {
	const pause = 20 * time.Second

	for _, call := range driverCalls {
		t.Run(call.name, func(t *testing.T) {
			run(t, func(w *world) {
				w.joined("pool-bad")
				w.joined("pool-old")

				for i := range 10 {
					w.joined(fmt.Sprintf("pool-%d", i))
				}

				if call.name == "plan" || call.name == "ensure" || call.name == "find" {
					w.teardown("pool-bad")
					w.wait(time.Second)
					require.NoError(t, w.st.Destroy(w.ctx, infra.NewMachineRequest("pool-bad").Metadata()))
				}

				// The window lies where a look, a check and a watch are due as well.
				var (
					mu        sync.Mutex
					throttled time.Time
					early     int
				)

				w.cloud.set(func(_ context.Context, name, request string) error {
					mu.Lock()
					defer mu.Unlock()

					switch {
					case throttled.IsZero() && name == call.name && (request == "pool-bad" || !call.ofARequest):
						throttled = time.Now()

						return driver.Throttled(pause, errors.New("429 too many requests"))
					case !throttled.IsZero() && time.Now().After(throttled) && time.Since(throttled) < pause:
						early++
					}

					return nil
				})
				w.provoke(call.name)

				for throttled.IsZero() {
					w.wait(time.Second)
				}

				w.request("pool-new")
				w.teardown("pool-old")

				for i := range 10 {
					w.annotate(fmt.Sprintf("pool-%d", i), lifecycle.RebootAnnotation, "now")
				}

				w.wait(pause - time.Second)
				assert.Zero(t, early, "calls in the window")
				assert.NotEmpty(t, w.finalizers("pool-old"))

				w.wait(time.Minute)
				assert.Empty(t, w.finalizers("pool-old"))
				assert.Contains(t, w.cloud.names(), "pool-new")
				assert.Equal(t, 1, w.cloud.count("reboot pool-7"))
				assert.Empty(t, w.health())
			}, func(w *world) { w.driver = watching{w.cloud} })
		})
	}
}

func TestFullCloudIsAskedOnceAMinuteAtMost(t *testing.T) {
	run(t, func(w *world) {
		began := time.Now()

		var creates []time.Time

		w.cloud.ensure = func(context.Context, driver.Task) error {
			creates = append(creates, time.Now())

			if time.Since(began) < 10*time.Minute {
				return driver.Capacity(errors.New("507: 4 GiB asked for, 1 GiB free"))
			}

			return nil
		}

		w.request("pool-a")
		w.wait(time.Second)
		assert.Contains(t, w.failure("pool-a"), "4 GiB asked for, 1 GiB free")
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONING, w.stage("pool-a"), "it may yet come")

		w.wait(30 * time.Minute)
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"))

		for i := range creates[1:] {
			assert.GreaterOrEqual(t, creates[i+1].Sub(creates[i]), time.Minute)
		}
	})
}

func TestPausesOfEachKindOfErrorGrowByThemselves(t *testing.T) {
	run(t, func(w *world) {
		var tries []time.Time

		w.cloud.ensure = func(context.Context, driver.Task) error {
			if tries = append(tries, time.Now()); len(tries) <= 6 {
				return errors.New("no route to host")
			}

			return driver.Capacity(errors.New("507"))
		}

		w.request("pool-a")
		w.wait(20 * time.Minute)
		require.Greater(t, len(tries), 9)

		for i, want := range []time.Duration{2, 4, 8, 16, 32, 60, 60, 120, 240} {
			pause := tries[i+1].Sub(tries[i]).Seconds()
			assert.GreaterOrEqual(t, pause, float64(want), "pause %d", i)
			assert.LessOrEqual(t, pause, 1.4*float64(want)+0.1, "pause %d", i)
		}
	})
}

func TestRemovalThatIsRefusedForGoodIsTriedSlowlyAndStopsNothing(t *testing.T) {
	run(t, func(w *world) {
		w.joined("pool-a")

		w.cloud.remove = func() error { return driver.Terminalf("400: the instance is locked") }

		w.teardown("pool-a")
		w.wait(30 * time.Minute)
		assert.LessOrEqual(t, w.cloud.count("remove pool-a"), 5, "5, 10, 10 minutes and up to two fifths more")
		assert.GreaterOrEqual(t, w.cloud.count("remove pool-a"), 3)
		assert.Zero(t, w.cloud.count("power pool-a off"))
		assert.NotEmpty(t, w.finalizers("pool-a"))
		assert.Contains(t, w.health(), "400: the instance is locked")

		w.cloud.remove = nil
		w.wait(15 * time.Minute)
		assert.Empty(t, w.finalizers("pool-a"))
		assert.Empty(t, w.health())
	})
}

func TestImportsOfHoursDelayNoTeardown(t *testing.T) {
	run(t, func(w *world) {
		for i := range 20 {
			w.made(fmt.Sprintf("old-%d", i))
		}

		var ended atomic.Int32

		w.cloud.ensure = func(ctx context.Context, _ driver.Task) error {
			select {
			case <-time.After(50 * time.Minute):
				return nil
			case <-ctx.Done():
				ended.Add(1)

				return ctx.Err()
			}
		}

		for i := range 50 {
			w.request(fmt.Sprintf("new-%d", i))
		}

		w.wait(time.Minute)

		for i := range 20 {
			w.teardown(fmt.Sprintf("old-%d", i))
		}

		w.wait(time.Second)
		assert.Empty(t, w.cloud.names())

		for i := range 50 {
			w.teardown(fmt.Sprintf("new-%d", i))
		}

		w.wait(time.Second)

		held := 0

		for i := range 50 {
			held += len(w.finalizers(fmt.Sprintf("new-%d", i)))
		}

		assert.LessOrEqual(t, held, 8, "those under way")
		w.wait(2 * time.Minute)
		assert.EqualValues(t, 8, ended.Load(), "are ended after their grace")

		for i := range 50 {
			require.Empty(t, w.finalizers(fmt.Sprintf("new-%d", i)))
		}
	})
}

func TestRequestThatChangesAfterwardsCausesNothing(t *testing.T) {
	run(t, func(w *world) {
		w.joined("pool-a")
		w.wait(5 * time.Minute)
		w.takeCalls()

		var asked atomic.Int32

		w.cloud.set(func(_ context.Context, call, _ string) error {
			if call != "list" && call != "check" {
				asked.Add(1)
			}

			return nil
		})

		for i := range 3 {
			w.edit("pool-a", func(r *infra.MachineRequest) {
				r.TypedSpec().Value.ProviderData = fmt.Sprintf("{cores: %d}", i+8)
				r.TypedSpec().Value.TalosVersion = "1.14.0"
				r.Metadata().Labels().Set("colour", fmt.Sprint(i))
			})
			w.wait(time.Hour)
		}

		assert.Zero(t, asked.Load())
		assert.Empty(t, w.takeCalls())
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"))
	})
}

func TestNothingIsProvisionedWithoutAMachineThatRuns(t *testing.T) {
	for name, tt := range map[string]struct {
		find func(driver.Machine) (driver.Machine, error)
		want string
	}{
		"not found":      {func(m driver.Machine) (driver.Machine, error) { return m, driver.NotFound("no instance has the mark") }, "no instance has the mark"},
		"off":            {func(m driver.Machine) (driver.Machine, error) { m.Power = driver.PowerOff; return m, nil }, "is off after it was started"},
		"only its parts": {func(m driver.Machine) (driver.Machine, error) { m.Incomplete = true; return m, nil }, "holds only parts"},
		"not seen":       {func(m driver.Machine) (driver.Machine, error) { return m, errors.New("503 service unavailable") }, "503"},
		"another's UUID": {func(m driver.Machine) (driver.Machine, error) {
			m.UUID = "11111111-2222-3333-4444-555555555555"

			return m, nil
		}, "11111111-2222-3333-4444-555555555555"},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *world) {
				w.request("pool-a")

				for range 600 {
					w.wait(time.Second)
					require.NotEqual(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"))
				}

				assert.Contains(t, w.failure("pool-a"), tt.want)

				w.driver.(*finding).find = nil //nolint:forcetypeassert,errcheck // set below
				w.wait(30 * time.Minute)
				assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"))
				assert.Empty(t, w.failure("pool-a"))
			}, func(w *world) { w.driver = &finding{w.cloud, tt.find} })
		})
	}
}

// finding is a cloud that says something else of its machines than what they are.
type finding struct {
	*cloud
	find func(driver.Machine) (driver.Machine, error)
}

func (c *finding) Find(ctx context.Context, ref driver.Ref) (driver.Machine, error) {
	m, err := c.cloud.Find(ctx, ref)

	c.cloud.sync()

	if err == nil && c.find != nil {
		return c.find(m)
	}

	return m, err
}

// A release that names its phases otherwise, or has more of them, does all of them.
func TestRenamedPhaseSkipsNoWork(t *testing.T) {
	run(t, func(w *world) {
		w.cloud.ensure = func(context.Context, driver.Task) error { return errors.New("no route to host") }

		w.request("pool-a")
		w.wait(time.Minute)
		w.stop()

		w.cloud.ensure = nil

		var ensured []string

		w.driver = &renamed{w.cloud, func(name string) { ensured = append(ensured, name) }}

		w.start()
		w.wait(time.Minute)
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())
		assert.Equal(t, []string{"claim-host", "build-machine"}, ensured)
		assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"))
	})
}

// renamed is a later release of the driver.
type renamed struct {
	*cloud
	ensured func(name string)
}

func (c *renamed) Plan(ctx context.Context, req driver.Request) (driver.Plan, error) {
	plan, err := c.cloud.Plan(ctx, req)
	if err != nil {
		return plan, err
	}

	build := plan.Phases[0].Ensure
	plan.Phases = []driver.Phase{
		{Name: "claim-host", Ensure: func(context.Context, driver.Task) error { c.ensured("claim-host"); return nil }},
		{Name: "build-machine", Ensure: func(ctx context.Context, t driver.Task) error { c.ensured("build-machine"); return build(ctx, t) }},
	}

	return plan, nil
}
