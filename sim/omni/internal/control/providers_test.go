package control_test

import (
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/auth"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/omni-infra/omni-infra-providers/sim/omni/internal/control"
)

func TestProviderGetsAJoinConfigOfItsOwn(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.create(infra.NewProvider("other"))
		w.settle()

		config, other := get[*siderolink.ProviderJoinConfig](w, cloud), get[*siderolink.ProviderJoinConfig](w, "other")
		require.Equal(t, map[string]string{omni.LabelInfraProviderID: cloud}, config.Metadata().Labels().Raw())
		require.NotEqual(t, config.TypedSpec().Value.JoinToken, other.TypedSpec().Value.JoinToken)

		args := config.TypedSpec().Value.Config.KernelArgs
		require.Len(t, args, 3)
		require.Regexp(t, `^siderolink\.api=grpc://omni\.example:8090\?jointoken=v2%3A`, args[0])
		require.Equal(t, "talos.events.sink=[fdae:41e4:649b:9303::1]:8091", args[1])
		require.Equal(t, "talos.logging.kernel=tcp://[fdae:41e4:649b:9303::1]:8092", args[2])
		require.Contains(t, config.TypedSpec().Value.Config.Config, "kind: SideroLinkConfig")

		edit(w, siderolink.ConfigID, func(api *siderolink.APIConfig) { api.TypedSpec().Value.MachineApiAdvertisedUrl = "https://new" })
		w.settle()

		changed := get[*siderolink.ProviderJoinConfig](w, cloud).TypedSpec().Value
		require.Contains(t, changed.Config.KernelArgs[0], "https://new?")
		require.Equal(t, config.TypedSpec().Value.JoinToken, changed.JoinToken)
	}, func(opts *control.Options) { opts.MachineAPIURL = "grpc://omni.example:8090" })
}

func TestProviderIsConnectedWhileItsHeartBeats(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		health := func() (initialized, connected bool) {
			w.settle()

			spec := get[*omni.InfraProviderCombinedStatus](w, cloud).TypedSpec().Value

			return spec.Health.Initialized, spec.Health.Connected
		}

		initialized, connected := health()
		require.False(t, initialized || connected)

		status := infra.NewProviderStatus(cloud)
		status.TypedSpec().Value.Name = "Fake cloud"
		w.create(status)

		initialized, connected = health()
		require.True(t, initialized && !connected)

		beat := infra.NewProviderHealthStatus(cloud)
		beat.TypedSpec().Value.LastHeartbeatTimestamp = timestamppb.Now()
		beat.TypedSpec().Value.Error = "no capacity"
		w.create(beat)

		_, connected = health()
		require.True(t, connected)
		require.Equal(t, "no capacity", get[*omni.InfraProviderCombinedStatus](w, cloud).TypedSpec().Value.Health.Error)

		time.Sleep(30 * time.Second)
		edit(w, cloud, func(b *infra.ProviderHealthStatus) { b.TypedSpec().Value.LastHeartbeatTimestamp = timestamppb.Now() })
		time.Sleep(30 * time.Second)

		_, connected = health()
		require.True(t, connected)

		time.Sleep(time.Second)

		_, connected = health()
		require.False(t, connected)
	})
}

// removeProvider removes fakecloud, which has a set of one with its machine joined, beside a set of another provider.
func removeProvider(w *world) {
	w.t.Helper()

	other := omni.NewMachineRequestSet("others")
	other.TypedSpec().Value.ProviderId = "other"
	w.create(other)

	identity := auth.NewIdentity(cloud + "@infra-provider.serviceaccount.omni.sidero.dev")
	identity.TypedSpec().Value.UserId = "user"
	w.create(identity)
	w.create(auth.NewUser("user"))

	key := auth.NewPublicKey("key")
	key.Metadata().Labels().Set(auth.LabelPublicKeyUserID, "user")
	w.create(key)

	w.provide(byToken).stop()
	w.requestSet("pool", 1)
	w.settle()

	request := w.ids()[0]
	require.NoError(w.t, w.st.AddFinalizer(w.ctx, infra.NewMachineRequest(request).Metadata(), provisioner))
	w.reported(request, machineID)
	w.join(machineID, request)

	status := infra.NewMachineStatus(machineID)
	status.Metadata().Labels().Set(omni.LabelInfraProviderID, cloud)
	w.create(status, state.WithCreateOwner(cloud+".Observer"))
	w.create(infra.NewProviderHealthStatus(cloud), state.WithCreateOwner(cloud+".ProviderHealthStatusController"))
	w.settle()

	w.teardown(infra.NewProvider(cloud).Metadata(), "")
	time.Sleep(11 * time.Second)
}

