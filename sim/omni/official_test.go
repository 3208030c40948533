package omni_test

import (
	"context"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/resource/typed"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	infraclient "github.com/siderolabs/omni/client/pkg/infra"
	"github.com/siderolabs/omni/client/pkg/infra/provision"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"

	sim "github.com/omni-infra/omni-infra-providers/sim/omni"
)

// ownMachine is the official library's state of a machine.
type ownMachine = typed.Resource[ownSpec, ownExtension]

type ownExtension struct{}

// ResourceDefinition implements typed.Extension.
func (ownExtension) ResourceDefinition() meta.ResourceDefinitionSpec {
	return meta.ResourceDefinitionSpec{
		Type:             infraclient.ResourceType("Machines", "official"),
		DefaultNamespace: infraclient.ResourceNamespace("official"),
	}
}

// booted is a machine that the provisioner made.
type booted struct{ uuid, token string }

// provisioner is a provider on the official library, whose machines boot at once.
type provisioner struct {
	boot    chan<- booted
	removed chan<- string
}

// ProvisionSteps implements provision.Provisioner.
func (p *provisioner) ProvisionSteps() []provision.Step[*ownMachine] {
	return []provision.Step[*ownMachine]{
		provision.NewStep("schematic", func(ctx context.Context, logger *zap.Logger, pctx provision.Context[*ownMachine]) error {
			id, err := pctx.GenerateSchematicID(ctx, logger)
			pctx.State.TypedSpec().Value.ManagementAddress = id

			return err
		}),
		provision.NewStep("boot", func(ctx context.Context, _ *zap.Logger, pctx provision.Context[*ownMachine]) error {
			id := uuid.NewString()
			pctx.SetMachineUUID(id)

			api, err := url.Parse(strings.TrimPrefix(pctx.ConnectionParams.KernelArgs[0], "siderolink.api="))
			if err != nil {
				return err
			}

			p.boot <- booted{id, api.Query().Get("jointoken")}

			return pctx.CreateConfigPatch(ctx, "000-"+pctx.GetRequestID(), []byte("machine: {}\n"))
		}),
	}
}

// Deprovision implements provision.Provisioner.
func (p *provisioner) Deprovision(_ context.Context, _ *zap.Logger, _ *ownMachine, r *infra.MachineRequest) error {
	p.removed <- r.Metadata().ID()

	return nil
}

// TestTheOfficialLibraryWorks runs a provider on the official library, unchanged, from a request set to its end.
func TestTheOfficialLibraryWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJoiner(t, sim.Options{})
		ctx := within(t, time.Hour)
		boot, removed := make(chan booted, 2), make(chan string, 2)

		key, err := j.omni.CreateProvider(ctx, "official")
		require.NoError(t, err)

		p, err := infraclient.NewProvider("official", &provisioner{boot, removed}, infraclient.ProviderConfig{
			Name:   "Official",
			Schema: `{"type":"object","properties":{"size":{"type":"string"}},"additionalProperties":false}`,
		})
		require.NoError(t, err)

		running, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)

		go func() {
			ended <- p.Run(running, zap.NewNop(),
				infraclient.WithOmniEndpoint(j.omni.Endpoint()),
				infraclient.WithClientOptions(j.omni.ClientOptions(key)...),
				infraclient.WithConcurrency(2),
			)
		}()

		t.Cleanup(func() {
			stop()
			require.NoError(t, <-ended)
		})

		st := connect(t, j.omni, j.omni.AdminKey()).Omni().State()
		_, err = j.omni.State().WatchFor(ctx, infra.NewProviderStatus("official").Metadata(), state.WithEventTypes(state.Created))
		require.NoError(t, err)

		set := omni.NewMachineRequestSet("pool")
		set.TypedSpec().Value.ProviderId = "official"
		set.TypedSpec().Value.TalosVersion = "1.13.5"
		set.TypedSpec().Value.ProviderData = "colour: red"
		require.ErrorContains(t, st.Create(ctx, set), `config value ".": has unknown properties: colour`)

		set.TypedSpec().Value.ProviderData = "size: small"
		set.TypedSpec().Value.MachineCount = 2
		require.NoError(t, st.Create(ctx, set))

		for range 2 {
			machine := <-boot
			_, err = j.join(j.request(machine.uuid, machine.token, unique(t, machine.uuid, "t")))
			require.NoError(t, err)

			_, err = st.WatchFor(ctx, omni.NewMachine(machine.uuid).Metadata(), state.WithEventTypes(state.Created))
			require.NoError(t, err)
		}

		assert.Equal(t, 2, count[*omni.ConfigPatch](t, st))

		_, err = safe.StateUpdateWithConflicts(ctx, st, set.Metadata(), func(r *omni.MachineRequestSet) error {
			r.TypedSpec().Value.MachineCount = 0

			return nil
		})
		require.NoError(t, err)

		assert.NotEqual(t, <-removed, <-removed)
		time.Sleep(time.Minute)

		assert.Zero(t, count[*infra.MachineRequest](t, st))
		assert.Zero(t, count[*infra.MachineRequestStatus](t, st))
		assert.Zero(t, count[*omni.ConfigPatch](t, st))
		assert.Zero(t, count[*siderolink.Link](t, st))
		assert.Zero(t, count[*omni.MachineStatus](t, st))
		assert.Empty(t, j.omni.Unmodelled())
	})
}

func count[R interface {
	resource.Resource
	meta.ResourceDefinitionProvider
}](t *testing.T, st state.State) int {
	t.Helper()

	all, err := safe.StateListAll[R](t.Context(), st)
	require.NoError(t, err)

	return all.Len()
}
