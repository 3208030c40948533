package omni_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/protobuf"
	"github.com/cosi-project/runtime/pkg/resource/typed"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/stretchr/testify/require"

	"github.com/siderolabs/omni/client/api/omni/management"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/client"
	infraclient "github.com/siderolabs/omni/client/pkg/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/auth"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/siderolabs/omni/client/pkg/omni/resources/system"

	sim "github.com/omni-infra/omni-infra-providers/sim/omni"
)

const (
	machineUUID = "9204b267-ab33-4540-8560-5edbff05a540"
	requestID   = "pool-hqv4ch"
)

// ownSpec is a provider's own state of a machine.
type ownSpec = protobuf.ResourceSpec[specs.MachineSpec, *specs.MachineSpec]

func newOwn(ns, typ, id string) resource.Resource {
	return typed.NewResource[ownSpec, omni.MachineExtension](
		resource.NewMetadata(ns, typ, id, resource.VersionUndefined),
		protobuf.NewResourceSpec(&specs.MachineSpec{ManagementAddress: "x"}),
	)
}

// populate writes what the recorded server had: a request of provider fakecloud and the machine that was made for it.
func populate(t *testing.T, o *sim.Omni) {
	t.Helper()

	fake := func(r resource.Resource) resource.Resource {
		r.Metadata().Labels().Set(omni.LabelInfraProviderID, "fakecloud")

		return r
	}

	request := infra.NewMachineRequest(requestID)
	request.TypedSpec().Value.TalosVersion = "1.13.5"

	for _, r := range []resource.Resource{
		fake(request),
		fake(infra.NewMachineRequestStatus(requestID)),
		fake(infra.NewMachineRegistration(machineUUID)),
		fake(infra.NewProviderStatus("fakecloud")),
		fake(infra.NewProviderHealthStatus("fakecloud")),
		fake(infra.NewConfigPatchRequest("000-hostname-" + requestID)),
		newOwn(infraclient.ResourceNamespace("fakecloud"), infraclient.ResourceType("Machines", "fakecloud"), requestID),
		omni.NewMachine(machineUUID),
	} {
		require.NoError(t, o.State().Create(t.Context(), r))
	}

	ctx := within(t, time.Minute)

	for _, id := range []string{"fakecloud", "thirdcloud"} {
		_, err := o.State().WatchFor(ctx, siderolink.NewProviderJoinConfig(id).Metadata(), state.WithEventTypes(state.Created))
		require.NoError(t, err)
	}
}

// prober records what a provider's calls are answered with.
type prober struct {
	t       *testing.T
	client  *client.Client
	st      state.State
	answers []string
}

func (p *prober) probe(name string, call func(ctx context.Context) (string, error)) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()

	detail, err := call(ctx)
	p.answers = append(p.answers, name+" => "+describe(err)+detail)
}

func (p *prober) try(name string, call func(ctx context.Context) error) {
	p.probe(name, func(ctx context.Context) (string, error) { return "", call(ctx) })
}

// describe says what a Go client makes of an error.
func describe(err error) string {
	if err == nil {
		return "OK"
	}

	var kinds []string

	for _, k := range []struct {
		name string
		is   func(error) bool
	}{
		{"NotFound", state.IsNotFoundError},
		{"Conflict", func(err error) bool { return state.IsConflictError(err) }},
		{"OwnerConflict", state.IsOwnerConflictError},
		{"PhaseConflict", state.IsPhaseConflictError},
	} {
		if k.is(err) {
			kinds = append(kinds, "state."+k.name)
		}
	}

	return fmt.Sprintf("ERR[%s] %s", strings.Join(kinds, ","), oneLine(err.Error()))
}

var spaces = regexp.MustCompile(`\s+`)

func oneLine(text string) string { return strings.TrimSpace(spaces.ReplaceAllString(text, " ")) }

