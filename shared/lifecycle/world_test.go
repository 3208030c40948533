package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/cosi-project/runtime/pkg/state/registry"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

const providerID = "test"

var (
	ownedByProvider     = state.WithUpdateOwner("test.ProvisionController")
	destroyedByProvider = state.WithDestroyOwner("test.ProvisionController")
)

// cloud is a driver whose machines are entries of a map. It is the smallest subject that the library can drive; what a real
// cloud does to it is the business of the conformance suite.
type cloud struct {
	mu       sync.Mutex
	machines map[string]driver.Machine
	calls    []string
	// lists and checks count the calls that belong to no machine; blind makes List miss every machine.
	lists, checks int
	blind         bool

	// quick is how many phases that do nothing come before the one that makes the machine.
	quick int
	// before is told of each call, with the request that it is for, and may fail it, delay it or panic.
	before func(ctx context.Context, call, request string) error
	// plan, ensure and remove stand in for the method when they are not nil.
	plan   func(driver.Request) error
	ensure func(ctx context.Context, t driver.Task) error
	remove func() error
	list   func() error
	check  func(context.Context) error
}

// sync puts what the test set between two waits before what the provider's calls read after them.
func (c *cloud) sync() {
	c.mu.Lock()
	defer c.mu.Unlock()
}

func (c *cloud) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.calls = append(c.calls, fmt.Sprintf(format, args...))
}

// called tells the test of a call.
func (c *cloud) called(ctx context.Context, call, request string) error {
	c.mu.Lock()
	before := c.before
	c.mu.Unlock()

	if before == nil {
		return nil
	}

	return before(ctx, call, request)
}

// set sets what is told of each call.
func (c *cloud) set(before func(ctx context.Context, call, request string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.before = before
}

func (c *cloud) count(call string) int {
	c.mu.Lock()
	defer c.mu.Unlock()

	n := 0

	for _, made := range c.calls {
		if made == call {
			n++
		}
	}

	return n
}

func (c *cloud) names() []string {
	c.mu.Lock()
	defer c.mu.Unlock()

	return slices.Sorted(maps.Keys(c.machines))
}

func (c *cloud) drop(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.machines, id)
}

func (c *cloud) Plan(ctx context.Context, req driver.Request) (driver.Plan, error) {
	if err := c.called(ctx, "plan", req.RequestID); err != nil {
		return driver.Plan{}, err
	}

	c.sync()

	if c.plan != nil {
		if err := c.plan(req); err != nil {
			return driver.Plan{}, err
		}
	}

	phases := make([]driver.Phase, 0, c.quick+1)
	for i := range c.quick {
		phases = append(phases, driver.Phase{Name: fmt.Sprintf("prepare-%d", i), Ensure: func(context.Context, driver.Task) error { return nil }})
	}

	return driver.Plan{
		UUID:    req.Identity.UUID,
		Names:   map[string]string{"machine": req.RequestID},
		Patches: map[string]string{"provider-id": "machine: {}"},
		Phases: append(phases, driver.Phase{Name: "create-machine", Ensure: func(ctx context.Context, t driver.Task) error {
			c.note("create %s", t.Request.RequestID)

			if err := c.called(ctx, "ensure", t.Request.RequestID); err != nil {
				return err
			}

			c.sync()

			if c.ensure != nil {
				if err := c.ensure(ctx, t); err != nil {
					return err
				}
			}

			c.mu.Lock()
			defer c.mu.Unlock()

			if _, ok := c.machines[t.Request.RequestID]; !ok {
				c.machines[t.Request.RequestID] = driver.Machine{
					Ref: t.Request.Ref, ID: "vm-" + t.Request.RequestID, UUID: t.Request.Identity.UUID, Power: driver.PowerOn, Boot: "1",
				}
			}

			return nil
		}}),
	}, nil
}

