package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

const (
	leaseType = "Leases.test.infraprovider.sidero.dev"
	// leaseTime is how long a holder acts without Omni, and takeoverTime when another one does so at the latest.
	leaseTime    = 30 * time.Second
	takeoverTime = 37 * time.Second
)

// alone runs f without a provider of the world's own.
func alone(t *testing.T, f func(w *world)) {
	run(t, func(w *world) {
		w.stop()
		f(w)
	})
}

func (w *world) requests(n int) {
	for i := range n {
		w.request(fmt.Sprintf("pool-%02d", i))
	}
}

// busy lets every machine take 20 minutes, during which its phase changes the cloud each second.
func (w *world) busy(p *process) {
	w.cloud.ensure = func(ctx context.Context, _ driver.Task) error {
		for range 20 * 60 {
			select {
			case <-time.After(time.Second):
				p.seat.note()
			case <-ctx.Done():
				return ctx.Err()
			}
		}

		return nil
	}
}

func TestTwoProcessesOfOneIDMakeEachMachineOnce(t *testing.T) {
	alone(t, func(w *world) {
		a := w.process("a")
		w.wait(0)

		b := w.process("b")

		w.requests(20)
		w.wait(10 * time.Minute)
		assert.Len(t, w.cloud.names(), 20)
		assert.Len(t, a.seat.times(), 20, "each is made once")

		for i := range 20 {
			w.teardown(fmt.Sprintf("pool-%02d", i))
		}

		w.wait(10 * time.Minute)
		assert.Empty(t, w.cloud.names())
		assert.Len(t, a.seat.times(), 40, "and removed once")
		assert.Empty(t, b.seat.times(), "whoever waits does nothing")

		a.stop()
		b.stop()
	})
}

