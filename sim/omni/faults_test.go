package omni_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"

	sim "github.com/omni-infra/omni-infra-providers/sim/omni"
	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

func TestALostReplyHasItsEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		st := provider(t, o, "fakecloud").Omni().State()
		o.Inject(sim.Fault{Method: "Create", Type: infra.MachineRequestStatusType, LoseReply: true})

		assert.Equal(t, codes.Unavailable, status.Code(st.Create(t.Context(), infra.NewMachineRequestStatus("r"))))
		assert.True(t, state.IsConflictError(st.Create(t.Context(), infra.NewMachineRequestStatus("r"))))
	})
}

func TestAFaultBefallsTheCallsItNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		mine := provider(t, o, "fakecloud").Omni().State()
		other := provider(t, o, "thirdcloud").Omni().State()
		remove := o.Inject(sim.Fault{Method: "List", Type: infra.MachineRequestType, Provider: "fakecloud", Nth: 2, Times: 2, Err: sim.ErrUnavailable})

		var answers []codes.Code
		for range 4 {
			answers = append(answers, status.Code(list(infra.NewMachineRequest(""))(t.Context(), mine)))
			require.NoError(t, list(infra.NewMachineRequest(""))(t.Context(), other))
			require.NoError(t, list(infra.NewMachineRequestStatus(""))(t.Context(), mine))
		}

		assert.Equal(t, []codes.Code{codes.OK, codes.Unavailable, codes.Unavailable, codes.OK}, answers)
		remove()

		stop := o.Inject(sim.Fault{Times: -1, Err: sim.ErrUnavailable})
		require.Error(t, list(infra.NewMachineRequest(""))(t.Context(), other))
		stop()
		require.NoError(t, list(infra.NewMachineRequest(""))(t.Context(), other))
	})
}

func TestAFaultOfWritesLeavesReadsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		st := provider(t, o, "fakecloud").Omni().State()
		o.Inject(sim.Fault{Writes: true, Provider: "fakecloud", Err: sim.ErrUnavailable})

		require.NoError(t, list(infra.NewMachineRequest(""))(t.Context(), st))
		require.Equal(t, codes.Unavailable, status.Code(st.Create(t.Context(), infra.NewMachineRequestStatus("r"))))
		require.NoError(t, st.Create(t.Context(), infra.NewMachineRequestStatus("r")))
	})
}

func TestAConflictIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		st := provider(t, o, "fakecloud").Omni().State()

		require.NoError(t, st.Create(t.Context(), infra.NewMachineStatus("m")))
		o.Inject(sim.Fault{Method: "Update", ID: "m", Times: 3, Err: sim.ErrConflict})

		tries := 0
		_, err := safe.StateUpdateWithConflicts(t.Context(), st, infra.NewMachineStatus("m").Metadata(), func(r *infra.MachineStatus) error {
			tries++
			r.TypedSpec().Value.ReadyToUse = true

			return nil
		})

		require.NoError(t, err)
		assert.Equal(t, 4, tries)
	})
}

func TestHeldDelayedAndDroppedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		c := connect(t, o, o.AdminKey())
		hold := make(chan struct{})

		o.Inject(sim.Fault{Method: "Get", Hold: hold})
		o.Inject(sim.Fault{Method: "Get", Nth: 2, Delay: time.Minute})
		o.Inject(sim.Fault{Method: "Get", Nth: 3, Drop: true})

		began := time.Now()

		time.AfterFunc(time.Hour, func() { close(hold) })
		require.NoError(t, getVersion(t.Context(), c))
		assert.Equal(t, time.Hour, time.Since(began))

		require.NoError(t, getVersion(t.Context(), c))
		assert.Equal(t, time.Hour+time.Minute, time.Since(began))

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		assert.Equal(t, codes.DeadlineExceeded, status.Code(getVersion(ctx, c)))
	})
}

