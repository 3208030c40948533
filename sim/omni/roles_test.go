package omni_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/siderolabs/omni/client/pkg/omni/resources/auth"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"

	sim "github.com/omni-infra/omni-infra-providers/sim/omni"
)

func TestServiceAccountRules(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		admin := connect(t, o, o.AdminKey()).Management()

		for _, tc := range []struct {
			name, role string
			lifetime   time.Duration
			want       string
		}{
			{"infra-provider:a", "Operator", time.Hour, `infra-provider service accounts must have the role "InfraProvider"`},
			{"a", "InfraProvider", time.Hour, `service accounts with role "InfraProvider" must be prefixed with "infra-provider:"`},
			{"a", "King", time.Hour, `unknown role "King"`},
			{"a", "Reader", 366 * 24 * time.Hour, "key lifetime is too long"},
			{"admin", "Reader", time.Hour, `service account "admin" already exists`},
			{"a", "Reader", 365 * 24 * time.Hour, ""},
		} {
			_, err := admin.CreateServiceAccount(t.Context(), tc.name, armor(t, newKey(t, tc.name, tc.lifetime)), tc.role, false)

			if tc.want == "" {
				assert.NoError(t, err, tc.name)
			} else {
				assert.ErrorContains(t, err, tc.want)
			}
		}

		accounts, err := admin.ListServiceAccounts(t.Context())
		require.NoError(t, err)

		var names []string

		for _, a := range accounts {
			names = append(names, fmt.Sprintf("%s %s %d", a.GetName(), a.GetRole(), len(a.GetPgpPublicKeys())))
		}

		assert.Equal(t, []string{"a Reader 1", "admin Admin 1"}, names)
	})
}

// TestRolesOfUsers tries one call for each rule about those who are no providers.
func TestRolesOfUsers(t *testing.T) {
	request := func() *infra.MachineRequest {
		r := infra.NewMachineRequest("r")
		r.TypedSpec().Value.TalosVersion = "1.13.5"

		return r
	}

	bad := request()
	bad.TypedSpec().Value.TalosVersion = "new"

	for _, tc := range []struct {
		name, role string
		call       func(ctx context.Context, st state.State) error
		want       string // a part of the error, empty for none
	}{
		{"reader reads requests", "Reader", list(infra.NewMachineRequest("")), ""},
		{"reader reads links", "Reader", list(siderolink.NewLink("", nil)), ""},
		{"reader makes a request", "Reader", create(request()), `only operators and admins are allowed to modify "MachineRequests.omni.sidero.dev" resources`},
		{"operator makes a request", "Operator", create(request()), ""},
		{"operator makes a bad request", "Operator", create(bad), "code = InvalidArgument desc = failed to validate: 1 error occurred:\n\t* invalid talos version format: \"new\""},
		{"admin makes a status", "Admin", create(infra.NewMachineRequestStatus("r")), `users are not allowed to modify "MachineRequestStatuses.omni.sidero.dev" resources`},
		{"operator reads BMC configs", "Operator", list(infra.NewBMCConfig("")), `only admins are allowed to read "BMCConfigs.omni.sidero.dev" resources`},
		{"admin reads BMC configs", "Admin", list(infra.NewBMCConfig("")), ""},
		{"operator reads users", "Operator", list(auth.NewUser("")), `insufficient role: "Operator"`},
		{"admin reads users", "Admin", list(auth.NewUser("")), ""},
		{"admin reads set statuses", "Admin", list(omni.NewMachineRequestSetStatus("")), "access is not permitted"},
		{"admin writes a machine", "Admin", create(omni.NewMachine("m")), "only read access is permitted"},
		{"admin reads unique tokens", "Admin", list(siderolink.NewNodeUniqueToken("")), "no access is permitted"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := start(t, sim.Options{})
				key := newKey(t, "somebody", time.Hour)

				_, err := connect(t, o, o.AdminKey()).Management().CreateServiceAccount(t.Context(), "somebody", armor(t, key), tc.role, false)
				require.NoError(t, err)

				err = tc.call(within(t, time.Minute), connect(t, o, encode(t, "somebody", key)).Omni().State())
				if tc.want == "" {
					assert.NoError(t, err)
				} else {
					assert.ErrorContains(t, err, tc.want)
				}
			})
		})
	}
}

func list(kind resource.Resource) func(context.Context, state.State) error {
	return func(ctx context.Context, st state.State) error {
		_, err := st.List(ctx, kind.Metadata())

		return err
	}
}

