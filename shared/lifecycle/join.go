package lifecycle

import (
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	siderolinkres "github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/siderolabs/omni/client/pkg/siderolink"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// joinSource follows the resources that join configurations are made from. The request's id always goes into the join token:
// its signature makes the match trustworthy, and it survives a change of the machine's UUID. That is why join configuration
// never goes into an image.
type joinSource struct {
	providerID string
	providers  *mirror[*siderolinkres.ProviderJoinConfig]
	api        *mirror[*siderolinkres.APIConfig]
	// legacy is set, instead of the others, for an Omni without provider join configs; its tokens are of version 1.
	legacy *mirror[*siderolinkres.ConnectionParams] //nolint:staticcheck // deprecated, and all that an old Omni has
}

func newJoinSource(ctx context.Context, st state.State, providerID string, log *zap.Logger) (*joinSource, error) {
	j := &joinSource{providerID: providerID}

	v2 := false

	// The id of a definition is its type in lower case.
	definition := resource.NewMetadata(meta.NamespaceName, meta.ResourceDefinitionType, "providerjoinconfigs.omni.sidero.dev", resource.VersionUndefined)

	err := retry(ctx, log, "look for provider join configs", time.Minute, func(ctx context.Context) error {
		_, err := st.Get(ctx, definition)
		v2 = err == nil

		if state.IsNotFoundError(err) {
			return nil
		}

		return err
	})
	if err != nil {
		return nil, err
	}

	if !v2 {
		j.legacy = newMirror[*siderolinkres.ConnectionParams](resources.DefaultNamespace, siderolinkres.ConnectionParamsType, nil, //nolint:staticcheck
			func(_, _ *siderolinkres.ConnectionParams) {}) //nolint:staticcheck

		return j, nil
	}

	j.providers = newMirror(resources.InfraProviderNamespace, siderolinkres.ProviderJoinConfigType,
		func(c *siderolinkres.ProviderJoinConfig) bool { return c.Metadata().ID() == providerID },
		func(_, _ *siderolinkres.ProviderJoinConfig) {})
	j.api = newMirror[*siderolinkres.APIConfig](resources.DefaultNamespace, siderolinkres.APIConfigType, nil, func(_, _ *siderolinkres.APIConfig) {})

	return j, nil
}

func (j *joinSource) run(ctx context.Context, st state.CoreState, failed func(error)) {
	if j.legacy != nil {
		j.legacy.run(ctx, st, failed)

		return
	}

	done := make(chan struct{})

	go func() {
		defer close(done)
		j.api.run(ctx, st, failed)
	}()

	j.providers.run(ctx, st, failed)
	<-done
}

// join returns how the machine of the request finds Omni.
func (j *joinSource) join(ctx context.Context, request *infra.MachineRequest) (driver.Join, error) {
	options, err := j.options(ctx)
	if err != nil {
		return driver.Join{}, err
	}

	options = append(options,
		siderolink.WithGRPCTunnel(request.TypedSpec().Value.GrpcTunnel == specs.GrpcTunnelMode_ENABLED),
		siderolink.WithProvider(infra.NewProvider(j.providerID)),
		siderolink.WithMachineRequestID(request.Metadata().ID()),
	)

	opts, err := siderolink.NewJoinOptions(options...)
	if err != nil {
		return driver.Join{}, fmt.Errorf("make join configuration: Omni's own settings are incomplete: %w", err)
	}

	config, err := opts.RenderJoinConfig()
	if err != nil {
		return driver.Join{}, fmt.Errorf("make join configuration: %w", err)
	}

	return driver.Join{UserData: string(config), KernelArgs: opts.GetKernelArgs()}, nil
}

func (j *joinSource) options(ctx context.Context) ([]siderolink.JoinConfigOption, error) {
	if j.legacy != nil {
		if err := j.legacy.awaitFilled(ctx); err != nil {
			return nil, err
		}

		params, ok := j.legacy.get(siderolinkres.ConfigID)
		if !ok {
			return nil, fmt.Errorf("make join configuration: Omni has no ConnectionParams %q yet", siderolinkres.ConfigID)
		}

		spec := params.TypedSpec().Value

		return []siderolink.JoinConfigOption{
			siderolink.WithJoinToken(spec.JoinToken),
			siderolink.WithMachineAPIURL(spec.ApiEndpoint),
			siderolink.WithEventSinkPort(int(spec.EventsPort)),
			siderolink.WithLogServerPort(int(spec.LogsPort)),
			siderolink.WithJoinTokenVersion(jointoken.Version1),
		}, nil
	}

	for _, filled := range []func(context.Context) error{j.providers.awaitFilled, j.api.awaitFilled} {
		if err := filled(ctx); err != nil {
			return nil, err
		}
	}

	provider, ok := j.providers.get(j.providerID)
	if !ok {
		return nil, fmt.Errorf("make join configuration: Omni has no ProviderJoinConfig %q yet", j.providerID)
	}

	api, ok := j.api.get(siderolinkres.ConfigID)
	if !ok {
		return nil, fmt.Errorf("make join configuration: Omni has no SiderolinkAPIConfig %q yet", siderolinkres.ConfigID)
	}

	spec := api.TypedSpec().Value

	return []siderolink.JoinConfigOption{
		siderolink.WithJoinToken(provider.TypedSpec().Value.JoinToken),
		siderolink.WithMachineAPIURL(spec.MachineApiAdvertisedUrl),
		siderolink.WithEventSinkPort(int(spec.EventsPort)),
		siderolink.WithLogServerPort(int(spec.LogsPort)),
	}, nil
}
