package omni_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/siderolabs/go-api-signature/pkg/message"
	"github.com/siderolabs/go-api-signature/pkg/pgp"
	"github.com/siderolabs/go-api-signature/pkg/serviceaccount"
	"github.com/siderolabs/omni/client/pkg/access"
	"github.com/siderolabs/omni/client/pkg/client"
	"github.com/siderolabs/omni/client/pkg/omni/resources/auth"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/siderolabs/omni/client/pkg/omni/resources/system"

	sim "github.com/omni-infra/omni-infra-providers/sim/omni"
)

// tampered returns a dial option that changes the metadata of signed calls on their way.
func tampered(change func(md metadata.MD)) client.Option {
	return client.WithGrpcOpts(grpc.WithChainUnaryInterceptor(
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			md, _ := metadata.FromOutgoingContext(ctx)
			md = md.Copy()
			change(md)

			return invoke(metadata.NewOutgoingContext(ctx, md), method, req, reply, cc, opts...)
		}))
}

func newKey(t *testing.T, name string, lifetime time.Duration) *pgp.Key {
	t.Helper()

	account := access.ParseServiceAccountFromName(name)

	key, err := pgp.GenerateKey(account.BaseName, "test", account.FullID(), lifetime)
	require.NoError(t, err)

	return key
}

func encode(t *testing.T, name string, key *pgp.Key) string {
	t.Helper()

	encoded, err := serviceaccount.Encode(name, key)
	require.NoError(t, err)

	return encoded
}

func armor(t *testing.T, key *pgp.Key) string {
	t.Helper()

	armored, err := key.ArmorPublic()
	require.NoError(t, err)

	return armored
}

func getVersion(ctx context.Context, c *client.Client) error {
	_, err := c.Omni().State().Get(ctx, system.NewSysVersion(system.SysVersionID).Metadata())

	return err
}

const invalidSignature = "rpc error: code = Unauthenticated desc = invalid signature"

// TestEveryBadSignatureHasTheSameAnswer proves that a caller learns nothing about why.
func TestEveryBadSignatureHasTheSameAnswer(t *testing.T) {
	field := func(i int, value string) func(metadata.MD) {
		return func(md metadata.MD) {
			words := strings.Split(md.Get(message.SignatureHeaderKey)[0], " ")
			words[i] = value
			md.Set(message.SignatureHeaderKey, strings.Join(words, " "))
		}
	}

	for _, tc := range []struct {
		name   string
		change func(md metadata.MD)
	}{
		{"no signature", func(md metadata.MD) { md.Delete(message.SignatureHeaderKey) }},
		{"one word", func(md metadata.MD) { md.Set(message.SignatureHeaderKey, "siderov1") }},
		{"other version", field(0, "siderov2")},
		{"unknown key", field(2, strings.Repeat("0", 40))},
		{"not base64", field(3, "!")},
		{"other signature", field(3, "AAAA")},
		{"no payload", func(md metadata.MD) { md.Delete(message.PayloadHeaderKey) }},
		{"no timestamp", func(md metadata.MD) { md.Delete(message.TimestampHeaderKey) }},
		{"other timestamp", func(md metadata.MD) {
			md.Set(message.TimestampHeaderKey, strconv.FormatInt(time.Now().Add(time.Second).Unix(), 10))
		}},
		{"payload of another method", func(md metadata.MD) {
			payload := md.Get(message.PayloadHeaderKey)[0]
			md.Set(message.PayloadHeaderKey, strings.Replace(payload, "State/Get", "State/Create", 1))
		}},
		{"signed header added", func(md metadata.MD) { md.Set(message.ClusterHeaderKey, "c") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := start(t, sim.Options{})

				require.NoError(t, getVersion(within(t, time.Minute), connect(t, o, o.AdminKey())))
				assert.EqualError(t, getVersion(within(t, time.Minute), connect(t, o, o.AdminKey(), tampered(tc.change))), invalidSignature)
			})
		})
	}
}

func TestUnsignedStreamsAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		c := connect(t, o, "")

		_, err := c.Omni().State().List(within(t, time.Minute), infra.NewMachineRequest("").Metadata())
		assert.EqualError(t, err, invalidSignature)
		assert.EqualError(t, c.Omni().State().WatchKind(within(t, time.Minute), infra.NewMachineRequest("").Metadata(),
			make(chan state.Event)), invalidSignature)
	})
}