func (c *cloud) Find(ctx context.Context, ref driver.Ref) (driver.Machine, error) {
	if err := c.called(ctx, "find", ref.RequestID); err != nil {
		return driver.Machine{}, err
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	m, ok := c.machines[ref.RequestID]
	if !ok {
		return m, driver.NotFound("machine of %s", ref)
	}

	return m, nil
}

func (c *cloud) List(ctx context.Context, _ string) ([]driver.Machine, error) {
	if err := c.called(ctx, "list", ""); err != nil {
		return nil, err
	}

	c.sync()

	if c.list != nil {
		if err := c.list(); err != nil {
			return nil, err
		}
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.lists++

	if c.blind {
		return nil, nil
	}

	return slices.Collect(maps.Values(c.machines)), nil
}

func (c *cloud) Remove(ctx context.Context, ref driver.Ref) (bool, error) {
	c.note("remove %s", ref.RequestID)

	if err := c.called(ctx, "remove", ref.RequestID); err != nil {
		return false, err
	}

	c.sync()

	if c.remove != nil {
		if err := c.remove(); err != nil {
			return false, err
		}
	}

	c.drop(ref.RequestID)

	return true, nil
}

func (c *cloud) Check(ctx context.Context) error {
	c.mu.Lock()
	c.checks++
	c.mu.Unlock()

	if err := c.called(ctx, "check", ""); err != nil {
		return err
	}

	c.sync()

	if c.check != nil {
		return c.check(ctx)
	}

	return nil
}

func (c *cloud) SetPower(ctx context.Context, ref driver.Ref, want driver.Power) error {
	c.note("power %s %s", ref.RequestID, want)

	if err := c.called(ctx, "power", ref.RequestID); err != nil {
		return err
	}

	c.change(ref, func(m *driver.Machine) { m.Power = want })

	return nil
}

func (c *cloud) Reboot(ctx context.Context, ref driver.Ref) error {
	c.note("reboot %s", ref.RequestID)

	if err := c.called(ctx, "reboot", ref.RequestID); err != nil {
		return err
	}

	c.change(ref, func(m *driver.Machine) { m.Boot += "1" })

	return nil
}

// watching is a cloud that tells of changes, though none ever comes.
type watching struct{ *cloud }

func (c watching) Watch(ctx context.Context, _ string, _ func(driver.Ref)) error {
	if err := c.called(ctx, "watch", ""); err != nil {
		return err
	}

	<-ctx.Done()

	return ctx.Err()
}

func (c *cloud) change(ref driver.Ref, f func(*driver.Machine)) {
	c.mu.Lock()
	defer c.mu.Unlock()

	m := c.machines[ref.RequestID]
	f(&m)
	c.machines[ref.RequestID] = m
}

// world is a COSI state with what Omni puts into it for a provider. The test plays Omni.
type world struct {
	t     *testing.T
	ctx   context.Context
	st    state.State
	cloud *cloud
	// driver is the cloud, unless the test says otherwise.
	driver driver.Driver
	logs   *observer.ObservedLogs
	stop   func()
	fault  func(verb string, kind resource.Type) error
	// lag is how late the provider is told of each change; hidden drops what a full look says of a kind.
	lag    time.Duration
	hidden resource.Type

	mu    sync.Mutex
	calls []string
	// hangs says which calls get no answer.
	hangs func(verb, kind string) bool
	// cuts breaks the last watch of each kind; muted drops what one says.
	cuts  map[resource.Type]chan error
	muted resource.Type
	// wireFault fails writes of the provider before they reach Omni.
	wireFault func() error
	// deadAt fails writes of the provider by their kind, as a process that has crashed sends none.
	deadAt func(kind string) error
}

// run runs f in a bubble with a running provider, and checks that the provider ends in seconds and leaves no goroutine.
func run(t *testing.T, f func(w *world), setup ...func(*world)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()

		w := &world{t: t, ctx: ctx, cloud: &cloud{machines: map[string]driver.Machine{}}}
		w.driver = w.cloud
		w.st = state.WrapCore(&faulty{CoreState: namespaced.NewState(inmem.Build), world: w})

		require.NoError(t, registry.NewResourceRegistry(w.st).RegisterDefault(ctx))
		require.NoError(t, registry.NewResourceRegistry(w.st).Register(ctx, siderolink.NewProviderJoinConfig("")))

		join := siderolink.NewProviderJoinConfig(providerID)
		join.TypedSpec().Value.JoinToken = "canary-join-token"
		join.Metadata().Labels().Set(omni.LabelInfraProviderID, providerID)

		api := siderolink.NewAPIConfig()
		api.TypedSpec().Value.MachineApiAdvertisedUrl = "grpc://omni.test:8090"
		api.TypedSpec().Value.LogsPort, api.TypedSpec().Value.EventsPort = 8092, 8091

		require.NoError(t, errors.Join(w.st.Create(ctx, join), w.st.Create(ctx, api)))

		for _, f := range setup {
			f(w)
		}

		w.start()
		w.wait(0) // so that what the test sets first is not set beside the provider's first calls
		f(w)
		w.stop()
	})
}

