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
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	sideropb "github.com/siderolabs/siderolink/api/siderolink"

	sim "github.com/omni-infra/omni-infra-providers/sim/omni"
)

// joiner joins machines to an Omni that knows the provider fakecloud.
type joiner struct {
	t         *testing.T
	omni      *sim.Omni
	provision sideropb.ProvisionServiceClient
	tunnel    sideropb.WireGuardOverGRPCServiceClient
}

func newJoiner(t *testing.T, opts sim.Options) *joiner {
	t.Helper()

	o := start(t, opts)
	provider(t, o, "fakecloud")

	conn, err := o.DialMachineAPI()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })

	_, err = o.State().WatchFor(within(t, time.Minute), siderolink.NewProviderJoinConfig("fakecloud").Metadata(),
		state.WithEventTypes(state.Created))
	require.NoError(t, err)

	return &joiner{t, o, sideropb.NewProvisionServiceClient(conn), sideropb.NewWireGuardOverGRPCServiceClient(conn)}
}

func (j *joiner) defaultToken() string {
	token, err := safe.StateGetByID[*siderolink.DefaultJoinToken](j.t.Context(), j.omni.State(), siderolink.DefaultJoinTokenID)
	require.NoError(j.t, err)

	return token.TypedSpec().Value.GetTokenId()
}

func (j *joiner) providerToken() string {
	config, err := safe.StateGetByID[*siderolink.ProviderJoinConfig](j.t.Context(), j.omni.State(), "fakecloud")
	require.NoError(j.t, err)

	return config.TypedSpec().Value.GetJoinToken()
}

func (j *joiner) sign(token, version string, data map[string]string) string {
	signed, err := jointoken.NewWithExtraData(token, version, data)
	require.NoError(j.t, err)

	encoded, err := signed.Encode()
	require.NoError(j.t, err)

	return encoded
}

// request returns what a machine of Talos 1.13.5 sends.
func (j *joiner) request(uuid, token, unique string) *sideropb.ProvisionRequest {
	key, err := wgtypes.GeneratePrivateKey()
	require.NoError(j.t, err)

	version := "v1.13.5"
	req := &sideropb.ProvisionRequest{NodeUuid: uuid, NodePublicKey: key.PublicKey().String(), TalosVersion: &version}

	if token != "" {
		req.JoinToken = &token
	}

	if unique != "" {
		req.NodeUniqueToken = &unique
	}

	return req
}

func (j *joiner) join(req *sideropb.ProvisionRequest) (*sideropb.ProvisionResponse, error) {
	ctx, cancel := context.WithTimeout(j.t.Context(), 20*time.Second)
	defer cancel()

	return j.provision.Provision(ctx, req)
}

func (j *joiner) link(uuid string) *siderolink.Link {
	link, err := safe.StateGetByID[*siderolink.Link](j.t.Context(), j.omni.State(), uuid)
	if state.IsNotFoundError(err) {
		return nil
	}

	require.NoError(j.t, err)

	return link
}

func unique(t *testing.T, fingerprint, token string) string {
	t.Helper()

	encoded, err := jointoken.NewNodeUniqueToken(fingerprint, token).Encode()
	require.NoError(t, err)

	return encoded
}

var own = map[string]string{omni.LabelInfraProviderID: "fakecloud", omni.LabelMachineRequest: "pool-a"}

// TestJoinTokens proves which tokens let a machine in, with what labels.
func TestJoinTokens(t *testing.T) {
	denied := "rpc error: code = PermissionDenied desc = unauthorized"

	for _, tc := range []struct {
		name   string
		token  func(j *joiner) string
		labels map[string]string
		want   string
	}{
		{"plain", func(j *joiner) string { return j.defaultToken() }, nil, ""},
		{"v1 with the default token", func(j *joiner) string { return j.sign(j.defaultToken(), jointoken.Version1, own) }, own, ""},
		{"v2 with the provider's token", func(j *joiner) string { return j.sign(j.providerToken(), jointoken.Version2, own) }, own, ""},
		{"v2 without a provider", func(j *joiner) string {
			return j.sign(j.defaultToken(), jointoken.Version2, map[string]string{"a": "b"})
		}, nil, ""},
		{"none", func(*joiner) string { return "" }, nil, denied},
		{"bogus", func(*joiner) string { return "bogus" }, nil, denied},
		{"the provider's token, plain", func(j *joiner) string { return j.providerToken() }, nil, denied},
		{"v1 with the provider's token", func(j *joiner) string { return j.sign(j.providerToken(), jointoken.Version1, own) }, nil, denied},
		{"v2 with the default token", func(j *joiner) string { return j.sign(j.defaultToken(), jointoken.Version2, own) }, nil, denied},
		{"v2 of an unknown provider", func(j *joiner) string {
			return j.sign(j.providerToken(), jointoken.Version2, map[string]string{omni.LabelInfraProviderID: "nobody"})
		}, nil, denied},
		{"v2 without signature", func(*joiner) string { return "v2:e30=" }, nil, denied},
		{"v2 without JSON", func(*joiner) string { return "v2:bm8=" }, nil, "rpc error: code = PermissionDenied desc = invalid join token invalid character"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJoiner(t, sim.Options{})
				resp, err := j.join(j.request("u", tc.token(j), unique(t, "f", "t")))

				if tc.want != "" {
					assert.ErrorContains(t, err, tc.want)
					assert.Nil(t, j.link("u"))

					return
				}

				require.NoError(t, err)

				link := j.link("u")
				require.NotNil(t, link)
				assert.Equal(t, link.TypedSpec().Value.GetNodeSubnet(), resp.GetNodeAddressPrefix())
				assert.Equal(t, "fdae:41e4:649b:9303::1", resp.GetServerAddress())

				for key, value := range tc.labels {
					got, _ := link.Metadata().Labels().Get(key)
					assert.Equal(t, value, got, key)
				}

				_, labelled := link.Metadata().Labels().Get(omni.LabelInfraProviderID)
				assert.Equal(t, tc.labels != nil, labelled)
			})
		})
	}
}

