package official_test

import (
	"context"
	"fmt"
	"os"
	"path"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cosi-project/runtime/api/v1alpha1"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/resource/typed"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/client"
	omniclient "github.com/siderolabs/omni/client/pkg/client/omni"
	official "github.com/siderolabs/omni/client/pkg/infra"
	officialsteps "github.com/siderolabs/omni/client/pkg/infra/provision"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	sim "github.com/omni-infra/omni-infra-providers/sim/omni"
)

const (
	benchProvider = "bench"
	// benchWorkers is how many machines each library makes at once.
	benchWorkers = 10
	// benchLimit is how long a library has for one part of a run.
	benchLimit = 25 * time.Minute
)

// BenchmarkLibraries runs this library and the official one through the same life: so many requests at once become machines
// of four steps that do nothing, and are torn down. What is left is what a library costs: its calls to Omni and its own work.
func BenchmarkLibraries(b *testing.B) {
	fmt.Fprintln(os.Stderr, "| requests | per call | library | to PROVISIONED | calls, writes each | teardown | calls, writes each | heap |\n|---|---|---|---|---|---|---|---|")

	for _, n := range []int{100, 1000, 3000} {
		for _, delay := range []time.Duration{0, 50 * time.Millisecond} {
			b.Run(fmt.Sprintf("%d-requests/%s-per-call", n, delay), func(b *testing.B) {
				for range b.N {
					var got [2]cost

					for i, lib := range []library{{"ours", ours(&nothing{})}, {"official", runOfficial}} {
						got[i] = measure(b, lib, n, delay)
						fmt.Fprintf(os.Stderr, "| %d | %s | %s | %s |\n", n, delay, lib.name, got[i])
					}

					b.ReportMetric(got[1].made.took.Seconds()/got[0].made.took.Seconds(), "official/ours-time")
					b.ReportMetric(got[1].made.calls/got[0].made.calls, "official/ours-calls")
					b.ReportMetric(got[1].removed.took.Seconds()/got[0].removed.took.Seconds(), "official/ours-teardown-time")
					b.ReportMetric(got[1].removed.calls/got[0].removed.calls, "official/ours-teardown-calls")
					b.ReportMetric(got[0].made.calls, "calls/machine")
					b.ReportMetric(got[0].made.writes, "writes/machine")
					b.ReportMetric(got[0].removed.calls, "calls/teardown")
				}
			})
		}
	}
}

// library is a provider library and how a provider on it runs.
type library struct {
	name string
	run  func(ctx context.Context, o *sim.Omni, dial ...client.Option) error
}

// cost is what a run took.
type cost struct {
	made, removed part
	// heap is what the collector frees when the provider ends with all machines made; 0 when it was not measured.
	heap uint64
}

// part is a part of a run: its duration, and the calls to Omni and the writes among them for each machine.
type part struct {
	took          time.Duration
	calls, writes float64
}

func (c cost) String() string {
	heap := "-"
	if c.heap > 0 {
		heap = fmt.Sprintf("%.1f MiB", float64(c.heap)/(1<<20))
	}

	return fmt.Sprintf("%s | %s | %s", c.made, c.removed, heap)
}

func (p part) String() string {
	return fmt.Sprintf("%.2f s | %.1f, %.1f", p.took.Seconds(), p.calls, p.writes)
}

// meter counts a provider's calls to Omni and makes each take longer. Watches and what tells of the provider's health are no
// part of the account, as they do not grow with the machines.
type meter struct {
	delay         time.Duration
	calls, writes atomic.Int64
	last          atomic.Int64
}

func (m *meter) count(ctx context.Context, method string, req any) {
	if r, ok := req.(interface {
		GetNewResource() *v1alpha1.Resource
	}); ok && r.GetNewResource().GetMetadata().GetType() == infra.InfraProviderHealthStatusType {
		return
	}

	m.calls.Add(1)

	switch path.Base(method) {
	case "Create", "Update", "Destroy", "Teardown", "TeardownAndDestroy":
		m.writes.Add(1)
	}

	if m.delay > 0 {
		select {
		case <-time.After(m.delay):
		case <-ctx.Done():
		}
	}

	m.last.Store(time.Now().UnixNano())
}

func (m *meter) options() client.Option {
	return client.WithGrpcOpts(
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			m.count(ctx, method, req)

			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			if path.Base(method) != "Watch" {
				m.count(ctx, method, nil)
			}

			return stream(ctx, desc, cc, method, opts...)
		}),
	)
}

// quiet returns when the provider has called nothing for a while.
func (m *meter) quiet() {
	m.last.Store(time.Now().UnixNano())

	for time.Since(time.Unix(0, m.last.Load())) < time.Second+2*m.delay {
		time.Sleep(100 * time.Millisecond)
	}
}

