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

// note counts a call. It may hang, and a write may fail before it reaches Omni.
func (c *wire) note(ctx context.Context, verb string, ptr resource.Pointer) error {
	kind, _, _ := strings.Cut(ptr.Type(), ".")

	c.world.mu.Lock()
	hangs := c.world.hangs
	c.world.mu.Unlock()

	if hangs != nil && hangs(verb, kind) {
		<-ctx.Done()

		return ctx.Err()
	}

	c.world.mu.Lock()
	defer c.world.mu.Unlock()

	c.world.calls = append(c.world.calls, verb+" "+kind)

	if c.world.wireFault != nil && verb != "get" && kind != "InfraProviderHealthStatuses" {
		return c.world.wireFault()
	}

	if c.world.deadAt != nil && kind != "InfraProviderHealthStatuses" && !slices.Contains([]string{"get", "list", "watch"}, verb) {
		return c.world.deadAt(kind)
	}

	return nil
}

func (c *wire) Get(ctx context.Context, p resource.Pointer, o ...state.GetOption) (resource.Resource, error) {
	if err := c.note(ctx, "get", p); err != nil {
		return nil, err
	}

	return c.State.Get(ctx, p, o...)
}

func (c *wire) List(ctx context.Context, k resource.Kind, o ...state.ListOption) (resource.List, error) {
	if err := c.note(ctx, "list", resource.NewMetadata(k.Namespace(), k.Type(), "", resource.VersionUndefined)); err != nil {
		return resource.List{}, err
	}

	return c.State.List(ctx, k, o...)
}

func (c *wire) Create(ctx context.Context, r resource.Resource, o ...state.CreateOption) error {
	if err := c.note(ctx, "create", r.Metadata()); err != nil {
		return err
	}

	return c.State.Create(ctx, r, o...)
}

func (c *wire) Update(ctx context.Context, r resource.Resource, o ...state.UpdateOption) error {
	if err := c.note(ctx, "update", r.Metadata()); err != nil {
		return err
	}

	return c.State.Update(ctx, r, o...)
}

func (c *wire) Destroy(ctx context.Context, p resource.Pointer, o ...state.DestroyOption) error {
	if err := c.note(ctx, "destroy", p); err != nil {
		return err
	}

	return c.State.Destroy(ctx, p, o...)
}

func (c *wire) Teardown(ctx context.Context, p resource.Pointer, o ...state.TeardownOption) (bool, error) {
	if err := c.note(ctx, "teardown", p); err != nil {
		return false, err
	}

	return c.State.Teardown(ctx, p, o...)
}

func (c *wire) WatchKindAggregated(ctx context.Context, kind resource.Kind, to chan<- []state.Event, o ...state.WatchKindOption) error {
	if err := c.note(ctx, "watch", resource.NewMetadata(kind.Namespace(), kind.Type(), "", resource.VersionUndefined)); err != nil {
		return err
	}

	from := make(chan []state.Event)

	c.world.mu.Lock()
	if c.world.cuts == nil {
		c.world.cuts = map[resource.Type]chan error{}
	}

	cut := make(chan error, 1)
	c.world.cuts[kind.Type()] = cut
	c.world.mu.Unlock()

	go func() {
		for {
			var events []state.Event

			select {
			case <-ctx.Done():
				return
			case err := <-cut:
				events = []state.Event{{Type: state.Errored, Error: err}}
			case events = <-from:
				time.Sleep(c.world.lag)

				if c.world.hidden == kind.Type() {
					events = slices.DeleteFunc(events, func(e state.Event) bool { return e.Type == state.Created })
				}

				if c.world.isMuted(kind.Type()) {
					continue
				}
			}

			select {
			case <-ctx.Done():
				return
			case to <- events:
			}
		}
	}()

	return c.State.WatchKindAggregated(ctx, kind, from, o...)
}

// setWireFault fails writes of the provider from now on, before they reach Omni.
func (w *world) setWireFault(fault func() error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.wireFault = fault
}

// setDeadAt says from which write on the provider's process is dead; nil is a process that lives.
func (w *world) setDeadAt(deadAt func(kind string) error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.deadAt = deadAt
}

// setHangs says which calls get no answer from now on.
func (w *world) setHangs(hangs func(verb, kind string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.hangs = hangs
}

func (w *world) isMuted(kind resource.Type) bool {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.muted == kind
}

// mute drops all news of a kind, until the watch of it is cut.
func (w *world) mute(kind resource.Type) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.muted = kind
}

// cut breaks the watch of a kind.
func (w *world) cut(kind resource.Type, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()

	w.muted = ""

	require.Contains(w.t, w.cuts, kind)
	w.cuts[kind] <- err
}

// takeCalls returns the calls to Omni since it was last asked, but for those that tell of the provider's own health.
func (w *world) takeCalls() []string {
	w.mu.Lock()
	defer w.mu.Unlock()

	calls := slices.DeleteFunc(w.calls, func(call string) bool {
		return strings.HasSuffix(call, "InfraProviderHealthStatuses") || strings.HasSuffix(call, " Leases")
	})
	w.calls = nil

	return calls
}

// omniFinalizer is the finalizer of a controller of Omni's.
const omniFinalizer = "MachineRequestStatusCleanupController"

// holdAll plays the controllers of Omni that put a finalizer on whatever a provider makes. When it is torn down they let go
// after the pause; never when that is negative.
func (w *world) holdAll(pause time.Duration) {
	for _, kind := range []resource.Type{infra.MachineRequestStatusType, infra.ConfigPatchRequestType} {
		md := resource.NewMetadata("infra-provider", kind, "", resource.VersionUndefined)
		ch := make(chan state.Event)
		require.NoError(w.t, w.st.WatchKind(w.ctx, md, ch))

		go func() {
			for {
				select {
				case <-w.ctx.Done():
					return
				case event := <-ch:
					switch {
					case event.Type == state.Errored:
						require.NoError(w.t, w.st.WatchKind(w.ctx, md, ch, state.WithBootstrapContents(true)))
					case event.Resource == nil || event.Type == state.Destroyed:
					case event.Resource.Metadata().Phase() == resource.PhaseRunning:
						if event.Type == state.Created {
							w.setHeld(event.Resource.Metadata(), true)
						}
					case pause >= 0 && event.Resource.Metadata().Finalizers().Has(omniFinalizer):
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