// TestARestartLosesWhatIsInMemory restarts an Omni with a provider and a machine, whose tunnel is up.
func TestARestartLosesWhatIsInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{})
		ctx := within(t, time.Hour)
		key, err := j.omni.CreateProvider(ctx, "second")
		require.NoError(t, err)

		st := connect(t, j.omni, key).Omni().State()
		require.NoError(t, st.Create(ctx, infra.NewProviderHealthStatus("second")))
		require.NoError(t, st.Create(ctx, infra.NewMachineRequestStatus("r")))

		resp, err := j.join(j.request("u", j.sign(j.providerToken(), jointoken.Version2, own), unique(t, "f", "t")))
		require.NoError(t, err)

		stream := j.open(resp.GetNodeAddressPrefix(), talosapi.Report{UUID: "u"})
		events := make(chan state.Event)
		require.NoError(t, st.WatchKind(ctx, infra.NewMachineRequestStatus("").Metadata(), events, state.WithBootstrapContents(true)))
		require.Equal(t, "r", (<-events).Resource.Metadata().ID())
		// The client resumes a watch by the bookmark of its last event, and what comes before Bootstrapped has none.
		require.Equal(t, state.Bootstrapped, (<-events).Type)

		began := time.Now()
		require.NoError(t, j.omni.Restart(ctx, 10*time.Minute))
		assert.Equal(t, 10*time.Minute, time.Since(began))

		_, err = stream.Recv()
		require.Error(t, err)

		_, err = st.Get(ctx, infra.NewProviderHealthStatus("second").Metadata())
		for status.Code(err) == codes.Unavailable { // the client connects again in its own time
			time.Sleep(10 * time.Second)

			_, err = st.Get(ctx, infra.NewProviderHealthStatus("second").Metadata())
		}

		assert.True(t, state.IsNotFoundError(err), "health is gone: %v", err)
		require.NotNil(t, j.link("u"))

		// The watch goes on where it was.
		require.NoError(t, st.Create(ctx, infra.NewMachineRequestStatus("s")))

		for event := range events {
			if event.Resource != nil && event.Resource.Metadata().ID() == "s" {
				break
			}

			require.NotEqual(t, state.Errored, event.Type, "%v", event.Error)
		}
	})
}

func TestCallsFailWhileOmniIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		c := connect(t, o, o.AdminKey())
		require.NoError(t, getVersion(t.Context(), c))

		ended := make(chan error, 1)

		go func() { ended <- o.Restart(within(t, time.Hour), time.Minute) }()

		synctest.Wait()
		assert.Equal(t, codes.Unavailable, status.Code(getVersion(t.Context(), c)))
		require.NoError(t, <-ended)
		assert.Eventually(t, func() bool { return getVersion(t.Context(), c) == nil }, time.Hour, 10*time.Second, "the client connects again in its own time")
	})
}

func TestAPartitionEndsWatchesAndHeals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		c := provider(t, o, "fakecloud")
		require.NoError(t, getVersion(t.Context(), c))

		o.PartitionAPI(true)
		assert.Equal(t, codes.Unavailable, status.Code(getVersion(t.Context(), c)))
		time.Sleep(time.Hour)
		assert.Equal(t, codes.Unavailable, status.Code(getVersion(t.Context(), c)))

		o.PartitionAPI(false)
		assert.Eventually(t, func() bool { return getVersion(t.Context(), c) == nil }, time.Hour, 10*time.Second, "the client connects again in its own time")
	})
}

// TestBrokenWatchesSaySo proves that a watcher of one kind is told, and that others are not affected.
func TestBrokenWatchesSaySo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		st := provider(t, o, "fakecloud").Omni().State()
		ctx := within(t, time.Hour)
		requests, statuses, versions := make(chan state.Event), make(chan state.Event), make(chan []state.Event)

		require.NoError(t, st.WatchKind(ctx, infra.NewMachineRequest("").Metadata(), requests))
		require.NoError(t, st.WatchKind(ctx, infra.NewMachineRequestStatus("").Metadata(), statuses))
		require.NoError(t, st.WatchKindAggregated(ctx, omni.NewTalosVersion("").Metadata(), versions))

		o.BreakWatches(infra.MachineRequestType)
		o.BreakWatches(omni.TalosVersionType)

		event := <-requests
		assert.Equal(t, state.Errored, event.Type)
		assert.ErrorContains(t, event.Error, "buffer overrun")
		assert.Equal(t, state.Errored, (<-versions)[0].Type)

		require.NoError(t, st.Create(ctx, infra.NewMachineRequestStatus("r")))
		assert.Equal(t, state.Created, (<-statuses).Type)
	})
}

func TestOptionsAreChecked(t *testing.T) {
	for want, opts := range map[string]sim.Options{
		`join tokens mode "odd": want strict, legacyAllowed or legacy`: {JoinTokensMode: "odd"},
		"limit of -1 machines: want 0 for none, or more":               {MaxMachines: -1},
	} {
		_, err := sim.New(opts)
		assert.EqualError(t, err, "set up the simulated Omni: "+want)
	}
}