func create(r resource.Resource) func(context.Context, state.State) error {
	return func(ctx context.Context, st state.State) error { return st.Create(ctx, r) }
}

func TestOnlyFinalizersLabelsAndAnnotationsOfARequestChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := start(t, sim.Options{})
		st := connect(t, o, o.AdminKey()).Omni().State()

		r := infra.NewMachineRequest("r")
		r.TypedSpec().Value.TalosVersion = "1.13.5"
		require.NoError(t, st.Create(t.Context(), r))

		_, err := st.UpdateWithConflicts(t.Context(), r.Metadata(), func(r resource.Resource) error {
			r.Metadata().Annotations().Set("reboot", "1")

			return nil
		})
		require.NoError(t, err)

		_, err = st.UpdateWithConflicts(t.Context(), r.Metadata(), func(r resource.Resource) error {
			r.(*infra.MachineRequest).TypedSpec().Value.TalosVersion = "1.13.4"

			return nil
		})
		assert.ErrorContains(t, err, "code = InvalidArgument desc = failed to validate: 1 error occurred:\n\t* machine request spec is immutable")
	})
}

func TestMetadataLimits(t *testing.T) {
	many := map[string]string{}
	for i := range 257 {
		many[strconv.Itoa(i)] = ""
	}

	for _, tc := range []struct {
		name                string
		id                  string
		labels, annotations map[string]string
		want                string
	}{
		{"no id", "", nil, nil, "resource ID must not be empty"},
		{"long id", strings.Repeat("a", 1025), nil, nil, "resource ID is too long: 1025 bytes (max 1024)"},
		{"newline", "c", nil, map[string]string{"k": "a\nb"}, `annotation value for key "k" must not contain control characters`},
		{"long value", "c", nil, map[string]string{"k": strings.Repeat("a", 16*1024+1)}, `annotation value for key "k" is too long: 16385 bytes (max 16384)`},
		{"many labels", "c", many, nil, "too many labels: 257 (max 256)"},
		{"largest", strings.Repeat("a", 1024), nil, map[string]string{"k": strings.Repeat("a", 16*1024)}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := start(t, sim.Options{})
				class := infra.NewMachineRequest(tc.id)
				class.TypedSpec().Value.TalosVersion = "1.13.5"

				for k, v := range tc.labels {
					class.Metadata().Labels().Set(k, v)
				}

				for k, v := range tc.annotations {
					class.Metadata().Annotations().Set(k, v)
				}

				err := connect(t, o, o.AdminKey()).Omni().State().Create(t.Context(), class)
				if tc.want == "" {
					assert.NoError(t, err)
				} else {
					assert.ErrorContains(t, err, "code = InvalidArgument desc = failed to validate: 1 error occurred:\n\t* "+tc.want)
				}
			})
		})
	}
}

// TestProviderSeesItselfOnceItIsLabelled proves that an administrator can hand a provider its configuration in an annotation.
func TestProviderSeesItselfOnceItIsLabelled(t *testing.T) {
	o := start(t, sim.Options{})
	ctx := within(t, 30*time.Second)
	cloud, other := provider(t, o, "cloud").Omni().State(), provider(t, o, "other").Omni().State()
	admin := connect(t, o, o.AdminKey()).Omni().State()
	self := infra.NewProvider("cloud").Metadata()

	_, err := cloud.Get(ctx, self)
	require.True(t, state.IsNotFoundError(err), "%v", err)

	events := make(chan state.Event)
	require.NoError(t, cloud.Watch(ctx, self, events))

	set := func(annotation string) {
		_, err := admin.UpdateWithConflicts(ctx, self, func(r resource.Resource) error {
			r.Metadata().Labels().Set(omni.LabelInfraProviderID, "cloud")
			r.Metadata().Annotations().Set("omni-infra.dev/config", annotation)

			return nil
		})
		require.NoError(t, err)
	}

	for _, text := range []string{`{"provider":{"concurrency":4}}`, `{"provider":{"concurrency":5}}`} {
		set(text)

		event := <-events
		for event.Resource.Metadata().Annotations().Raw()["omni-infra.dev/config"] != text {
			event = <-events // Omni's own finalizers are changes as well.
		}
	}

	res, err := cloud.Get(ctx, self)
	require.NoError(t, err)

	value, _ := res.Metadata().Annotations().Get("omni-infra.dev/config")
	require.Equal(t, `{"provider":{"concurrency":5}}`, value)

	_, err = other.Get(ctx, self)
	require.True(t, state.IsNotFoundError(err), "%v", err)
}
