package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

func TestPlaceIsChosenOnceAndTheMachineMadeThere(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		turn := 0
		s.choose = func(req driver.Request) (string, error) {
			assert.Empty(t, req.Place)

			turn++

			return []string{"a", "b", "c"}[turn%3], nil
		}

		s.set("b", cut)
		w.request("pool-a")
		w.wait(10 * time.Minute)
		assert.Equal(t, 1, w.cloud.count("place pool-a"))
		assert.Greater(t, w.cloud.count("plan pool-a"), 5)
		assert.Contains(t, w.failure("pool-a"), "plan: no route to host", "the place that was chosen is not given up")
		assert.Equal(t, "b", w.info("pool-a").Place)

		w.stop()
		s.set("b", "")
		w.start()
		w.wait(time.Minute)
		assert.Equal(t, 1, w.cloud.count("place pool-a"), "nor by another process")
		assert.Equal(t, []string{"b/pool-a"}, w.cloud.names())

		w.teardown("pool-a")
		w.wait(time.Minute)
		assert.Empty(t, w.finalizers("pool-a"))
		assert.Equal(t, 1, w.cloud.count("remove-from pool-a b"))
		assert.Zero(t, w.cloud.count("remove pool-a"), "no other place is asked")
	})
}

func (w *world) info(id string) lifecycle.MachineInfo {
	infos, err := w.operator().Machines(w.ctx)
	require.NoError(w.t, err)

	for _, info := range infos {
		if info.Request == id {
			return info
		}
	}

	return lifecycle.MachineInfo{}
}

func TestErrorOfAChoiceIsShownByItsKind(t *testing.T) {
	for name, tt := range map[string]struct {
		err   error
		stage specs.MachineRequestStatusSpec_Stage
		want  string
	}{
		"terminal":  {driver.Terminalf(`class data: host "z": want one of a, b, c`), specs.MachineRequestStatusSpec_FAILED, `place: class data: host "z": want one of a, b, c`},
		"capacity":  {driver.Capacity(errors.New("no host has 64 GiB")), specs.MachineRequestStatusSpec_PROVISIONING, "place: no host has 64 GiB"},
		"transient": {errors.New("connection reset"), specs.MachineRequestStatusSpec_PROVISIONING, "place: connection reset"},
	} {
		t.Run(name, func(t *testing.T) {
			runSites(t, func(w *world, s *sites) {
				s.choose = func(driver.Request) (string, error) { return "", tt.err }
				w.request("pool-a")
				w.wait(time.Second)
				assert.Contains(t, w.failure("pool-a"), tt.want)
				assert.Equal(t, tt.stage, w.stage("pool-a"))
				assert.Zero(t, w.cloud.count("plan pool-a"))

				s.at("b")
				w.wait(15 * time.Minute)
				assert.Equal(t, []string{"b/pool-a"}, w.cloud.names())
				assert.Empty(t, w.failure("pool-a"))
			})
		})
	}
}

func TestChoiceOfAPlaceThatIsNoneMakesNothing(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		s.at("z")
		w.request("pool-a")
		w.wait(time.Minute)
		assert.Contains(t, w.failure("pool-a"), `it chose the place "z", and has only ["a" "b" "c"]`)
		assert.Empty(t, w.info("pool-a").Place)
		assert.Zero(t, w.cloud.count("plan pool-a"))
	})
}

// crash ends a process at one of the points at which it speaks to Omni or the cloud: what it says from then on is not heard.
type crash struct {
	state.State

	mu    sync.Mutex
	point int
	at    int
	// reply says that what is said at the point has its effect, and only the answer is lost.
	reply bool
}

// step returns false when the process is gone before what it is about to say, and whether its answer is lost.
func (c *crash) step(ctx context.Context) (said, answered bool) {
	c.mu.Lock()
	point := c.point
	c.point++
	c.mu.Unlock()

	said, answered = point < c.at || point == c.at && c.reply, point < c.at
	if !said {
		<-ctx.Done()
	}

	return said, answered
}

func (c *crash) write(ctx context.Context, r resource.Pointer, f func() error) error {
	// The lease and the heartbeat go on by the clock.
	if kind := r.Type(); !strings.HasPrefix(kind, "Machine") {
		return f()
	}

	said, answered := c.step(ctx)
	if !said {
		return ctx.Err()
	}

	err := f()

	if !answered {
		<-ctx.Done()

		return ctx.Err()
	}

	return err
}

func (c *crash) Create(ctx context.Context, r resource.Resource, o ...state.CreateOption) error {
	return c.write(ctx, r.Metadata(), func() error { return c.State.Create(ctx, r, o...) })
}

func (c *crash) Update(ctx context.Context, r resource.Resource, o ...state.UpdateOption) error {
	return c.write(ctx, r.Metadata(), func() error { return c.State.Update(ctx, r, o...) })
}

func (c *crash) Teardown(ctx context.Context, r resource.Pointer, o ...state.TeardownOption) (ready bool, err error) {
	err = c.write(ctx, r, func() (err error) {
		ready, err = c.State.Teardown(ctx, r, o...)

		return err
	})

	return ready, err
}