func TestProcessesThatTakeTurnsMakeEachMachineOnce(t *testing.T) {
	alone(t, func(w *world) {
		w.cloud.ensure = func(ctx context.Context, _ driver.Task) error {
			select {
			case <-time.After(20 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}

		all := []*process{w.process("0"), w.process("1"), w.process("2")}

		w.requests(20)

		for i := range 6 {
			w.wait(25 * time.Second)
			all[i%3].kill()
			all[i%3] = w.process(fmt.Sprint(i + 3))
		}

		w.wait(10 * time.Minute)
		assert.Len(t, w.cloud.names(), 20)

		for _, p := range all {
			p.stop()
		}
	})
}

func TestHolderThatIsCutOffStopsBeforeAnotherActs(t *testing.T) {
	for what, kind := range map[string]resource.Type{"from all of Omni": "", "while it renews": leaseType} {
		alone(t, func(w *world) {
			a := w.process("a")
			w.wait(time.Second)

			b := w.process("b")

			w.busy(a)
			w.request("pool-a")
			w.wait(time.Minute)
			require.NotEmpty(t, a.seat.times())

			cut := time.Now()
			a.line.set(kind, true)
			w.wait(25 * time.Second)
			w.busy(b)
			w.wait(5 * time.Minute)

			as, bs := a.seat.times(), b.seat.times()
			require.NotEmpty(t, bs, what)
			assert.LessOrEqual(t, as[len(as)-1].Sub(cut), leaseTime, what)
			assert.Less(t, as[len(as)-1], bs[0].Add(-5*time.Second), "%s: what was under way had time to end", what)
			assert.LessOrEqual(t, bs[0].Sub(cut), takeoverTime, what)

			a.line.set(kind, false)
			w.wait(30 * time.Minute)
			assert.Len(t, a.seat.times(), len(as), "%s: it waits now", what)
			assert.Equal(t, []string{"pool-a"}, w.cloud.names(), what)

			b.stop()
			w.cloud.ensure = nil
			w.request("pool-b")
			w.wait(time.Second)
			assert.Len(t, a.seat.times(), len(as)+1, "%s: it acts again, in the same process", what)
			a.stop()
		})
	}
}

func TestOmniThatIsAwayForLongerThanTheLeaseStopsAndResumesWork(t *testing.T) {
	for _, tt := range []struct {
		away  time.Duration
		stops bool
	}{{15 * time.Second, false}, {10 * time.Minute, true}} {
		alone(t, func(w *world) {
			a := w.process("a")
			w.wait(time.Second)
			w.busy(a)
			w.request("pool-a")
			w.wait(time.Minute)

			made := w.cloud.count("create pool-a")

			a.line.set("", true)
			w.wait(tt.away)
			a.line.set("", false)
			w.wait(time.Minute + time.Second)

			assert.Equal(t, tt.stops, w.cloud.count("create pool-a") > made, "away for %s", tt.away)
			w.wait(20 * time.Minute)
			assert.Equal(t, []string{"pool-a"}, w.cloud.names())

			a.stop()
		})
	}
}

func TestLeaseIsFreeAfterAnOrderlyEnd(t *testing.T) {
	alone(t, func(w *world) {
		a := w.process("a")
		w.wait(0)

		b := w.process("b")

		w.wait(time.Hour)
		a.stop()
		w.request("pool-a")
		w.wait(100 * time.Millisecond)
		assert.Len(t, b.seat.times(), 1)
		b.stop()
	})
}

func TestKilledProcessIsReplacedOnceItsLeaseHasRunOut(t *testing.T) {
	for _, name := range []string{"another one", "a"} {
		alone(t, func(w *world) {
			a := w.process("a")
			w.wait(time.Minute)
			a.kill()

			b := w.process(name)

			w.request("pool-a")
			w.wait(leaseTime)
			assert.Empty(t, b.seat.times(), "whoever starts cannot know whether the other still works")

			w.wait(takeoverTime - leaseTime)
			assert.Len(t, b.seat.times(), 1)
			b.stop()
		})
	}
}

func TestWaitingProcessSaysWhoActs(t *testing.T) {
	alone(t, func(w *world) {
		a := w.process("host-a (process 7)")
		w.wait(0)

		started := time.Now()
		w.wait(time.Hour)

		b := w.process("b")

		w.wait(time.Second)

		said := b.logs.FilterMessageSnippet("another process acts").All()
		require.Len(t, said, 1)
		assert.Equal(t, "host-a (process 7)", said[0].ContextMap()["holder"])
		assert.True(t, started.Equal(said[0].ContextMap()["since"].(time.Time)), said[0].ContextMap()["since"]) //nolint:forcetypeassert,errcheck
		assert.Contains(t, said[0].ContextMap()["advice"], "takes over when the other process ends")

		w.wait(24*time.Hour - 2*time.Hour)
		assert.InDelta(t, 27, b.logs.FilterMessageSnippet("another process acts").Len(), 3, "seldom, after a while")

		a.stop()
		b.stop()
	})
}

func TestWaitingProcessReportsNothing(t *testing.T) {
	alone(t, func(w *world) {
		a := w.process("a", func(c *lifecycle.Config) { c.Name = "from a" })
		w.wait(time.Minute)

		b := w.process("b", func(c *lifecycle.Config) { c.Name = "from b" })

		w.cloud.check = func(context.Context) error { return nil }
		before := w.healthStatus().Metadata().Version()
		w.wait(time.Minute)

		assert.Equal(t, before.Value()+4, w.healthStatus().Metadata().Version().Value(), "heartbeats of one process")

		name := func() string {
			res, err := w.st.Get(w.ctx, infra.NewProviderStatus(providerID).Metadata())
			require.NoError(t, err)

			return res.(*infra.ProviderStatus).TypedSpec().Value.Name //nolint:forcetypeassert,errcheck // read by its id
		}

		assert.Equal(t, "from a", name())
		a.stop()
		w.wait(time.Second)
		assert.Equal(t, "from b", name())
		b.stop()
	})
}

func TestProcessThatCannotRunSpeaksOverNoneThatActs(t *testing.T) {
	alone(t, func(w *world) {
		a := w.process("a")
		w.wait(time.Minute)

		broken, cfg := w.newProcess("broken")
		ctx, cancel := context.WithCancel(w.ctx)

		go func() {
			broken.done <- lifecycle.Heartbeat(ctx, cfg, broken.line, func(context.Context) error { return errors.New("its settings are wrong") })
		}()

		w.wait(time.Minute)
		assert.Empty(t, w.health())
		assert.NotEmpty(t, broken.logs.FilterMessageSnippet("another process acts").All())

		a.stop()
		w.wait(time.Second)
		assert.Equal(t, "its settings are wrong", w.health())

		a = w.process("a")
		cancel()
		require.NoError(t, <-broken.done)
		w.wait(time.Minute)
		assert.Empty(t, w.health())
		a.stop()
	})
}

func TestLostAnswerToARenewalLosesNoLease(t *testing.T) {
	alone(t, func(w *world) {
		a := w.process("a")
		w.wait(time.Second)
		w.busy(a)
		w.request("pool-a")

		for range 20 {
			a.line.mu.Lock()
			a.line.lost = leaseType
			a.line.mu.Unlock()
			w.wait(20 * time.Second)
		}

		assert.Empty(t, a.logs.FilterMessageSnippet("lease is lost").All())
		assert.Equal(t, 1, w.cloud.count("create pool-a"))
		a.stop()
	})
}

func TestLeaseThatWasTakenEndsEverythingAtOnce(t *testing.T) {
	alone(t, func(w *world) {
		a := w.process("a")
		w.wait(time.Second)
		w.busy(a)
		w.request("pool-a")
		w.wait(time.Minute)

		// Omni comes back from a backup in which another process had it.
		md := resource.NewMetadata("infra-provider:test", leaseType, "provider", resource.VersionUndefined)
		_, err := w.st.UpdateWithConflicts(w.ctx, md, func(r resource.Resource) error {
			return lifecycle.SetLeaseHolder(r, "the past")
		}, ownedByProvider)
		require.NoError(t, err)

		w.wait(11 * time.Second)
		lost := a.logs.FilterLevelExact(zap.WarnLevel).FilterMessageSnippet("lease is lost").All()
		require.Len(t, lost, 1)
		assert.Contains(t, lost[0].ContextMap()["error"], `"the past" has it`)

		changes := len(a.seat.times())
		w.wait(leaseTime)
		assert.Len(t, a.seat.times(), changes)

		w.wait(takeoverTime - leaseTime)
		assert.Greater(t, len(a.seat.times()), changes, "the past is dead")
		a.stop()
	})
}

func TestCallThatOutlivesTheLeaseIsFollowedByNone(t *testing.T) {
	alone(t, func(w *world) {
		a := w.process("a")
		w.wait(time.Second)

		// A driver that does not end with its context, as in a process that was stopped and goes on later.
		w.cloud.ensure = func(context.Context, driver.Task) error { time.Sleep(2 * time.Minute); return nil }
		a.seat.phases = 2

		w.request("pool-a")
		w.wait(time.Second)
		a.line.set("", true)
		w.wait(10 * time.Minute)
		assert.Len(t, a.seat.times(), 1)

		a.line.set("", false)
		w.wait(10 * time.Minute)
		assert.Len(t, a.seat.times(), 3)
		a.stop()
	})
}

func TestLeaseDurationIsChecked(t *testing.T) {
	_, err := lifecycle.New(lifecycle.Config{ID: providerID, Driver: &cloud{}, Logger: zap.NewNop(), LeaseDuration: time.Millisecond})
	require.ErrorContains(t, err, "LeaseDuration is 1ms: want 1s to 10m0s")
}

func TestLeaseIsFreeAfterAnEndWithinARenewal(t *testing.T) {
	alone(t, func(w *world) {
		a := w.process("a")
		w.wait(5 * time.Second)
		a.line.mu.Lock()
		a.line.lost = leaseType
		a.line.mu.Unlock()
		w.wait(5500 * time.Millisecond)
		a.stop()

		b := w.process("b")
		w.request("pool-a")
		w.wait(2 * time.Second)
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())
		b.stop()
	})
}

func TestCallThatWasLeftBehindIsWaitedForByTheProviderThatFollows(t *testing.T) {
	alone(t, func(w *world) {
		w.cloud.set(func(_ context.Context, call, _ string) error {
			if call == "ensure" {
				time.Sleep(10 * time.Minute)
			}

			return nil
		})

		var before *lifecycle.Provider

		for _, name := range []string{"one", "two"} {
			p, cfg := w.newProcess(name, func(c *lifecycle.Config) { c.After = before })
			provider, err := lifecycle.New(cfg)
			require.NoError(t, err)

			ctx, cancel := context.WithCancel(w.ctx)
			go func() { p.done <- provider.Run(ctx, p.line) }()

			if before == nil {
				w.request("pool-a")
				w.wait(time.Second)
			} else {
				w.teardown("pool-a")
				w.wait(5 * time.Minute)
				assert.Zero(t, w.cloud.count("remove pool-a"), "the machine is still being made")
				w.wait(6 * time.Minute)
				assert.Equal(t, 1, w.cloud.count("remove pool-a"))
				assert.Empty(t, w.cloud.names())
				assert.Empty(t, w.finalizers("pool-a"))
			}

			before = provider

			cancel()
			require.NoError(t, <-p.done)
		}
	})
}
