package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func sweeping(mode lifecycle.SweepMode) func(*lifecycle.Config) {
	return func(c *lifecycle.Config) { c.Sweep = mode }
}

// orphan puts a machine into the cloud that no request asked for.
func (w *world) orphan(id string, change ...func(*driver.Machine)) {
	m := driver.Machine{Ref: driver.Ref{ProviderID: providerID, RequestID: id}, ID: "vm-" + id, Power: driver.PowerOn}

	for _, f := range change {
		f(&m)
	}

	w.cloud.mu.Lock()
	defer w.cloud.mu.Unlock()

	w.cloud.machines[id] = m
}

// told returns what the process has said of left-overs, as "kind request: detail".
func (p *process) told() []string {
	var all []string

	for _, entry := range p.logs.FilterMessage("left over").All() {
		all = append(all, fmt.Sprintf("%s %s: %s", entry.ContextMap()["kind"], entry.ContextMap()["request"], entry.ContextMap()["detail"]))
	}

	return all
}

func TestOrphanIsReportedOnceAndKept(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a")

		w.request("pool-a")
		w.orphan("pool-x")
		w.wait(58 * time.Minute)
		assert.Empty(t, p.told(), "too young")

		w.wait(9 * time.Hour)
		require.Len(t, p.told(), 1)
		assert.Contains(t, p.told()[0], "orphan pool-x: Omni does not have its request; the command `sweep --remove`, or --sweep=remove")
		assert.Equal(t, []string{"pool-a", "pool-x"}, w.cloud.names())

		w.cloud.drop("pool-x")
		w.wait(2 * time.Minute)
		assert.Equal(t, 1, p.logs.FilterMessage("not left over any more").Len())
		p.stop()
	})
}

func TestOrphanIsRemovedOnRequestAfterTheGraceTime(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a", sweeping(lifecycle.SweepRemove))

		w.request("pool-a")
		w.wait(time.Hour)
		w.orphan("pool-x")
		w.wait(59 * time.Minute)
		assert.Equal(t, []string{"pool-a", "pool-x"}, w.cloud.names())

		w.wait(20 * time.Minute)
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())
		assert.Equal(t, 1, w.cloud.count("remove pool-x"))

		w.wait(10 * time.Hour)
		assert.Equal(t, 1, w.cloud.count("remove pool-x"))
		p.stop()
	})
}

func TestOrphanThatTheCloudKeepsIsTriedWithPausesAndShown(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a", sweeping(lifecycle.SweepRemove))

		w.request("pool-a")
		w.orphan("pool-x")
		w.cloud.remove = func() error { return errors.New("400 cannot be deleted") }
		w.wait(2 * time.Hour)
		assert.Less(t, w.cloud.count("remove pool-x"), 80)
		assert.Contains(t, w.health(), "400 cannot be deleted")

		w.cloud.remove = nil
		w.wait(2 * time.Minute)
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())
		p.stop()
	})
}

func TestNothingIsLookedForWhenSweepingIsOff(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a", sweeping(lifecycle.SweepOff))

		p.line.list = func() error { t.Error("the requests were listed"); return nil }

		w.request("pool-a")
		w.orphan("pool-x")
		w.wait(10 * time.Hour)
		assert.Empty(t, p.told())
		p.stop()
	})
}

func TestLiveMachinesSurviveAnOmniThatDoesNotTellAll(t *testing.T) {
	half := func(id string, _ bool) bool { return id < "pool-05" }
	all := func(string, bool) bool { return true }

	for name, trouble := range map[string]func(w *world, p *process){
		"its lists fail":        func(_ *world, p *process) { p.line.list = func() error { return errors.New("500") } },
		"its lists are partial": func(_ *world, p *process) { p.line.hides = half },
		"its lists are empty":   func(_ *world, p *process) { p.line.hides = all },
		"its watches are partial": func(_ *world, p *process) {
			p.line.hides = func(id string, watch bool) bool { return watch && half(id, watch) }
		},
		"it is empty at first": func(w *world, p *process) {
			start := time.Now()
			p.line.hides = func(string, bool) bool { return time.Since(start) < 30*time.Second }
		},
	} {
		alone(t, func(w *world) {
			first := w.process("a")
			w.requests(10)
			w.wait(time.Minute)
			require.Len(t, w.cloud.names(), 10)
			first.stop()

			p := w.process("b", sweeping(lifecycle.SweepRemove))
			trouble(w, p)
			w.orphan("pool-00x") // keeps the sweep looking
			w.wait(12 * time.Hour)

			for i := range 10 {
				assert.Zero(t, w.cloud.count(fmt.Sprintf("remove pool-%02d", i)), name)

				if name == "its watches are partial" {
					assert.NotContains(t, fmt.Sprint(p.told()), fmt.Sprintf("pool-%02d:", i), name)
				}
			}

			p.stop()
		})
	}
}