func TestRevokedAndExpiredTokensLetNobodyIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{})
		ctx := within(t, 24*time.Hour)

		id, err := connect(t, j.omni, j.omni.AdminKey()).Management().CreateJoinToken(ctx, "short", time.Hour)
		require.NoError(t, err)
		time.Sleep(time.Second) // the status follows

		_, err = j.join(j.request("a", id, unique(t, "f", "t")))
		require.NoError(t, err)
		time.Sleep(time.Hour)
		_, err = j.join(j.request("b", id, unique(t, "f", "t")))
		require.EqualError(t, err, "rpc error: code = PermissionDenied desc = unauthorized")

		_, err = safe.StateUpdateWithConflicts(ctx, j.omni.State(), siderolink.NewJoinToken(j.defaultToken()).Metadata(),
			func(r *siderolink.JoinToken) error {
				r.TypedSpec().Value.Revoked = true

				return nil
			})
		require.NoError(t, err)
		time.Sleep(time.Second) // the status follows

		_, err = j.join(j.request("u", j.defaultToken(), unique(t, "f", "t")))
		assert.EqualError(t, err, "rpc error: code = PermissionDenied desc = unauthorized")
	})
}

// TestWhatBecomesOfAJoiningMachine goes through the ways of the secure flow.
func TestWhatBecomesOfAJoiningMachine(t *testing.T) {
	type step struct {
		unique  string // "fingerprint token", empty for none
		noToken bool   // without the join token
		want    string // linked, pending, conflict or an error
	}

	for _, tc := range []struct {
		name   string
		forced bool // Talos is installed
		steps  []step
	}{
		{"without a unique token it waits", false, []step{{"", false, "pending"}}},
		{"with one it is in at once", false, []step{{"f t", false, "linked"}}},
		{"the unique token is enough later", false, []step{{"f t", false, "linked"}, {"f t", true, "linked"}}},
		{"another unique token alone is not", false, []step{{"f t", false, "linked"}, {"f x", true, "unauthorized"}}},
		{"a wiped machine gets a new token", false, []step{{"f t", false, "linked"}, {"", false, "pending"}, {"f x", false, "linked"}, {"f x", true, "linked"}}},
		{"but not once Talos is installed", true, []step{{"f t", false, "linked"}, {"f x", false, "unauthorized"}}},
		{"other hardware with the same UUID gets another UUID", false, []step{{"f t", false, "linked"}, {"g x", false, "conflict"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJoiner(t, sim.Options{})

				for _, s := range tc.steps {
					j.step(s.unique, s.noToken, tc.forced, s.want)
				}
			})
		})
	}
}

func (j *joiner) step(uniqueToken string, noToken, forced bool, want string) {
	t := j.t
	token := j.defaultToken()

	if noToken {
		token = ""
	}

	if uniqueToken != "" {
		uniqueToken = unique(t, uniqueToken[:1], uniqueToken[2:])
	}

	req := j.request("u", token, uniqueToken)
	resp, err := j.join(req)

	if want == "unauthorized" {
		require.EqualError(t, err, "rpc error: code = PermissionDenied desc = unauthorized")

		return
	}

	require.NoError(t, err)

	if want == "linked" {
		link := j.link("u")
		require.NotNil(t, link)
		require.Equal(t, req.GetNodePublicKey(), link.TypedSpec().Value.GetNodePublicKey())
		require.Equal(t, link.TypedSpec().Value.GetNodeSubnet(), resp.GetNodeAddressPrefix())

		if forced {
			_, err = safe.StateUpdateWithConflicts(t.Context(), j.omni.State(), link.Metadata(), func(r *siderolink.Link) error {
				r.Metadata().Annotations().Set(siderolink.ForceValidNodeUniqueToken, "")

				return nil
			})
			require.NoError(t, err)
		}

		return
	}

	pending, err := safe.StateGetByID[*siderolink.PendingMachine](t.Context(), j.omni.State(), req.GetNodePublicKey())
	require.NoError(t, err)

	uuid, _ := pending.Metadata().Labels().Get(omni.MachineUUID)
	require.Equal(t, "u", uuid)

	_, conflict := pending.Metadata().Annotations().Get(siderolink.PendingMachineUUIDConflict)
	require.Equal(t, want == "conflict", conflict)
}