// TestClocksMayDifferByFiveMinutes signs calls, keeps them back, and sends them later.
func TestClocksMayDifferByFiveMinutes(t *testing.T) {
	for _, tc := range []struct {
		late time.Duration
		ok   bool
	}{
		{4*time.Minute + 59*time.Second, true},
		{5*time.Minute + 2*time.Second, false},
	} {
		t.Run(tc.late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := start(t, sim.Options{})
				c := connect(t, o, o.AdminKey(), tampered(func(metadata.MD) { time.Sleep(tc.late) }))

				err := getVersion(within(t, time.Hour), c)
				if tc.ok {
					assert.NoError(t, err)
				} else {
					assert.EqualError(t, err, invalidSignature)
				}
			})
		})
	}
}

func TestKeysExpireAndAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		admin := connect(t, o, o.AdminKey()).Management()
		key := newKey(t, "robot", 24*time.Hour)

		id, err := admin.CreateServiceAccount(t.Context(), "robot", armor(t, key), "Reader", false)
		require.NoError(t, err)

		c := connect(t, o, encode(t, "robot", key))
		require.NoError(t, getVersion(t.Context(), c))

		// A client does not sign with a key that has expired, so it is Omni that has it expire early.
		_, err = safe.StateUpdateWithConflicts(t.Context(), o.State(), auth.NewPublicKey(id).Metadata(), func(r *auth.PublicKey) error {
			r.TypedSpec().Value.Expiration = timestamppb.New(time.Now().Add(time.Hour))

			return nil
		})
		require.NoError(t, err)
		require.NoError(t, getVersion(t.Context(), c))
		time.Sleep(time.Hour)
		require.EqualError(t, getVersion(t.Context(), c), invalidSignature)

		renewed := newKey(t, "robot", 24*time.Hour)
		_, err = admin.RenewServiceAccount(t.Context(), "robot", armor(t, renewed))
		require.NoError(t, err)
		require.NoError(t, getVersion(t.Context(), connect(t, o, encode(t, "robot", renewed))))

		require.NoError(t, admin.DestroyServiceAccount(t.Context(), "robot"))
		assert.EqualError(t, getVersion(t.Context(), connect(t, o, encode(t, "robot", renewed))), invalidSignature)
	})
}

func TestReplacedKeyIsVoidAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})

		first, err := o.CreateProvider(t.Context(), "fakecloud")
		require.NoError(t, err)

		c := connect(t, o, first)
		require.NoError(t, getVersion(t.Context(), c))

		second, err := o.ReplaceProviderKey(t.Context(), "fakecloud")
		require.NoError(t, err)
		require.EqualError(t, getVersion(t.Context(), c), invalidSignature)
		require.NoError(t, getVersion(t.Context(), connect(t, o, second)))

		_, err = o.ReplaceProviderKey(t.Context(), "nobody")
		require.ErrorContains(t, err, `"infra-provider:nobody"`)
	})
}

// TestTheNameInASignatureIsNotTrusted signs as the provider and claims to be the administrator.
func TestTheNameInASignatureIsNotTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})

		key, err := o.CreateProvider(t.Context(), "fakecloud")
		require.NoError(t, err)

		c := connect(t, o, key, tampered(func(md metadata.MD) {
			value := md.Get(message.SignatureHeaderKey)[0]
			md.Set(message.SignatureHeaderKey, strings.Replace(value, "infra-provider:fakecloud", "admin", 1))
		}))

		_, err = c.Omni().State().Get(t.Context(), siderolink.NewDefaultJoinToken().Metadata())
		assert.ErrorContains(t, err, `insufficient role: "InfraProvider"`)
	})
}

func TestNothingIsServedBeforeTheEULAIsAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{PendingEULA: true})
		c := connect(t, o, o.AdminKey())

		err := getVersion(t.Context(), c)
		assert.Equal(t, codes.FailedPrecondition, status.Code(err))
		assert.ErrorContains(t, err, "EULA has not been accepted")

		acceptance := auth.NewEulaAcceptance()
		require.NoError(t, connect(t, o, "").Omni().State().Create(t.Context(), acceptance))
		assert.NoError(t, getVersion(t.Context(), c))
	})
}

func TestEverybodyKnowsHowToLogIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})

		_, err := connect(t, o, "").Omni().State().Get(t.Context(), auth.NewAuthConfig().Metadata())
		assert.NoError(t, err)
	})
}

func TestSuspendedAuthMakesEverybodyAReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{SuspendedAuth: true})
		st := connect(t, o, o.AdminKey()).Omni().State()

		require.NoError(t, list(infra.NewMachineRequest(""))(t.Context(), st))
		assert.ErrorContains(t, create(omni.NewMachineClass("c"))(t.Context(), st), `insufficient role: "Reader"`)

		st = provider(t, o, "fakecloud").Omni().State()
		require.NoError(t, list(omni.NewMachineClass(""))(t.Context(), st), "an infra provider is a Reader, too")
		assert.ErrorContains(t, create(infra.NewMachineRequestStatus("r"))(t.Context(), st), "users are not allowed to modify")
	})
}

func TestAProviderThatIsNotRegisteredMayDoNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		c := provider(t, o, "fakecloud")

		require.NoError(t, o.State().TeardownAndDestroy(within(t, time.Minute), infra.NewProvider("fakecloud").Metadata()))

		err := list(infra.NewMachineRequest(""))(t.Context(), c.Omni().State())
		// Omni removes the service account as well; whichever comes first is what the provider sees.
		assert.Contains(t, []string{
			`rpc error: code = PermissionDenied desc = infra provider with name "fakecloud" is not registered in the system`,
			invalidSignature,
		}, fmt.Sprint(err))
	})
}

func TestUnmodelledCallsNameThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		c := connect(t, o, o.AdminKey())

		_, err := c.Management().Talosconfig(t.Context())
		assert.Equal(t, codes.Unimplemented, status.Code(err))
		assert.ErrorContains(t, err, "/management.ManagementService/Talosconfig")

		_, err = c.Auth().RegisterPGPPublicKey(t.Context(), "a@b", nil)
		assert.Equal(t, codes.Unimplemented, status.Code(err))
		assert.Equal(t, []string{"/management.ManagementService/Talosconfig", "/auth.AuthService/RegisterPublicKey"}, o.Unmodelled())
	})
}

// FuzzSignatureHeader proves that no signature header ends the server or lets a caller in.
func FuzzSignatureHeader(f *testing.F) {
	f.Add("siderov1 a b c", `{"headers":{},"method":"/cosi.resource.State/Get"}`)
	f.Add("siderov1", "{")
	f.Add("siderov1 a  AAAA", "null")
	f.Add("", "")

	o, err := sim.New(sim.Options{})
	require.NoError(f, err)

	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)

	go func() { ended <- o.Run(ctx) }()

	f.Cleanup(func() {
		cancel()
		require.NoError(f, <-ended)
	})

	var signature, payload string

	c, err := o.Client(o.AdminKey(), tampered(func(md metadata.MD) {
		md.Set(message.SignatureHeaderKey, signature)
		md.Set(message.PayloadHeaderKey, payload)
	}))
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, c.Close()) })

	f.Fuzz(func(t *testing.T, s, p string) {
		signature, payload = printable(s), printable(p)
		require.EqualError(t, getVersion(t.Context(), c), invalidSignature)
	})
}

// printable drops what gRPC does not carry in metadata.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}

		return r
	}, s)
}

func TestUnsignedCallsHaveTheRightsOfTheirKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{Unsigned: true})

		key, err := o.CreateProvider(t.Context(), "fakecloud")
		require.NoError(t, err)

		c := connect(t, o, key)
		require.NoError(t, getVersion(t.Context(), c))

		_, err = c.Omni().State().Get(t.Context(), siderolink.NewDefaultJoinToken().Metadata())
		require.ErrorContains(t, err, `insufficient role: "InfraProvider"`)
		require.NoError(t, getVersion(t.Context(), connect(t, o, o.AdminKey())))

		_, err = o.ReplaceProviderKey(t.Context(), "fakecloud")
		require.NoError(t, err)
		require.EqualError(t, getVersion(t.Context(), c), invalidSignature)
	})
}

func TestNamingAKeyIsNoSignatureUnlessItIsAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trusting, err := sim.New(sim.Options{Unsigned: true})
		require.NoError(t, err)

		o := start(t, sim.Options{})
		own := len(o.ClientOptions(""))

		c := connect(t, o, "", trusting.ClientOptions(o.AdminKey())[own:]...)
		require.EqualError(t, getVersion(t.Context(), c), invalidSignature)
	})
}
