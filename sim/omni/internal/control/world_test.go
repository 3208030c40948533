package control_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/controller/generic"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/omni/internal/control"
	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

const cloud = "fakecloud"

// world is an Omni without its wire: the controllers over a state, and the machines that have tunnels to it.
type world struct {
	t        *testing.T
	ctx      context.Context
	st       state.State
	history  *history
	machines *board
	opts     control.Options
	stop     func()
}

// simulate runs a test in a bubble with a running Omni. The provider fakecloud is registered.
func simulate(t *testing.T, test func(t *testing.T, w *world), change ...func(*control.Options)) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()

		h := newHistory(control.NewState())
		w := &world{t: t, ctx: ctx, st: state.WrapCore(h), history: h, machines: &board{machines: map[string]*tunneled{}}}
		w.opts.Machines = w.machines

		for _, c := range change {
			c(&w.opts)
		}

		w.start()
		defer func() { w.stop() }()

		w.create(infra.NewProvider(cloud))
		w.settle()
		test(t, w)
	})
}

// start runs the controllers until stop is called.
func (w *world) start() {
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)

	go func() { done <- control.Run(ctx, w.st, w.opts) }()

	w.stop = func() {
		cancel()
		require.NoError(w.t, <-done)
	}
}

// settle lets everything that happens at once happen.
func (w *world) settle() { time.Sleep(time.Millisecond); synctest.Wait() }

func (w *world) create(res resource.Resource, opts ...state.CreateOption) {
	w.t.Helper()
	require.NoError(w.t, w.st.Create(w.ctx, res, opts...))
}

func (w *world) teardown(ptr resource.Pointer, owner string) {
	w.t.Helper()

	_, err := w.st.Teardown(w.ctx, ptr, state.WithTeardownOwner(owner))
	require.NoError(w.t, err)
}

// get returns a resource that has to be there.
func get[T generic.ResourceWithRD](w *world, id string) T {
	w.t.Helper()

	res, err := safe.StateGetByID[T](w.ctx, w.st, id)
	require.NoError(w.t, err)

	return res
}

// has returns whether a resource is there.
func has[T generic.ResourceWithRD](w *world, id string) bool {
	w.t.Helper()

	_, err := safe.StateGetByID[T](w.ctx, w.st, id)
	if err != nil {
		require.True(w.t, state.IsNotFoundError(err), err)
	}

	return err == nil
}

// list returns the resources of a type in the order of their ids.
func list[T generic.ResourceWithRD](w *world) []T {
	w.t.Helper()

	found, err := safe.StateListAll[T](w.ctx, w.st)
	require.NoError(w.t, err)

	var all []T
	for res := range found.All() {
		all = append(all, res)
	}

	return all
}

// edit changes a resource as its owner.
func edit[T generic.ResourceWithRD](w *world, id string, change func(T)) {
	w.t.Helper()

	res := get[T](w, id)
	_, err := safe.StateUpdateWithConflicts(w.ctx, w.st, res.Metadata(), func(res T) error {
		change(res)

		return nil
	}, state.WithUpdateOwner(res.Metadata().Owner()), state.WithExpectedPhaseAny())
	require.NoError(w.t, err)
}

// requestSet makes a set of machine requests.
func (w *world) requestSet(id string, count int32) {
	w.t.Helper()

	set := omni.NewMachineRequestSet(id)
	set.TypedSpec().Value.ProviderId = cloud
	set.TypedSpec().Value.MachineCount = count
	set.TypedSpec().Value.TalosVersion = "1.13.5"
	set.TypedSpec().Value.ProviderData = "size: small"
	w.create(set)
}

// link makes the link of a machine as the provision service does, and returns its address.
func (w *world) link(id string, labels map[string]string) string {
	w.t.Helper()

	address := fmt.Sprintf("fdae:41e4:649b:9303::%x", len(w.machines.machines)+2)
	link := siderolink.NewLink(id, &specs.SiderolinkSpec{NodeSubnet: address + "/64", NodePublicKey: "key", Connected: true})

	for key, value := range labels {
		link.Metadata().Labels().Set(key, value)
	}

	w.create(link)

	return address
}