func (c *crash) Destroy(ctx context.Context, r resource.Pointer, o ...state.DestroyOption) error {
	return c.write(ctx, r, func() error { return c.State.Destroy(ctx, r, o...) })
}

// crashing starts a process that is gone at a point, and kills it after a while. It returns whether the point was reached.
func (w *world) crashing(s *sites, at int, reply bool, meanwhile func()) bool {
	p, cfg := w.newProcess("crashing", bySites(s))
	c := &crash{State: p.line.State, at: at, reply: reply}
	p.line.State = c
	s.before = func(ctx context.Context, call, _ string) error {
		if call == "list" {
			return nil
		}

		if said, _ := c.step(ctx); !said {
			return ctx.Err()
		}

		return nil
	}

	provider, err := lifecycle.New(cfg)
	require.NoError(w.t, err)

	ctx, cancel := context.WithCancel(w.ctx)
	p.cancel = cancel

	go func() { p.done <- provider.Run(ctx, p.line) }()

	w.wait(time.Second)
	meanwhile()
	w.wait(time.Second)
	p.kill()

	s.before = nil

	return c.point > at
}

func TestCrashAtAnyPointLeavesOneMachineAtItsPlace(t *testing.T) {
	for _, reply := range []bool{false, true} {
		reached := true

		for at := 0; reached; at++ {
			runSitesAlone(t, func(w *world, s *sites) {
				s.choose = func(driver.Request) (string, error) {
					return []string{"a", "b", "c"}[w.cloud.count("place pool-a")%3], nil
				}

				reached = w.crashing(s, at, reply, func() { w.request("pool-a") })

				p := w.process("next", bySites(s))
				w.wait(2 * time.Minute)

				require.Len(t, w.cloud.names(), 1, "point %d, answer lost %v", at, reply)
				assert.Equal(t, w.info("pool-a").Place+"/pool-a", w.cloud.names()[0])
				assert.LessOrEqual(t, w.cloud.count("place pool-a"), 2)
				assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage("pool-a"))

				other := map[string]string{"a": "b", "b": "c", "c": "a"}[w.info("pool-a").Place]
				s.set(other, cut)
				w.wait(time.Minute)
				w.teardown("pool-a")
				w.wait(time.Minute)
				assert.Empty(t, w.finalizers("pool-a"), "point %d: it is not at %s, and what is recorded says so", at, other)
				assert.Empty(t, w.cloud.names())
				assert.Empty(t, w.left())
				p.stop()
			})

			require.Less(t, at, 50)
		}
	}
}

// runSitesAlone is runSites without a provider.
func runSitesAlone(t *testing.T, f func(w *world, s *sites)) {
	runSites(t, func(w *world, s *sites) {
		w.stop()
		f(w, s)
	})
}

func TestCrashInATeardownAtAPlaceLeavesNothing(t *testing.T) {
	for _, reply := range []bool{false, true} {
		reached := true

		for at := 0; reached; at++ {
			runSites(t, func(w *world, s *sites) {
				w.madeAt(s, "b", "pool-a")
				w.stop()
				reached = w.crashing(s, at, reply, func() { w.teardown("pool-a") })

				p := w.process("next", bySites(s))
				w.wait(2 * time.Minute)
				assert.Empty(t, w.finalizers("pool-a"), "point %d", at)
				assert.Empty(t, w.cloud.names())
				assert.Empty(t, w.left())
				p.stop()
			})

			require.Less(t, at, 50)
		}
	}
}

func TestPlaceThatHangsDelaysNoOther(t *testing.T) {
	runSites(t, func(w *world, s *sites) {
		for i := range 20 {
			w.madeAt(s, "b", fmt.Sprintf("old-%02d", i))
		}

		s.set("b", hung)

		// Its place is busy with twenty machines that are to be made, twenty that are to be removed, and all that is looked at.
		for i := range 20 {
			w.request(fmt.Sprintf("stuck-%02d", i))
			w.teardown(fmt.Sprintf("old-%02d", i))
		}

		w.wait(2 * time.Second)
		s.at("a")

		for i := range 20 {
			w.request(fmt.Sprintf("new-%02d", i))
		}

		w.wait(2 * time.Second)

		for i := range 20 {
			require.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage(fmt.Sprintf("new-%02d", i)))
			w.teardown(fmt.Sprintf("new-%02d", i))
		}

		w.wait(3 * time.Second)

		for i := range 20 {
			require.Empty(t, w.finalizers(fmt.Sprintf("new-%02d", i)), "removals ask their own place alone")
		}

		w.wait(time.Hour)
		s.set("b", "")
		w.wait(10 * time.Minute)

		for i := range 20 {
			assert.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage(fmt.Sprintf("stuck-%02d", i)), "the place is back")
			assert.Empty(t, w.finalizers(fmt.Sprintf("old-%02d", i)))
		}

		assert.Len(t, w.cloud.names(), 20)
	})
}