func (p *prober) read(ns, typ string) {
	kind := resource.NewMetadata(ns, typ, "", resource.VersionUndefined)

	p.probe("list "+ns+"/"+typ, func(ctx context.Context) (string, error) {
		list, err := p.st.List(ctx, kind)
		if err != nil {
			return "", err
		}

		return fmt.Sprintf(" %d", len(list.Items)), nil
	})
	p.try("watch "+ns+"/"+typ, func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()

		events := make(chan state.Event)
		if err := p.st.WatchKind(ctx, kind, events, state.WithBootstrapContents(true)); err != nil {
			return err
		}

		for {
			select {
			case event := <-events:
				switch event.Type {
				case state.Errored:
					return event.Error
				case state.Bootstrapped:
					return nil
				case state.Created, state.Updated, state.Destroyed, state.Noop:
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
}

func (p *prober) create(name string, r resource.Resource) {
	p.probe("create "+name, func(ctx context.Context) (string, error) {
		if err := p.st.Create(ctx, r); err != nil {
			return "", err
		}

		stored, err := p.st.Get(ctx, r.Metadata())
		if err != nil {
			return "", fmt.Errorf("created, get back: %w", err)
		}

		id, _ := stored.Metadata().Labels().Get(omni.LabelInfraProviderID)

		return fmt.Sprintf(" label=%q", id), nil
	})
}

func (p *prober) destroy(name string, ptr resource.Pointer) {
	p.try(name, func(ctx context.Context) error { return p.st.TeardownAndDestroy(ctx, ptr) })
}

// run makes the calls that were recorded from a real server.
func (p *prober) run() {
	own := infraclient.ResourceNamespace("fakecloud")
	things := infraclient.ResourceType("Things", "fakecloud")

	for _, kind := range [][2]string{
		{"infra-provider", infra.MachineRequestType},
		{"infra-provider", infra.MachineRequestStatusType},
		{"infra-provider", infra.MachineRegistrationType},
		{"infra-provider", infra.InfraMachineType},
		{"infra-provider", infra.InfraMachineStatusType},
		{"infra-provider", infra.InfraProviderStatusType},
		{"infra-provider-ephemeral", infra.InfraProviderHealthStatusType},
		{"infra-provider", infra.InfraProviderHealthStatusType},
		{"infra-provider", infra.ProviderType},
		{"infra-provider", infra.ConfigPatchRequestType},
		{"infra-provider", infra.BMCConfigType},
		{"infra-provider", siderolink.ProviderJoinConfigType},
		{own, infraclient.ResourceType("Machines", "fakecloud")},
		{own, infraclient.ResourceType("Anything", "fakecloud")},
		{own, infraclient.ResourceType("Machines", "other")},
		{"infra-provider:other", infraclient.ResourceType("Machines", "other")},
		{"default", siderolink.ConnectionParamsType},
		{"default", siderolink.APIConfigType},
		{"default", siderolink.LinkType},
		{"default", siderolink.JoinTokenType},
		{"default", siderolink.JoinTokenStatusType},
		{"default", siderolink.DefaultJoinTokenType},
		{"default", siderolink.MachineJoinConfigType},
		{"default", omni.MachineType},
		{"default", omni.MachineStatusType},
		{"default", omni.MachineStatusSnapshotType},
		{"default", omni.MachineClassType},
		{"default", omni.MachineRequestSetType},
		{"default", omni.MachineRequestSetStatusType},
		{"ephemeral", omni.InfraProviderCombinedStatusType},
		{"default", omni.ClusterType},
		{"default", omni.FeaturesConfigType},
		{"default", omni.TalosVersionType},
		{"default", omni.TalosExtensionsType},
		{"default", auth.AuthConfigType},
		{"default", auth.UserType},
		{"meta", "ResourceDefinitions.meta.cosi.dev"},
		{"meta", "Namespaces.meta.cosi.dev"},
		{"ephemeral", system.SysVersionType},
		{"default", system.SysVersionType},
	} {
		p.read(kind[0], kind[1])
	}

	request := infra.NewMachineRequest("sneaky")
	request.TypedSpec().Value.TalosVersion = "1.13.5"
	foreign := infra.NewMachineRequestStatus("acl-foreign-label")
	foreign.Metadata().Labels().Set(omni.LabelInfraProviderID, "other")

	p.create("MachineRequest", request)
	p.create("MachineRequestStatus acl-free (no request behind it)", infra.NewMachineRequestStatus("acl-free"))
	p.destroy("teardown+destroy MachineRequestStatus acl-free", infra.NewMachineRequestStatus("acl-free").Metadata())
	p.create("MachineRequestStatus labelled for another provider", foreign)
	p.destroy("destroy it", foreign.Metadata())
	p.create("InfraMachine", infra.NewMachine("sneaky"))
	p.create("InfraMachineStatus", infra.NewMachineStatus("acl-ims"))
	p.destroy("destroy InfraMachineStatus", infra.NewMachineStatus("acl-ims").Metadata())
	p.create("ProviderStatus other id", infra.NewProviderStatus("other"))
	p.create("ProviderHealthStatus other id", infra.NewProviderHealthStatus("other"))
	p.create("InfraProvider other id", infra.NewProvider("other"))
	p.create("ConfigPatchRequest unlabelled", infra.NewConfigPatchRequest("acl-cpr"))
	p.destroy("destroy ConfigPatchRequest", infra.NewConfigPatchRequest("acl-cpr").Metadata())
	p.create("MachineRegistration", infra.NewMachineRegistration("acl"))
	p.create("own ns, own suffix", newOwn(own, things, "x"))
	p.destroy("destroy it", resource.NewMetadata(own, things, "x", resource.VersionUndefined))
	p.create("own ns, foreign suffix", newOwn(own, "Things.test.sidero.dev", "x"))
	p.create("other provider's ns", newOwn("infra-provider:other", infraclient.ResourceType("Things", "other"), "x"))
	p.create("default ns, own suffix", newOwn("default", things, "x"))
	p.create("infra-provider ns, own suffix", newOwn("infra-provider", things, "x"))
	p.create("MachineRequestSet", omni.NewMachineRequestSet("sneaky"))
	p.create("Link", siderolink.NewLink("sneaky", &specs.SiderolinkSpec{}))

	get := func(name string, ptr resource.Pointer) {
		p.try(name, func(ctx context.Context) error {
			_, err := p.st.Get(ctx, ptr)

			return err
		})
	}

	get("get MachineRequest that does not exist", infra.NewMachineRequest("nope").Metadata())
	get("get InfraProvider other", infra.NewProvider("other").Metadata())
	get("get own InfraProvider", infra.NewProvider("fakecloud").Metadata())

	p.runRequest()
	p.runManagement()
}

// runRequest probes what a provider may do with its own request.
func (p *prober) runRequest() {
	md := infra.NewMachineRequest(requestID).Metadata()

	change := func(what string, f func(*infra.MachineRequest)) {
		p.try("update own MachineRequest "+what, func(ctx context.Context) error {
			_, err := safe.StateUpdateWithConflicts(ctx, p.st, md, func(r *infra.MachineRequest) error {
				f(r)

				return nil
			})

			return err
		})
	}

	change("spec", func(r *infra.MachineRequest) { r.TypedSpec().Value.TalosVersion = "1.12.8" })
	change("label", func(r *infra.MachineRequest) { r.Metadata().Labels().Set("x", "y") })
	change("annotation", func(r *infra.MachineRequest) { r.Metadata().Annotations().Set("x", "y") })
	p.try("add finalizer to own MachineRequest", func(ctx context.Context) error { return p.st.AddFinalizer(ctx, md, "acl-probe") })
	p.try("remove that finalizer", func(ctx context.Context) error { return p.st.RemoveFinalizer(ctx, md, "acl-probe") })
	p.try("teardown own MachineRequest", func(ctx context.Context) error {
		_, err := p.st.Teardown(ctx, md)

		return err
	})
	p.try("destroy own MachineRequest", func(ctx context.Context) error { return p.st.Destroy(ctx, md) })
	p.try("update own ProviderStatus label to other provider", func(ctx context.Context) error {
		_, err := safe.StateUpdateWithConflicts(ctx, p.st, infra.NewProviderStatus("fakecloud").Metadata(),
			func(r *infra.ProviderStatus) error {
				r.Metadata().Labels().Set(omni.LabelInfraProviderID, "other")

				return nil
			})

		return err
	})
	p.try("update ProviderStatus of other", func(ctx context.Context) error {
		return p.st.Update(ctx, infra.NewProviderStatus("other"))
	})
	p.try("teardown own InfraProvider", func(ctx context.Context) error {
		return p.st.Destroy(ctx, infra.NewProvider("other").Metadata())
	})
}

func (p *prober) runManagement() {
	m := p.client.Management()

	p.try("CreateSchematicFromRaw", func(ctx context.Context) error {
		_, err := m.CreateSchematicFromRaw(ctx, []byte("customization: {}\n"))

		return err
	})
	p.try("CreateSchematicFromRaw, bad yaml", func(ctx context.Context) error {
		_, err := m.CreateSchematicFromRaw(ctx, []byte("customisation: {}\n"))

		return err
	})
	p.try("CreateSchematic", func(ctx context.Context) error {
		_, err := m.CreateSchematic(ctx, &management.CreateSchematicRequest{TalosVersion: "1.13.5"})

		return err
	})
	p.try("ListServiceAccounts", func(ctx context.Context) error {
		_, err := m.ListServiceAccounts(ctx)

		return err
	})
	p.try("Omniconfig", func(ctx context.Context) error {
		_, err := m.Omniconfig(ctx)

		return err
	})
}