// join makes the link of a machine that came with the token of a request, and returns its address.
func (w *world) join(id, request string) string {
	w.t.Helper()

	return w.link(id, map[string]string{omni.LabelInfraProviderID: cloud, omni.LabelMachineRequest: request})
}

// onlyStatus returns the status of the only request.
func (w *world) onlyStatus() *infra.MachineRequestStatus {
	w.t.Helper()

	statuses := list[*infra.MachineRequestStatus](w)
	require.Len(w.t, statuses, 1)

	return statuses[0]
}

// loneRequest makes a request without a set, as an operator does.
func (w *world) loneRequest(id string) {
	w.t.Helper()

	request := infra.NewMachineRequest(id)
	request.Metadata().Labels().Set(omni.LabelInfraProviderID, cloud)
	request.TypedSpec().Value.TalosVersion = "1.13.5"
	w.create(request)
}

// cluster makes a cluster whose machines come from a class that has them made.
func (w *world) cluster(name string, controlPlanes, workers uint32) {
	w.t.Helper()

	class := omni.NewMachineClass("fake-small")
	class.TypedSpec().Value.AutoProvision = &specs.MachineClassSpec_Provision{
		ProviderId: cloud, KernelArgs: []string{"console=ttyS0"}, ProviderData: "size: small",
	}
	w.create(class)

	cluster := omni.NewCluster(name)
	cluster.TypedSpec().Value.TalosVersion = "1.13.5"
	w.create(cluster)

	for _, set := range []struct {
		id, role string
		count    uint32
	}{
		{omni.ControlPlanesResourceID(name), omni.LabelControlPlaneRole, controlPlanes},
		{omni.WorkersResourceID(name), omni.LabelWorkerRole, workers},
	} {
		res := omni.NewMachineSet(set.id)
		res.Metadata().Labels().Set(omni.LabelCluster, name)
		res.Metadata().Labels().Set(set.role, "")
		res.TypedSpec().Value.MachineAllocation = &specs.MachineSetSpec_MachineAllocation{Name: "fake-small", MachineCount: set.count}
		w.create(res)
	}
}

// board is the machines that have a tunnel, as the wire keeps them.
type board struct {
	mu        sync.Mutex
	machines  map[string]*tunneled
	listeners []func(address string)
	// deaf has every command fail.
	deaf bool
}

type tunneled struct {
	report   *talosapi.Report
	up       bool
	commands []talosapi.Message
}

func (b *board) setDeaf(deaf bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.deaf = deaf
}

func (b *board) Report(address string) (*talosapi.Report, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if m, ok := b.machines[address]; ok {
		return m.report, m.up
	}

	return nil, false
}

func (b *board) Command(_ context.Context, address string, command talosapi.Command, value string) error {
	b.mu.Lock()
	defer b.mu.Unlock()

	m, ok := b.machines[address]
	if !ok || !m.up || b.deaf {
		return errors.New("no answer")
	}

	m.commands = append(m.commands, talosapi.Message{Command: command, Value: value})

	return nil
}

func (b *board) Subscribe(changed func(address string)) (cancel func()) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.listeners = append(b.listeners, changed)

	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()

		b.listeners = nil
	}
}

// set changes the state of a tunnel.
func (b *board) set(address string, up bool, report *talosapi.Report) {
	b.mu.Lock()

	m, ok := b.machines[address]
	if !ok {
		m = &tunneled{}
		b.machines[address] = m
	}

	m.up = up
	if report != nil {
		m.report = report
	}

	listeners := b.listeners
	b.mu.Unlock()

	for _, changed := range listeners {
		changed(address)
	}
}

// commands returns what the machine was told.
func (b *board) commands(address string) []talosapi.Message {
	b.mu.Lock()
	defer b.mu.Unlock()

	if m, ok := b.machines[address]; ok {
		return m.commands
	}

	return nil
}
