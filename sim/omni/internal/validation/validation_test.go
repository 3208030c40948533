package validation_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/omni/internal/validation"
)

const schema = `{"type":"object","properties":{"size":{"type":"string"},"disks":{"type":"array","items":{"type":"object",` +
	`"properties":{"gib":{"type":"integer","minimum":1}}}}},"additionalProperties":false}`

// omniWith returns a state with the provider fakecloud, the static provider metal, and one Talos version.
func omniWith(t *testing.T, more ...resource.Resource) state.State {
	t.Helper()

	st := state.WrapCore(namespaced.NewState(inmem.Build))

	provider := infra.NewProviderStatus("fakecloud")
	provider.TypedSpec().Value.Schema = schema

	metal := infra.NewProviderStatus("metal")
	metal.Metadata().Labels().Set(omni.LabelIsStaticInfraProvider, "")

	available := omni.NewTalosExtensions("1.13.5")
	available.TypedSpec().Value.Items = []*specs.TalosExtensionsSpec_Info{{Name: "siderolabs/hello-world-service"}}

	for _, res := range append(more, provider, metal, available, omni.NewTalosVersion("1.13.5")) {
		require.NoError(t, st.Create(t.Context(), res))
	}

	return st
}

func requireProblems(t *testing.T, got []error, want ...string) {
	t.Helper()

	var texts []string
	for _, err := range got {
		texts = append(texts, err.Error())
	}

	require.Equal(t, want, texts)
}

func set(change func(*specs.MachineRequestSetSpec)) *omni.MachineRequestSet {
	res := omni.NewMachineRequestSet("pool")
	spec := res.TypedSpec().Value
	spec.ProviderId, spec.TalosVersion, spec.ProviderData = "fakecloud", "1.13.5", "size: small"
	change(spec)

	return res
}

func TestMachineRequestSetMustFitItsProvider(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*specs.MachineRequestSetSpec)
		want   []string
	}{
		{name: "good", change: func(*specs.MachineRequestSetSpec) {}},
		{name: "no data", change: func(s *specs.MachineRequestSetSpec) { s.ProviderData = "" }},
		{name: "known extension", change: func(s *specs.MachineRequestSetSpec) {
			s.Extensions = []string{"siderolabs/hello-world-service"}
		}},
		{
			name:   "no provider",
			change: func(s *specs.MachineRequestSetSpec) { *s = specs.MachineRequestSetSpec{} },
			want:   []string{"provider id can not be empty"},
		},
		{
			name:   "provider that has not reported",
			change: func(s *specs.MachineRequestSetSpec) { s.ProviderId = "nocloud" },
			want: []string{"failed to get provider: resource InfraProviderStatuses.omni.sidero.dev(infra-provider/nocloud@undefined)" +
				" doesn't exist"},
		},
		{
			name:   "static provider",
			change: func(s *specs.MachineRequestSetSpec) { s.ProviderId = "metal" },
			want:   []string{"cannot use static provider in the auto-provisioned machine class"},
		},
		{
			name:   "unknown key",
			change: func(s *specs.MachineRequestSetSpec) { s.ProviderData = "colour: red" },
			want:   []string{`- config value ".": has unknown properties: colour`},
		},
		{
			name:   "wrong types",
			change: func(s *specs.MachineRequestSetSpec) { s.ProviderData = "size: 3\ndisks: [{gib: 0}]" },
			want: []string{`- config value ".disks.0.gib": minimum: got 0, want 1` + "\n" +
				`- config value ".size": got number, want string`},
		},
		{
			name:   "unknown version",
			change: func(s *specs.MachineRequestSetSpec) { s.TalosVersion = "1.99.0"; s.Extensions = []string{"any"} },
			want:   []string{`invalid talos version "1.99.0": it is not known to this Omni`},
		},
		{
			name:   "unknown extension",
			change: func(s *specs.MachineRequestSetSpec) { s.Extensions = []string{"siderolabs/nonesuch"} },
			want:   []string{`extension "siderolabs/nonesuch" is not available for Talos version "1.13.5"`},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			requireProblems(t, validation.Create(t.Context(), omniWith(t), set(test.change)), test.want...)
		})
	}
}

func TestDataThatIsNotYAMLIsRefused(t *testing.T) {
	problems := validation.Create(t.Context(), omniWith(t), set(func(s *specs.MachineRequestSetSpec) { s.ProviderData = "a: [" }))
	require.Len(t, problems, 1)
	require.ErrorContains(t, problems[0], "parse provider data")
}

