package control_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/omni-infra/omni-infra-providers/sim/omni/internal/control"
	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

func withOwner(owner string) state.CreateOption { return state.WithCreateOwner(owner) }

func TestBootstrapKeepsWhatIsThere(t *testing.T) {
	st := state.WrapCore(control.NewState())

	require.NoError(t, control.Bootstrap(t.Context(), st, control.Options{InitialJoinToken: "first", TalosVersions: []string{"1.13.5"}}))
	require.NoError(t, control.Bootstrap(t.Context(), st, control.Options{InitialJoinToken: "second"}))

	w := &world{t: t, ctx: t.Context(), st: st}
	require.Equal(t, "first", get[*siderolink.DefaultJoinToken](w, siderolink.DefaultJoinTokenID).TypedSpec().Value.TokenId)
	require.Len(t, list[*siderolink.JoinToken](w), 1)
	require.Equal(t, specs.JoinTokenStatusSpec_ACTIVE, get[*siderolink.JoinTokenStatus](w, "first").TypedSpec().Value.State)

	api := get[*siderolink.APIConfig](w, siderolink.ConfigID).TypedSpec().Value
	require.Equal(t, "grpc://127.0.0.1:8090", api.MachineApiAdvertisedUrl)
	require.EqualValues(t, 8091, api.EventsPort)
	require.EqualValues(t, 8092, api.LogsPort)
	require.Len(t, list[*omni.TalosVersion](w), len(control.DefaultTalosVersions))
	require.NotEmpty(t, get[*omni.TalosExtensions](w, "1.13.5").TypedSpec().Value.Items)
	require.Equal(t, "https://factory.talos.dev",
		get[*omni.FeaturesConfig](w, omni.FeaturesConfigID).TypedSpec().Value.ImageFactoryBaseUrl)
}

func TestOmniGoesOnAfterARestart(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.loneRequest("lone")
		w.settle()
		w.stop()

		// All this happens while Omni is down: a set is made, a machine joins, its tunnel comes up.
		w.requestSet("pool", 1)
		w.create(infra.NewProviderStatus(cloud))
		w.reported("lone", machineID)
		address := w.join(machineID, "lone")
		w.machines.set(address, true, &talosapi.Report{Stage: talosapi.StageRunning, Hostname: "vm-1"})

		w.start()
		w.settle()

		require.Len(t, w.ids(), 2)
		require.Equal(t, "vm-1", get[*omni.MachineStatus](w, machineID).TypedSpec().Value.Network.Hostname)
	})
}

func TestLogOfControllersHasNoTokens(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)

	simulate(t, func(t *testing.T, w *world) {
		w.provide(byToken)
		w.loneRequest("lone")
		w.create(siderolink.NewJoinToken("secret-2"))
		w.settle()
		require.Equal(t, specs.JoinTokenStatusSpec_ACTIVE, get[*siderolink.JoinTokenStatus](w, "secret-2").TypedSpec().Value.State)
		require.NotZero(t, logs.FilterMessage("reconcile succeeded").Len())

		for _, entry := range logs.All() {
			require.NotContains(t, fmt.Sprint(entry.Message, entry.ContextMap()), "secret")
		}
	}, func(opts *control.Options) {
		opts.InitialJoinToken = "secret"
		opts.Logger = zap.New(core)
	})
}

func TestOmniTellsItsStoryWithoutSecrets(t *testing.T) {
	var (
		mu    sync.Mutex
		story []string
	)

	simulate(t, func(t *testing.T, w *world) {
		w.provide(byToken)
		w.loneRequest("lone")
		w.settle()
		w.join(machineID, "lone")
		time.Sleep(2 * time.Minute)
		w.teardown(siderolink.NewLink(machineID, nil).Metadata(), "")
		time.Sleep(11 * time.Second)

		mu.Lock()
		defer mu.Unlock()

		for _, want := range []string{
			"infra provider fakecloud is registered",
			"machine request lone created",
			"machine request lone: provisioned, Provision Complete",
			"link of machine " + machineID + " created",
			"machine " + machineID + " is matched with machine request lone",
			"machine " + machineID + " is disconnected",
			"link of machine " + machineID + " is being removed",
			"machine " + machineID + " is forgotten",
			"link of machine " + machineID + " is gone",
		} {
			require.Contains(t, story, want)
		}

		text := strings.Join(story, "\n")
		require.NotContains(t, text, "secret")
		require.NotContains(t, text, get[*siderolink.ProviderJoinConfig](w, cloud).TypedSpec().Value.JoinToken)
	}, func(opts *control.Options) {
		opts.InitialJoinToken = "secret"
		opts.Log = func(text string) {
			mu.Lock()
			defer mu.Unlock()

			story = append(story, text)
		}
	})
}