func TestNothingIsRemovedByTheWordOfAnOmniThatKnowsNoMachine(t *testing.T) {
	for name, other := range map[string]string{"it is empty": "", "it has requests of its own": "other-a"} {
		alone(t, func(w *world) {
			p := w.process("a", sweeping(lifecycle.SweepRemove))

			if other != "" {
				w.cloud.ensure = func(context.Context, driver.Task) error { return driver.Capacity(errors.New("full")) }
				w.request(other)
			}

			for i := range 10 {
				w.orphan(fmt.Sprintf("pool-%d", i))
			}

			w.wait(12 * time.Hour)
			assert.Len(t, w.cloud.names(), 10, name)
			require.Len(t, p.told(), 10, name)
			assert.Contains(t, p.told()[0], "is it the right Omni, with all its data, and the right cloud?", name)

			// The time begins anew with the first answer that can be believed.
			w.cloud.ensure = nil
			w.request("pool-0")
			w.wait(time.Hour)
			assert.Zero(t, w.cloud.count("remove pool-1"), name)

			w.wait(time.Hour)
			assert.NotContains(t, w.cloud.names(), "pool-1", name)
			assert.Contains(t, w.cloud.names(), "pool-0", name)
			p.stop()
		})
	}
}

func TestMachineThatIsAwayInBetweenIsNoOrphanYet(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a", sweeping(lifecycle.SweepRemove))

		w.request("pool-a")

		for range 10 {
			w.orphan("pool-x")
			w.wait(50 * time.Minute)
			w.cloud.drop("pool-x")
			w.wait(2 * time.Minute)
		}

		assert.Zero(t, w.cloud.count("remove pool-x"))
		assert.Empty(t, p.told())
		p.stop()
	})
}

func TestRequestThatComesAtTheLastMomentKeepsTheMachine(t *testing.T) {
	for _, at := range []string{"list", "get"} {
		alone(t, func(w *world) {
			p := w.process("a", sweeping(lifecycle.SweepRemove))

			w.request("pool-a")
			w.orphan("pool-x", func(m *driver.Machine) { m.UUID = driver.NewIdentity(m.Ref).UUID })
			w.wait(time.Hour - time.Minute)

			came := false
			come := func() {
				if !came {
					came = true

					w.request("pool-x")
				}
			}

			if at == "list" {
				p.line.list = func() error { come(); return nil }
			} else {
				p.line.get = func(ptr resource.Pointer) {
					if ptr.Type() == infra.MachineRequestType && ptr.ID() == "pool-x" {
						come()
					}
				}
			}

			w.wait(3 * time.Hour)
			assert.True(t, came, at)
			assert.Zero(t, w.cloud.count("remove pool-x"), at)
			assert.Contains(t, w.cloud.names(), "pool-x", at)

			w.teardown("pool-x")
			w.wait(time.Minute)
			assert.NotContains(t, w.cloud.names(), "pool-x", at)
			p.stop()
		})
	}
}