func TestSetMayShrinkWhenItsProviderIsGone(t *testing.T) {
	gone := func(s *specs.MachineRequestSetSpec) { s.ProviderId = "gone"; s.MachineCount = 3 }
	smaller := func(s *specs.MachineRequestSetSpec) { s.ProviderId = "gone" }
	other := func(s *specs.MachineRequestSetSpec) { s.ProviderId = "" }

	requireProblems(t, validation.Update(t.Context(), omniWith(t), set(gone), set(smaller)))
	requireProblems(t, validation.Update(t.Context(), omniWith(t), set(gone), set(other)), "provider id can not be empty")
}

func TestMachineClassIsEitherMadeOrMatched(t *testing.T) {
	class := func(spec *specs.MachineClassSpec) *omni.MachineClass {
		res := omni.NewMachineClass("small")
		res.TypedSpec().Value = spec

		return res
	}

	for _, test := range []struct {
		name string
		spec *specs.MachineClassSpec
		want []string
	}{
		{name: "matched", spec: &specs.MachineClassSpec{MatchLabels: []string{"a=b"}}},
		{name: "made", spec: &specs.MachineClassSpec{AutoProvision: &specs.MachineClassSpec_Provision{ProviderId: "fakecloud"}}},
		{
			name: "both",
			spec: &specs.MachineClassSpec{MatchLabels: []string{"a"}, AutoProvision: &specs.MachineClassSpec_Provision{}},
			want: []string{"can't set both auto provision and match labels at the same time"},
		},
		{
			name: "no provider",
			spec: &specs.MachineClassSpec{AutoProvision: &specs.MachineClassSpec_Provision{}},
			want: []string{"providerID can not be empty"},
		},
		{
			name: "static provider",
			spec: &specs.MachineClassSpec{AutoProvision: &specs.MachineClassSpec_Provision{ProviderId: "metal"}},
			want: []string{"cannot use static provider in the auto-provisioned machine class"},
		},
		{
			name: "bad data",
			spec: &specs.MachineClassSpec{AutoProvision: &specs.MachineClassSpec_Provision{ProviderId: "fakecloud", ProviderData: "x: 1"}},
			want: []string{`- config value ".": has unknown properties: x`},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			requireProblems(t, validation.Create(t.Context(), omniWith(t), class(test.spec)), test.want...)
			requireProblems(t, validation.Update(t.Context(), omniWith(t), class(&specs.MachineClassSpec{}), class(test.spec)), test.want...)
		})
	}
}

func TestMachineClassInUseStays(t *testing.T) {
	workers := omni.NewMachineSet("demo-workers")
	workers.TypedSpec().Value.MachineAllocation = &specs.MachineSetSpec_MachineAllocation{Name: "small"}

	st := omniWith(t, workers)

	requireProblems(t, validation.Destroy(t.Context(), st, omni.NewMachineClass("small").Metadata()),
		"can not delete the machine class as it is still in use by machine sets: demo-workers")
	requireProblems(t, validation.Destroy(t.Context(), st, omni.NewMachineClass("large").Metadata()))
}

func TestMachineRequestSpecNeverChanges(t *testing.T) {
	request := func(version string) *infra.MachineRequest {
		res := infra.NewMachineRequest("lone")
		res.TypedSpec().Value.TalosVersion = version

		return res
	}

	requireProblems(t, validation.Create(t.Context(), omniWith(t), request("v1.13.5")))
	requireProblems(t, validation.Create(t.Context(), omniWith(t), request("latest")), `invalid talos version format: "latest"`)
	requireProblems(t, validation.Update(t.Context(), omniWith(t), request("1.13.5"), request("1.13.4")), "machine request spec is immutable")

	labelled := request("1.13.5")
	labelled.Metadata().Labels().Set("rack", "r1")
	requireProblems(t, validation.Update(t.Context(), omniWith(t), request("1.13.5"), labelled))
}