func TestRemovedProviderLeavesNothing(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		removeProvider(w)

		require.True(t, get[*infra.Provider](w, cloud).Metadata().Finalizers().Empty())
		require.False(t, has[*omni.MachineRequestSet](w, "pool"))
		require.Empty(t, list[*infra.MachineRequest](w))
		require.Empty(t, list[*infra.MachineRequestStatus](w))
		require.Empty(t, list[*infra.MachineStatus](w))
		require.Empty(t, list[*siderolink.Link](w))
		require.Empty(t, list[*infra.ProviderStatus](w))
		require.Empty(t, list[*siderolink.ProviderJoinConfig](w))
		require.Empty(t, list[*omni.InfraProviderCombinedStatus](w))
		require.Empty(t, list[*auth.Identity](w))
		require.Empty(t, list[*auth.User](w))
		require.Empty(t, list[*auth.PublicKey](w))

		require.True(t, has[*infra.ProviderHealthStatus](w, cloud), "an owned one stays, as in the real Omni")
		require.True(t, has[*omni.MachineRequestSet](w, "others"))
	})
}

func TestRemovalTakesSetsOfOthersOnlyAsTheRealDefect(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		removeProvider(w)
		require.False(t, has[*omni.MachineRequestSet](w, "others"))
	}, func(opts *control.Options) { opts.ProviderRemovalTakesAllSets = true })
}

func TestRemovalSparesSetsOfMachineSets(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		w.provide()
		w.cluster("demo", 0, 1)
		w.settle()
		w.teardown(infra.NewProvider(cloud).Metadata(), "")
		w.settle()

		require.True(t, has[*omni.MachineRequestSet](w, "demo-workers"))
	})
}

func TestJoinTokenIsGoodUntilRevokedOrExpired(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		state := func(id string) string {
			w.settle()

			return get[*siderolink.JoinTokenStatus](w, id).TypedSpec().Value.State.String()
		}

		token := siderolink.NewJoinToken("short")
		token.TypedSpec().Value.Name = "for an hour"
		token.TypedSpec().Value.ExpirationTime = timestamppb.New(time.Now().Add(time.Hour))
		w.create(token)
		w.create(siderolink.NewJoinToken("bad"))

		require.Equal(t, "ACTIVE", state("short"))
		require.Equal(t, "for an hour", get[*siderolink.JoinTokenStatus](w, "short").TypedSpec().Value.Name)
		time.Sleep(time.Hour)
		require.Equal(t, "EXPIRED", state("short"))

		require.Equal(t, "ACTIVE", state("bad"))
		edit(w, "bad", func(token *siderolink.JoinToken) { token.TypedSpec().Value.Revoked = true })
		require.Equal(t, "REVOKED", state("bad"))

		usage := siderolink.NewJoinTokenUsage(machineID)
		usage.TypedSpec().Value.TokenId = "bad"
		w.create(usage)
		w.settle()
		require.EqualValues(t, 1, get[*siderolink.JoinTokenStatus](w, "bad").TypedSpec().Value.UseCount)
	})
}

func TestConnectionParamsHaveTheDefaultToken(t *testing.T) {
	simulate(t, func(t *testing.T, w *world) {
		params := get[*siderolink.ConnectionParams](w, siderolink.ConfigID).TypedSpec().Value
		require.Equal(t, "first", params.JoinToken)
		require.Contains(t, params.Args, "siderolink.api=grpc://127.0.0.1:8090?jointoken=first ")
		require.True(t, get[*siderolink.JoinTokenStatus](w, "first").TypedSpec().Value.IsDefault)
		require.Equal(t, "initial token", get[*siderolink.JoinToken](w, "first").TypedSpec().Value.Name)

		token, err := jointoken.Generate()
		require.NoError(t, err)
		w.create(siderolink.NewJoinToken(token))
		edit(w, siderolink.DefaultJoinTokenID, func(d *siderolink.DefaultJoinToken) { d.TypedSpec().Value.TokenId = token })
		w.settle()

		require.Equal(t, token, get[*siderolink.ConnectionParams](w, siderolink.ConfigID).TypedSpec().Value.JoinToken)
		require.False(t, get[*siderolink.JoinTokenStatus](w, "first").TypedSpec().Value.IsDefault)
		require.True(t, get[*siderolink.JoinTokenStatus](w, token).TypedSpec().Value.IsDefault)
	}, func(opts *control.Options) { opts.InitialJoinToken = "first" })
}