func TestWhatIsNotCertainlyOursIsNeverRemoved(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a", sweeping(lifecycle.SweepRemove))

		w.request("pool-a")
		w.request("pool-b")
		w.wait(time.Minute)

		// Renamed by somebody; made by another release, which kept no record; of a mark without a request; of another provider.
		w.cloud.mu.Lock()
		m := w.cloud.machines["pool-a"]
		m.ID = "my-favourite"
		w.cloud.machines["pool-a"] = m
		w.cloud.mu.Unlock()

		record := resource.NewMetadata("infra-provider:test", "Machines.test.infraprovider.sidero.dev", "pool-b", resource.VersionUndefined)
		require.NoError(t, w.st.Destroy(w.ctx, record, destroyedByProvider))

		w.orphan("damaged", func(m *driver.Machine) { m.RequestID = "" })
		w.orphan("foreign", func(m *driver.Machine) { m.ProviderID = "another" })

		w.wait(12 * time.Hour)
		assert.Equal(t, []string{"damaged", "foreign", "pool-a", "pool-b"}, w.cloud.names())

		for _, id := range []string{"", "damaged", "foreign", "pool-a", "pool-b"} {
			assert.Zero(t, w.cloud.count("remove "+id), id)
		}

		assert.Len(t, p.told(), 2)
		assert.Contains(t, p.told()[0], "unreadable : it carries the provider's mark, but not that of a request; it is left alone")
		p.stop()
	})
}

func TestStuckTeardownIsReportedWithItsErrorAndTriedAgain(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a", sweeping(lifecycle.SweepRemove))

		w.request("pool-a")
		w.wait(time.Second)

		w.cloud.remove = func() error { return driver.Terminalf("400 disk is locked") }
		w.teardown("pool-a")
		w.wait(59 * time.Minute)
		assert.Empty(t, p.told())

		before := w.cloud.count("remove pool-a")
		w.wait(3 * time.Minute)
		require.Len(t, p.told(), 1)
		assert.Contains(t, p.told()[0], "stuck pool-a: its machine is not removed")
		assert.Contains(t, p.told()[0], "400 disk is locked")
		assert.LessOrEqual(t, w.cloud.count("remove pool-a"), before+2)

		w.wait(5 * time.Hour)
		assert.Less(t, w.cloud.count("remove pool-a"), 6*12+10, "the pauses stay long")
		assert.NotEmpty(t, w.finalizers("pool-a"))

		w.cloud.remove = nil
		w.wait(15 * time.Minute)
		assert.Empty(t, w.finalizers("pool-a"))
		p.stop()
	})
}

func TestStuckTeardownGetsATurnPastItsPause(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a", sweeping(lifecycle.SweepRemove), func(c *lifecycle.Config) { c.SweepGrace = 5 * time.Minute })

		w.request("pool-a")
		w.wait(time.Second)

		w.cloud.remove = func() error {
			return &driver.Error{Kind: driver.KindTerminal, After: 24 * time.Hour, Err: errors.New("400 locked")}
		}
		w.teardown("pool-a")
		w.wait(time.Minute)
		assert.Equal(t, 1, w.cloud.count("remove pool-a"))

		w.cloud.remove = nil
		w.wait(6 * time.Minute)
		assert.Empty(t, w.finalizers("pool-a"))
		p.stop()
	})
}

func TestTeardownThatOmniHoldsUpIsReportedWithTheWayOut(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a")

		w.request("pool-a")
		w.wait(time.Second)
		w.setHeld(infra.NewMachineRequestStatus("pool-a").Metadata(), true)
		w.teardown("pool-a")
		w.wait(62 * time.Minute)

		require.Len(t, p.told(), 1)
		assert.Contains(t, p.told()[0], "stuck pool-a: Omni has not let go of its machine: ["+omniFinalizer+"]")
		assert.Contains(t, p.told()[0], "omnictl delete link "+driver.NewIdentity(driver.Ref{ProviderID: providerID, RequestID: "pool-a"}).UUID)
		assert.Zero(t, w.cloud.count("remove pool-a"))
		p.stop()
	})
}

func TestTeardownsThatBeganWhileNoProviderRanAreFinished(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a")
		w.requests(5)
		w.wait(time.Minute)
		p.stop()

		for i := range 5 {
			w.teardown(fmt.Sprintf("pool-%02d", i))
		}

		w.wait(time.Hour)

		p = w.process("b")
		w.wait(time.Minute)
		assert.Empty(t, w.cloud.names())
		assert.Len(t, p.seat.times(), 5, "each is removed once, and nothing is made")
		p.stop()
	})
}