func TestProviderWithMachinesStays(t *testing.T) {
	machine := func(id, provider string) *omni.Machine {
		res := omni.NewMachine(id)
		res.Metadata().Labels().Set(omni.LabelInfraProviderID, provider)

		return res
	}

	leaving := machine("m3", "fakecloud")
	leaving.Metadata().SetPhase(resource.PhaseTearingDown)

	st := omniWith(t, machine("m1", "fakecloud"), machine("m2", "fakecloud"), leaving, machine("m4", "other"))

	requireProblems(t, validation.Destroy(t.Context(), st, infra.NewProvider("fakecloud").Metadata()),
		`cannot delete the infra provider "fakecloud", as there are 2 running machines managed by it: [m1 m2]`)
	requireProblems(t, validation.Destroy(t.Context(), st, infra.NewProvider("metal").Metadata()))
}

func TestAcceptedMachineStaysAccepted(t *testing.T) {
	config := func(status specs.InfraMachineConfigSpec_AcceptanceStatus) *omni.InfraMachineConfig {
		res := omni.NewInfraMachineConfig("m1")
		res.TypedSpec().Value.AcceptanceStatus = status

		return res
	}

	pending, accepted := config(specs.InfraMachineConfigSpec_PENDING), config(specs.InfraMachineConfigSpec_ACCEPTED)

	requireProblems(t, validation.Update(t.Context(), omniWith(t), pending, accepted))
	requireProblems(t, validation.Update(t.Context(), omniWith(t), accepted, pending),
		"an accepted machine cannot be rejected or set back to pending acceptance")
}

func TestMetadataHasLimits(t *testing.T) {
	long := strings.Repeat("x", 1025)

	for _, test := range []struct {
		name   string
		id     string
		change func(md *resource.Metadata)
		want   []string
	}{
		{name: "good", id: strings.Repeat("x", 1024), change: func(md *resource.Metadata) {
			md.Annotations().Set("k", strings.Repeat("x", 16<<10))
		}},
		{name: "no id", want: []string{"resource ID must not be empty"}},
		{name: "long id", id: long, want: []string{"resource ID is too long: 1025 bytes (max 1024)"}},
		{name: "newline in id", id: "a\nb", want: []string{"resource ID must not contain control characters"}},
		{
			name: "newline in annotation", id: "a",
			change: func(md *resource.Metadata) { md.Annotations().Set("k", "a\nb") },
			want:   []string{`annotation value for key "k" must not contain control characters`},
		},
		{
			name: "long label key", id: "a",
			change: func(md *resource.Metadata) { md.Labels().Set(long, "") },
			want:   []string{fmt.Sprintf("label key %q is too long: 1025 bytes (max 1024)", long)},
		},
		{
			name: "long label value", id: "a",
			change: func(md *resource.Metadata) { md.Labels().Set("k", strings.Repeat("x", 16385)) },
			want:   []string{`label value for key "k" is too long: 16385 bytes (max 16384)`},
		},
		{
			name: "many labels", id: "a",
			change: func(md *resource.Metadata) {
				for i := range 257 {
					md.Labels().Set(fmt.Sprint(i), "")
				}
			},
			want: []string{"too many labels: 257 (max 256)"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			res := omni.NewMachineLabels(test.id)
			if test.change != nil {
				test.change(res.Metadata())
			}

			requireProblems(t, validation.Create(t.Context(), omniWith(t), res), test.want...)
		})
	}
}

func TestUpdateAnswersOnlyForWhatItChanges(t *testing.T) {
	old, updated := omni.NewMachineLabels("m1"), omni.NewMachineLabels("m1")
	old.Metadata().Annotations().Set("k", "a\nb")
	updated.Metadata().Annotations().Set("k", "a\nb")

	requireProblems(t, validation.Update(t.Context(), omniWith(t), old, updated))

	updated.Metadata().Annotations().Set("k", "a\nc")
	requireProblems(t, validation.Update(t.Context(), omniWith(t), old, updated),
		`annotation value for key "k" must not contain control characters`)
}

func FuzzProviderDataNeverPanics(f *testing.F) {
	f.Add("size: small")
	f.Add("{")
	f.Add("- a\n- b")

	st := state.WrapCore(namespaced.NewState(inmem.Build))
	provider := infra.NewProviderStatus("fakecloud")
	provider.TypedSpec().Value.Schema = schema
	require.NoError(f, st.Create(f.Context(), provider))
	require.NoError(f, st.Create(f.Context(), omni.NewTalosVersion("1.13.5")))

	f.Fuzz(func(t *testing.T, data string) {
		for _, err := range validation.Create(t.Context(), st, set(func(s *specs.MachineRequestSetSpec) { s.ProviderData = data })) {
			require.NotEmpty(t, err.Error())
		}
	})
}