// TestModesDecideOverOldTalos proves what each of the modes does with machines before Talos 1.6.
func TestModesDecideOverOldTalos(t *testing.T) {
	strict := "rpc error: code = FailedPrecondition desc = Talos version v1.5.5 is not supported on this Omni instance as '--join-tokens-mode' is set to 'strict'"

	for _, tc := range []struct {
		mode           sim.JoinTokensMode
		version, token string
		want           string // an error, or whether it is "linked" or "pending"
	}{
		{"", "v1.5.5", "", strict},
		{"", "", "", "Talos version 1.5.0 is not supported"},
		{sim.JoinTokensStrict, "v1.13.5", "", "pending"},
		{sim.JoinTokensLegacyAllowed, "v1.5.5", "", "linked"},
		{sim.JoinTokensLegacyAllowed, "v1.5.5", "bogus", "unauthorized"},
		{sim.JoinTokensLegacyAllowed, "v1.13.5", "", "pending"},
		{sim.JoinTokensLegacy, "v1.13.5", "", "linked"},
	} {
		t.Run(string(tc.mode)+" "+tc.version+" "+tc.token, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				j := newJoiner(t, sim.Options{JoinTokensMode: tc.mode})

				req := j.request("u", j.defaultToken(), "")
				req.TalosVersion = &tc.version

				if tc.token != "" {
					req.JoinToken = &tc.token
				}

				_, err := j.join(req)

				switch tc.want {
				case "linked":
					require.NoError(t, err)
					assert.NotNil(t, j.link("u"))
				case "pending":
					require.NoError(t, err)
					assert.Nil(t, j.link("u"))
				default:
					assert.ErrorContains(t, err, tc.want)
				}
			})
		})
	}
}

func TestRegistrationLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{MaxMachines: 1})

		_, err := j.join(j.request("a", j.defaultToken(), unique(t, "f", "t")))
		require.NoError(t, err)
		_, err = j.join(j.request("a", j.defaultToken(), unique(t, "f", "t")))
		require.NoError(t, err, "a registered machine comes in again")
		_, err = j.join(j.request("b", j.defaultToken(), unique(t, "g", "t")))
		assert.EqualError(t, err, "rpc error: code = ResourceExhausted desc = machine registration limit reached: 1/1 machines registered")
	})
}

func TestMachinesOfAProviderThatGoesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{})
		token := j.sign(j.providerToken(), jointoken.Version2, own)

		// Something holds the provider, so that it stays in teardown with its join config.
		md := infra.NewProvider("fakecloud").Metadata()
		config := siderolink.NewProviderJoinConfig("fakecloud").Metadata()
		require.NoError(t, j.omni.State().AddFinalizer(t.Context(), md, "test"))
		require.NoError(t, j.omni.State().AddFinalizer(t.Context(), config, "test"))

		_, err := j.omni.State().Teardown(t.Context(), md)
		require.NoError(t, err)

		_, err = j.join(j.request("u", token, unique(t, "f", "t")))
		assert.EqualError(t, err, "rpc error: code = NotFound desc = the infra provider is being deleted or doesn't exist")

		require.NoError(t, j.omni.State().RemoveFinalizer(t.Context(), config, "test"))
		require.NoError(t, j.omni.State().RemoveFinalizer(t.Context(), md, "test"))
	})
}

func TestAMachineWaitsUntilItsOldLinkIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{})

		_, err := j.join(j.request("u", j.defaultToken(), unique(t, "f", "t")))
		require.NoError(t, err)

		md := siderolink.NewLink("u", nil).Metadata()
		require.NoError(t, j.omni.State().AddFinalizer(t.Context(), md, "test"))

		_, err = j.omni.State().Teardown(t.Context(), md)
		require.NoError(t, err)

		_, err = j.join(j.request("u", j.defaultToken(), unique(t, "f", "t")))
		assert.EqualError(t, err, "rpc error: code = AlreadyExists desc = the machine with the same UUID is already registered in Omni and is in the tearing down phase")
		require.NoError(t, j.omni.State().RemoveFinalizer(t.Context(), md, "test"))
	})
}

func TestBadRequestsToJoinAreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{})

		req := j.request("", j.defaultToken(), "")
		_, err := j.join(req)
		assert.ErrorContains(t, err, "code = InvalidArgument desc = node_uuid must not be empty")

		req = j.request("u", j.defaultToken(), "")
		req.NodePublicKey = "no key"
		_, err = j.join(req)
		assert.ErrorContains(t, err, "code = InvalidArgument desc = node_public_key is not a WireGuard key")
	})
}