// sweepOnce runs the command, whose time is that of the bubble.
func (w *world) sweepOnce(opts lifecycle.SweepOptions) (lifecycle.SweepReport, error) {
	p, cfg := w.newProcess("sweep")

	return lifecycle.Sweep(w.ctx, cfg, p.line, opts)
}

func TestDryRunReportsBesideARunningProvider(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a")

		w.request("pool-a")
		w.wait(time.Minute)

		report, err := w.sweepOnce(lifecycle.SweepOptions{})
		require.NoError(t, err)
		assert.Equal(t, lifecycle.SweepReport{Machines: 1, Requests: 1}, report)

		w.orphan("pool-x")

		var said []string

		started := time.Now()
		report, err = w.sweepOnce(lifecycle.SweepOptions{Progress: func(text string) { said = append(said, text) }})
		require.NoError(t, err)
		assert.Equal(t, time.Minute, time.Since(started))
		assert.Equal(t, []string{"the cloud shows 1 objects without a request; watching them for 1m0s"}, said)
		assert.Equal(t, 2, report.Machines)
		require.Len(t, report.Findings, 1)
		assert.Equal(t, lifecycle.FindingOrphan, report.Findings[0].Kind)
		assert.Equal(t, "vm-pool-x", report.Findings[0].Machine.ID)
		assert.False(t, report.Findings[0].Removed)
		assert.Contains(t, w.cloud.names(), "pool-x")
		p.stop()
	})
}

func TestSweepThatRemovesNeedsTheLease(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("host-a")

		w.request("pool-a")
		w.orphan("pool-x")
		w.wait(time.Minute)

		_, err := w.sweepOnce(lifecycle.SweepOptions{Remove: true})
		require.ErrorContains(t, err, `"host-a" holds the lease of this provider since 2000-01-01T00:0`)
		require.ErrorContains(t, err, "--sweep=remove")
		assert.Contains(t, w.cloud.names(), "pool-x")

		p.kill()

		report, err := w.sweepOnce(lifecycle.SweepOptions{Remove: true})
		require.NoError(t, err)
		require.Len(t, report.Findings, 1)
		assert.True(t, report.Findings[0].Removed, report.Findings[0].Detail)
		assert.Equal(t, []string{"pool-a"}, w.cloud.names())

		p = w.process("b")
		w.request("pool-b")
		w.wait(100 * time.Millisecond)
		assert.Contains(t, w.cloud.names(), "pool-b", "the lease is free at once")
		p.stop()
	})
}

func TestSweepFinishesStuckTeardowns(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a")
		w.requests(3)
		w.wait(time.Minute)
		p.stop()

		w.teardown("pool-00")
		w.teardown("pool-01")
		w.wait(time.Hour)

		report, err := w.sweepOnce(lifecycle.SweepOptions{})
		require.NoError(t, err)
		require.Len(t, report.Findings, 2)
		assert.Equal(t, lifecycle.FindingStuck, report.Findings[0].Kind)
		assert.Equal(t, "vm-pool-00", report.Findings[0].Machine.ID)
		assert.InDelta(t, time.Hour, time.Since(report.Findings[0].Since), float64(time.Minute))

		report, err = w.sweepOnce(lifecycle.SweepOptions{Remove: true})
		require.NoError(t, err)
		require.Len(t, report.Findings, 2)
		assert.True(t, report.Findings[0].Removed)
		assert.True(t, report.Findings[1].Removed)
		assert.Empty(t, w.finalizers("pool-00"))
		assert.Empty(t, w.finalizers("pool-01"))
		assert.Equal(t, []string{"pool-02"}, w.cloud.names())
	})
}

