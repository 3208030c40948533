package lifecycle_test

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/require"
)

// wire is the provider's connection to Omni: it counts calls, and delays or hides what watches say.
type wire struct {
	state.State
	world *world
}

// note counts a call; a write may fail before it reaches Omni.
func (c *wire) note(verb string, ptr resource.Pointer) error {
	kind, _, _ := strings.Cut(ptr.Type(), ".")

	c.world.mu.Lock()
	defer c.world.mu.Unlock()

	c.world.calls = append(c.world.calls, verb+" "+kind)

	if c.world.wireFault != nil && verb != "get" && kind != "InfraProviderHealthStatuses" {
		return c.world.wireFault()
	}

	return nil
}

func (c *wire) Get(ctx context.Context, p resource.Pointer, o ...state.GetOption) (resource.Resource, error) {
	if err := c.note("get", p); err != nil {
		return nil, err
	}

	return c.State.Get(ctx, p, o...)
}

func (c *wire) Create(ctx context.Context, r resource.Resource, o ...state.CreateOption) error {
	if err := c.note("create", r.Metadata()); err != nil {
		return err
	}

	return c.State.Create(ctx, r, o...)
}

func (c *wire) Update(ctx context.Context, r resource.Resource, o ...state.UpdateOption) error {
	if err := c.note("update", r.Metadata()); err != nil {
		return err
	}

	return c.State.Update(ctx, r, o...)
}

func (c *wire) Destroy(ctx context.Context, p resource.Pointer, o ...state.DestroyOption) error {
	if err := c.note("destroy", p); err != nil {
		return err
	}

	return c.State.Destroy(ctx, p, o...)
}

func (c *wire) Teardown(ctx context.Context, p resource.Pointer, o ...state.TeardownOption) (bool, error) {
	if err := c.note("teardown", p); err != nil {
		return false, err
	}

	return c.State.Teardown(ctx, p, o...)
}

func (c *wire) WatchKindAggregated(ctx context.Context, kind resource.Kind, to chan<- []state.Event, o ...state.WatchKindOption) error {
	lag, hidden := c.world.lag, c.world.hidden == kind.Type()
	if lag == 0 && !hidden {
		return c.State.WatchKindAggregated(ctx, kind, to, o...)
	}

	from := make(chan []state.Event)

	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case events := <-from:
				time.Sleep(lag)

				if hidden {
					events = slices.DeleteFunc(events, func(e state.Event) bool { return e.Type == state.Created })
				}

				select {
				case <-ctx.Done():
					return
				case to <- events:
				}
			}
		}
	}()

	return c.State.WatchKindAggregated(ctx, kind, from, o...)
}

// takeCalls returns the calls to Omni since it was last asked, but for those that tell of the provider's own health.
func (w *world) takeCalls() []string {
	w.mu.Lock()
	defer w.mu.Unlock()

	calls := slices.DeleteFunc(w.calls, func(call string) bool { return strings.HasSuffix(call, "InfraProviderHealthStatuses") })
	w.calls = nil

	return calls
}

// omniFinalizer is the finalizer of a controller of Omni's.
const omniFinalizer = "MachineRequestStatusCleanupController"

// holdAll plays the controllers of Omni that put a finalizer on whatever a provider makes. When it is torn down they let go
// after the pause; never when that is negative.
func (w *world) holdAll(pause time.Duration) {
	for _, kind := range []resource.Type{infra.MachineRequestStatusType, infra.ConfigPatchRequestType} {
		ch := make(chan state.Event)
		require.NoError(w.t, w.st.WatchKind(w.ctx, resource.NewMetadata("infra-provider", kind, "", resource.VersionUndefined), ch))

		go func() {
			for {
				select {
				case <-w.ctx.Done():
					return
				case event := <-ch:
					switch {
					case event.Type == state.Created:
						w.setHeld(event.Resource.Metadata(), true)
					case event.Type == state.Updated && event.Resource.Metadata().Phase() == resource.PhaseTearingDown && pause >= 0:
						time.Sleep(pause)
						w.setHeld(event.Resource.Metadata(), false)
					}
				}
			}
		}()
	}
}

// setHeld puts Omni's finalizer on a resource of the provider's, or takes it off.
func (w *world) setHeld(md resource.Pointer, held bool) {
	_, err := w.st.UpdateWithConflicts(w.ctx, md, func(r resource.Resource) error {
		if held {
			r.Metadata().Finalizers().Add(omniFinalizer)
		} else {
			r.Metadata().Finalizers().Remove(omniFinalizer)
		}

		return nil
	}, state.WithUpdateOwner("test.ProvisionController"), state.WithExpectedPhaseAny())
	if !state.IsNotFoundError(err) {
		require.NoError(w.t, err)
	}
}

// faulty lets a test fail calls to the state.
type faulty struct {
	state.CoreState
	world *world
}

func (f *faulty) fail(verb string, kind resource.Type) error {
	f.world.cloud.sync()

	if f.world.fault == nil {
		return nil
	}

	return f.world.fault(verb, kind)
}

func (f *faulty) Create(ctx context.Context, r resource.Resource, o ...state.CreateOption) error {
	if err := f.fail("create", r.Metadata().Type()); err != nil {
		return err
	}

	return f.CoreState.Create(ctx, r, o...)
}

func (f *faulty) Update(ctx context.Context, r resource.Resource, o ...state.UpdateOption) error {
	if err := f.fail("update", r.Metadata().Type()); err != nil {
		return err
	}

	return f.CoreState.Update(ctx, r, o...)
}

func (f *faulty) Destroy(ctx context.Context, r resource.Pointer, o ...state.DestroyOption) error {
	if err := f.fail("destroy", r.Type()); err != nil {
		return err
	}

	return f.CoreState.Destroy(ctx, r, o...)
}