// timed measures a part of a run.
func (m *meter) timed(n int, f func()) part {
	m.calls.Store(0)
	m.writes.Store(0)

	began := time.Now()

	f()

	p := part{took: time.Since(began)}

	m.quiet()

	p.calls, p.writes = float64(m.calls.Load())/float64(n), float64(m.writes.Load())/float64(n)

	return p
}

// measure runs a provider on the library against an Omni of its own.
func measure(b *testing.B, lib library, n int, delay time.Duration) cost {
	b.Helper()

	o, err := sim.New(sim.Options{})
	require.NoError(b, err)

	ctx, cancel := context.WithCancel(b.Context())
	ended := make(chan error, 1)

	go func() { ended <- o.Run(ctx) }()

	defer func() {
		cancel()
		require.NoError(b, <-ended)
	}()

	key, err := o.CreateProvider(ctx, benchProvider)
	require.NoError(b, err)

	m := &meter{delay: delay}
	stop := startProvider(ctx, b, lib, o, key, m)

	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("machine-%04d", i)
	}

	var c cost

	c.made = m.timed(n, func() { createAll(ctx, b, lib, o.State(), ids) })

	if delay == 0 {
		with := heap()

		stop()

		if without := heap(); with > without {
			c.heap = with - without
		}

		stop = startProvider(ctx, b, lib, o, key, m)
	}

	defer stop()

	c.removed = m.timed(n, func() { removeAll(ctx, b, lib, o.State(), ids) })

	return c
}

// startProvider runs a provider and returns when it is ready.
func startProvider(ctx context.Context, b *testing.B, lib library, o *sim.Omni, key string, m *meter) (stop func()) {
	b.Helper()

	running, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)

	go func() { ended <- lib.run(running, o, append(o.ClientOptions(key), m.options())...) }()

	_, err := o.State().WatchFor(ctx, infra.NewProviderStatus(benchProvider).Metadata(), state.WithEventTypes(state.Created))
	require.NoError(b, err)
	_, err = o.State().WatchFor(ctx, siderolink.NewProviderJoinConfig(benchProvider).Metadata(), state.WithEventTypes(state.Created))
	require.NoError(b, err)
	m.quiet()

	return sync.OnceFunc(func() {
		cancel()
		require.NoError(b, <-ended, "%s ended with an error", lib.name)
	})
}

// createAll asks for the machines, all at once, and waits until they are provisioned.
func createAll(ctx context.Context, b *testing.B, lib library, st state.State, ids []string) {
	b.Helper()

	provisioned := map[string]bool{}

	follow(ctx, b, lib, st, infra.MachineRequestStatusType, len(ids), func() {
		for _, id := range ids {
			r := infra.NewMachineRequest(id)
			r.Metadata().Labels().Set(omni.LabelInfraProviderID, benchProvider)
			r.TypedSpec().Value.TalosVersion = "1.13.5"
			require.NoError(b, st.Create(ctx, r))
		}
	}, func(event state.Event) int {
		status, ok := event.Resource.(*infra.MachineRequestStatus)
		if ok && status.TypedSpec().Value.Stage == specs.MachineRequestStatusSpec_PROVISIONED {
			provisioned[status.Metadata().ID()] = true
		}

		return len(provisioned)
	})
}

// removeAll tears the requests down, all at once, and waits until they are gone.
func removeAll(ctx context.Context, b *testing.B, lib library, st state.State, ids []string) {
	b.Helper()

	gone := map[string]bool{}

	follow(ctx, b, lib, st, infra.MachineRequestType, len(ids), func() {
		for _, id := range ids {
			_, err := st.Teardown(ctx, infra.NewMachineRequest(id).Metadata())
			require.NoError(b, err)
		}
	}, func(event state.Event) int {
		md := event.Resource.Metadata()
		if md.Phase() == resource.PhaseTearingDown && md.Finalizers().Empty() && !gone[md.ID()] {
			gone[md.ID()] = true

			require.NoError(b, st.Destroy(ctx, md))
		}

		return len(gone)
	})
}

// follow begins something and follows a kind of resource until count says that all are done. It tells of progress now and then.
func follow(ctx context.Context, b *testing.B, lib library, st state.State, kind resource.Type, all int, begin func(), count func(state.Event) int) {
	b.Helper()

	ctx, cancel := context.WithTimeout(ctx, benchLimit)
	defer cancel()

	events := make(chan []state.Event)
	require.NoError(b, st.WatchKindAggregated(ctx, resource.NewMetadata("infra-provider", kind, "", resource.VersionUndefined), events))

	var begun sync.WaitGroup

	begun.Go(begin)
	defer begun.Wait()

	progress := time.NewTicker(30 * time.Second)
	defer progress.Stop()

	for done := 0; done < all; {
		select {
		case batch := <-events:
			for _, event := range batch {
				require.NoError(b, event.Error)

				if event.Resource != nil {
					done = count(event)
				}
			}
		case <-progress.C:
			fmt.Fprintf(os.Stderr, "  %s: %s %d of %d\n", lib.name, strings.TrimSuffix(kind, ".omni.sidero.dev"), done, all)
		case <-ctx.Done():
			require.FailNow(b, "too slow", "%s: %d of %d within %s", lib.name, done, all, benchLimit)
		}
	}
}