func TestSweepShowsWhatCannotBeRemovedAndEnds(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a")

		w.request("pool-a")
		w.wait(time.Minute)
		p.stop()
		w.orphan("pool-x")

		w.cloud.remove = func() error { return errors.New("500 broken") }

		started := time.Now()
		report, err := w.sweepOnce(lifecycle.SweepOptions{Remove: true})
		require.NoError(t, err)
		assert.Less(t, time.Since(started), 10*time.Minute)
		require.Len(t, report.Findings, 1)
		assert.False(t, report.Findings[0].Removed)
		assert.Contains(t, report.Findings[0].Detail, "500 broken")
	})
}

func TestSweepRemovesByTheWordOfAnEmptyOmniOnlyWhenToldTo(t *testing.T) {
	alone(t, func(w *world) {
		w.orphan("pool-x")
		w.orphan("damaged", func(m *driver.Machine) { m.RequestID = "" })

		report, err := w.sweepOnce(lifecycle.SweepOptions{Remove: true})
		require.NoError(t, err)
		assert.Contains(t, report.Refused, "wrong Omni")
		assert.Len(t, report.Findings, 2)
		assert.Len(t, w.cloud.names(), 2)

		report, err = w.sweepOnce(lifecycle.SweepOptions{Remove: true, TrustEmpty: true})
		require.NoError(t, err)
		assert.Empty(t, report.Refused)
		require.Len(t, report.Findings, 2)
		assert.True(t, report.Findings[0].Removed)
		assert.Equal(t, []string{"damaged"}, w.cloud.names())
	})
}

func TestSweepFailsWhenEitherSideCannotBeSeen(t *testing.T) {
	alone(t, func(w *world) {
		w.cloud.list = func() error { return errors.New("503 of the cloud") }

		_, err := w.sweepOnce(lifecycle.SweepOptions{})
		require.ErrorContains(t, err, "list machines: 503 of the cloud")

		p, cfg := w.newProcess("sweep")
		p.line.list = func() error { return errors.New("503 of Omni") }

		_, err = lifecycle.Sweep(w.ctx, cfg, p.line, lifecycle.SweepOptions{})
		require.ErrorContains(t, err, "list machine requests: 503 of Omni")
	})
}

func TestSweepModeIsChecked(t *testing.T) {
	_, err := lifecycle.New(lifecycle.Config{ID: providerID, Driver: &cloud{}, Logger: zap.NewNop(), Sweep: "always"})
	require.ErrorContains(t, err, `Sweep is "always": want off, report or remove`)
}

func TestRemovalThatDoesNotEndHoldsUpNoOtherOfASweep(t *testing.T) {
	alone(t, func(w *world) {
		w.orphan("pool-a")
		w.orphan("pool-b")

		w.cloud.set(func(_ context.Context, call, request string) error {
			if call == "remove" && request == "pool-a" {
				time.Sleep(time.Hour)
			}

			return nil
		})

		report, err := w.sweepOnce(lifecycle.SweepOptions{Remove: true, TrustEmpty: true})
		require.NoError(t, err)
		require.Len(t, report.Findings, 2)
		assert.False(t, report.Findings[0].Removed)
		assert.Contains(t, report.Findings[0].Detail, `removing the machine for "pool-a" is under way`)
		assert.True(t, report.Findings[1].Removed, report.Findings[1].Detail)

		w.wait(time.Hour)
	})
}

func TestSweepTriesAWriteAgainThatLostARace(t *testing.T) {
	alone(t, func(w *world) {
		p := w.process("a")
		w.request("pool-a")
		w.request("pool-b")
		w.wait(time.Minute)
		p.stop()
		w.teardown("pool-a")
		w.wait(time.Hour)

		races := 0
		w.fault = func(verb string, kind resource.Type) error {
			if verb == "destroy" && kind == recordType {
				if races++; races <= 2 {
					return inmem.ErrVersionConflict(infra.NewMachineRequest("pool-a").Metadata(), resource.VersionUndefined, resource.VersionUndefined)
				}
			}

			return nil
		}

		report, err := w.sweepOnce(lifecycle.SweepOptions{Remove: true})
		require.NoError(t, err)
		require.Len(t, report.Findings, 1)
		assert.True(t, report.Findings[0].Removed, report.Findings[0].Detail)
		assert.Greater(t, races, 2)
	})
}