// start starts a provider, as a new process would.
func (w *world) start() {
	core, logs := observer.New(zap.DebugLevel)
	w.logs = logs
	logger := zap.New(zapcore.NewTee(zaptest.NewLogger(w.t).Core(), core))

	provider, err := lifecycle.New(lifecycle.Config{ID: providerID, Driver: w.driver, Logger: logger, Schema: "{}"})
	require.NoError(w.t, err)

	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)

	go func() { done <- provider.Run(ctx, &wire{State: w.st, world: w}) }()

	w.stop = func() {
		asked := time.Now()

		cancel()
		require.NoError(w.t, <-done)
		require.Less(w.t, time.Since(asked), 6*time.Second, "shutdown takes seconds")

		w.stop = func() {}
	}
}

func (w *world) request(id string, change ...func(*infra.MachineRequest)) {
	r := infra.NewMachineRequest(id)
	r.Metadata().Labels().Set(omni.LabelInfraProviderID, providerID)
	r.Metadata().Labels().Set(omni.LabelMachineRequestSet, "pool")
	r.TypedSpec().Value.TalosVersion = "1.13.5"

	for _, f := range change {
		f(r)
	}

	require.NoError(w.t, w.st.Create(w.ctx, r))
}

// ofNoSet makes a request one that no set made.
func ofNoSet(r *infra.MachineRequest) { r.Metadata().Labels().Delete(omni.LabelMachineRequestSet) }

// made requests a machine, waits until it is provisioned and returns its UUID.
func (w *world) made(id string, change ...func(*infra.MachineRequest)) string {
	w.request(id, change...)
	w.wait(time.Second)

	status, ok := w.status(id)
	require.True(w.t, ok)
	require.Equal(w.t, specs.MachineRequestStatusSpec_PROVISIONED, status.TypedSpec().Value.Stage, status.TypedSpec().Value.Error)

	return status.TypedSpec().Value.Id
}

// joined is made, for a machine that has joined Omni.
func (w *world) joined(id string, change ...func(*infra.MachineRequest)) string {
	uuid := w.made(id, change...)
	w.join(id, uuid)
	w.wait(time.Second)

	return uuid
}

// stage and failure are what the request's status says; there has to be one.
func (w *world) stage(id string) specs.MachineRequestStatusSpec_Stage {
	status, ok := w.status(id)
	require.True(w.t, ok)

	return status.TypedSpec().Value.Stage
}

func (w *world) failure(id string) string {
	status, ok := w.status(id)
	require.True(w.t, ok)

	return status.TypedSpec().Value.Error
}

func (w *world) edit(id string, change func(*infra.MachineRequest)) {
	_, err := w.st.UpdateWithConflicts(w.ctx, infra.NewMachineRequest(id).Metadata(), func(r resource.Resource) error {
		change(r.(*infra.MachineRequest)) //nolint:forcetypeassert,errcheck // read by its id

		return nil
	})
	require.NoError(w.t, err)
}

func (w *world) annotate(id, key, value string) {
	w.edit(id, func(r *infra.MachineRequest) { r.Metadata().Annotations().Set(key, value) })
}

// join registers the request's machine, as Omni does when it has joined.
func (w *world) join(id, uuid string) {
	r := infra.NewMachineRegistration(uuid)
	r.Metadata().Labels().Set(omni.LabelInfraProviderID, providerID)
	r.Metadata().Labels().Set(omni.LabelMachineRequest, id)
	require.NoError(w.t, w.st.Create(w.ctx, r))
}

func (w *world) teardown(id string) {
	_, err := w.st.Teardown(w.ctx, infra.NewMachineRequest(id).Metadata())
	require.NoError(w.t, err)
}

func (w *world) status(id string) (*infra.MachineRequestStatus, bool) {
	res, err := w.st.Get(w.ctx, infra.NewMachineRequestStatus(id).Metadata())
	if state.IsNotFoundError(err) {
		return nil, false
	}

	require.NoError(w.t, err)

	return res.(*infra.MachineRequestStatus), true //nolint:forcetypeassert,errcheck
}

func (w *world) finalizers(id string) []string {
	res, err := w.st.Get(w.ctx, infra.NewMachineRequest(id).Metadata())
	require.NoError(w.t, err)

	return *res.Metadata().Finalizers()
}

// wait lets fake time pass until everything that was going to happen by then has happened.
func (w *world) wait(d time.Duration) {
	w.cloud.sync()
	time.Sleep(d)
	synctest.Wait()
}