// heap returns the bytes that are in use.
func heap() uint64 {
	var stats runtime.MemStats

	for range 3 {
		runtime.GC()
		time.Sleep(100 * time.Millisecond)
	}

	runtime.ReadMemStats(&stats)

	return stats.HeapAlloc
}

// ours runs a provider on this library whose machines are made by four phases that do nothing.
func ours(cloud *nothing) func(context.Context, *sim.Omni, ...client.Option) error {
	return func(ctx context.Context, o *sim.Omni, dial ...client.Option) error {
		c, err := client.New(o.Endpoint(), append(dial, client.WithOmniClientOptions(omniclient.WithProviderID(benchProvider)))...)
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // in process

		engine, err := lifecycle.New(lifecycle.Config{
			ID: benchProvider, Driver: cloud, Schema: "{}", Logger: zap.NewNop(), Provisions: benchWorkers, Removals: benchWorkers,
		})
		if err != nil {
			return err
		}

		return engine.Run(ctx, c.Omni().State())
	}
}

// nothing is a cloud whose machines are there as soon as they are asked for.
type nothing struct{ machines sync.Map }

func (*nothing) Plan(_ context.Context, req driver.Request) (driver.Plan, error) {
	plan := driver.Plan{UUID: req.Identity.UUID, Names: map[string]string{"machine": req.RequestID}}
	for _, name := range []string{"ensure-image", "create-volume", "create-machine", "start-machine"} {
		plan.Phases = append(plan.Phases, driver.Phase{Name: name, Ensure: func(context.Context, driver.Task) error { return nil }})
	}

	return plan, nil
}

func (n *nothing) Find(_ context.Context, ref driver.Ref) (driver.Machine, error) {
	m := driver.Machine{Ref: ref, ID: ref.RequestID, UUID: driver.NewIdentity(ref).UUID, Power: driver.PowerOn}
	n.machines.Store(ref, m)

	return m, nil
}

func (n *nothing) List(context.Context, string) ([]driver.Machine, error) {
	var all []driver.Machine

	n.machines.Range(func(_, m any) bool {
		all = append(all, m.(driver.Machine)) //nolint:forcetypeassert,errcheck // nothing else is stored

		return true
	})

	return all, nil
}

func (n *nothing) Remove(_ context.Context, ref driver.Ref) (bool, error) {
	n.machines.Delete(ref)

	return true, nil
}

func (*nothing) Check(context.Context) error { return nil }

// runOfficial runs a provider on the official library whose machines are made by four steps that do nothing.
func runOfficial(ctx context.Context, o *sim.Omni, dial ...client.Option) error {
	p, err := official.NewProvider(benchProvider, steps{}, official.ProviderConfig{Name: benchProvider, Schema: "{}"})
	if err != nil {
		return err
	}

	return p.Run(ctx, zap.NewNop(), official.WithOmniEndpoint(o.Endpoint()), official.WithClientOptions(dial...),
		official.WithConcurrency(benchWorkers))
}

// steps is a provisioner of the official library.
type steps struct{}

func (steps) ProvisionSteps() []officialsteps.Step[*officialState] {
	var all []officialsteps.Step[*officialState]

	for _, name := range []string{"ensure-image", "create-volume", "create-machine", "start-machine"} {
		all = append(all, officialsteps.NewStep(name, func(_ context.Context, _ *zap.Logger, pctx officialsteps.Context[*officialState]) error {
			pctx.SetMachineUUID(driver.NewIdentity(driver.Ref{ProviderID: benchProvider, RequestID: pctx.GetRequestID()}).UUID)

			return nil
		}))
	}

	return all
}

func (steps) Deprovision(context.Context, *zap.Logger, *officialState, *infra.MachineRequest) error {
	return nil
}

// officialState is what the official library keeps of a machine.
type officialState = typed.Resource[officialSpec, officialExtension]

type officialSpec = protobuf.ResourceSpec[specs.MachineSpec, *specs.MachineSpec]

type officialExtension struct{}

func (officialExtension) ResourceDefinition() meta.ResourceDefinitionSpec {
	return meta.ResourceDefinitionSpec{
		Type:             official.ResourceType("Machine", benchProvider),
		DefaultNamespace: official.ResourceNamespace(benchProvider),
	}
}
