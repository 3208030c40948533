package control

import (
	"context"
	"time"

	"github.com/cosi-project/runtime/pkg/controller"
	"github.com/cosi-project/runtime/pkg/controller/generic"
	"github.com/cosi-project/runtime/pkg/controller/generic/qtransform"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/access"
	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/auth"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	siderolinkclient "github.com/siderolabs/omni/client/pkg/siderolink"
	"go.uber.org/zap"
)

// providerControllers follow the registration of infrastructure providers.
func providerControllers(opts Options) []controller.QController {
	return []controller.QController{
		joinConfigs(),
		combinedStatuses(opts.Timing.Heartbeat),
		&keeper[*infra.Provider]{
			name: "InfraProviderCleanupController",
			release: func(ctx context.Context, r controller.QRuntime, provider *infra.Provider) (bool, error) {
				return cleanUp(ctx, r, provider, opts.ProviderRemovalTakesAllSets)
			},
			mapped: []mapping{
				on[*infra.ProviderStatus](toSameID[*infra.Provider]()),
				on[*infra.ProviderHealthStatus](toSameID[*infra.Provider]()),
				on[*infra.MachineRequestStatus](toLabel[*infra.Provider](omni.LabelInfraProviderID)),
				on[*infra.MachineStatus](toLabel[*infra.Provider](omni.LabelInfraProviderID)),
				on[*omni.MachineRequestSet](toAll[*infra.Provider]()),
			},
			outputs: []controller.Output{
				shares[*infra.ProviderStatus](), shares[*infra.ProviderHealthStatus](), shares[*infra.MachineStatus](),
				shares[*infra.MachineRequestStatus](), shares[*omni.MachineRequestSet](), shares[*siderolink.Link](),
				shares[*auth.Identity](), shares[*auth.User](), shares[*auth.PublicKey](),
			},
		},
	}
}

// joinConfigs gives each provider a join token of its own, and the join config that goes with it.
func joinConfigs() controller.QController {
	return qtransform.NewQController(qtransform.Settings[*infra.Provider, *siderolink.ProviderJoinConfig]{
		Name: "ProviderJoinConfigController",
		MapMetadataFunc: func(provider *infra.Provider) *siderolink.ProviderJoinConfig {
			return siderolink.NewProviderJoinConfig(provider.Metadata().ID())
		},
		UnmapMetadataFunc: func(config *siderolink.ProviderJoinConfig) *infra.Provider {
			return infra.NewProvider(config.Metadata().ID())
		},
		TransformFunc: fillJoinConfig,
	}, qtransform.WithExtraMappedInput[*siderolink.APIConfig](toAll[*infra.Provider]()))
}

func fillJoinConfig(
	ctx context.Context, r controller.Reader, _ *zap.Logger, provider *infra.Provider, config *siderolink.ProviderJoinConfig,
) error {
	api, ok, err := find[*siderolink.APIConfig](ctx, r, siderolink.ConfigID)
	if err != nil {
		return err
	}

	if !ok {
		return errNotYet
	}

	spec := config.TypedSpec().Value
	if spec.JoinToken == "" {
		if spec.JoinToken, err = jointoken.Generate(); err != nil {
			return err
		}
	}

	join, err := siderolinkclient.NewJoinOptions(
		siderolinkclient.WithProvider(provider),
		siderolinkclient.WithJoinToken(spec.JoinToken),
		siderolinkclient.WithJoinTokenVersion(jointoken.Version2),
		siderolinkclient.WithMachineAPIURL(api.TypedSpec().Value.MachineApiAdvertisedUrl),
		siderolinkclient.WithGRPCTunnel(api.TypedSpec().Value.EnforceGrpcTunnel),
		siderolinkclient.WithEventSinkPort(int(api.TypedSpec().Value.EventsPort)),
		siderolinkclient.WithLogServerPort(int(api.TypedSpec().Value.LogsPort)),
	)
	if err != nil {
		return err
	}

	rendered, err := join.RenderJoinConfig()
	if err != nil {
		return err
	}

	spec.Config = &specs.JoinConfig{KernelArgs: join.GetKernelArgs(), Config: string(rendered)}
	config.Metadata().Labels().Set(omni.LabelInfraProviderID, provider.Metadata().ID())

	return nil
}

// combinedStatuses says whether each provider has come up and is alive.
func combinedStatuses(heartbeat time.Duration) controller.QController {
	return qtransform.NewQController(qtransform.Settings[*infra.Provider, *omni.InfraProviderCombinedStatus]{
		Name: "InfraProviderStatusController",
		MapMetadataFunc: func(provider *infra.Provider) *omni.InfraProviderCombinedStatus {
			return omni.NewInfraProviderCombinedStatus(provider.Metadata().ID())
		},
		UnmapMetadataFunc: func(status *omni.InfraProviderCombinedStatus) *infra.Provider {
			return infra.NewProvider(status.Metadata().ID())
		},
		TransformFunc: func(
			ctx context.Context, r controller.Reader, _ *zap.Logger, provider *infra.Provider, out *omni.InfraProviderCombinedStatus,
		) error {
			return fillCombined(ctx, r, provider, out, heartbeat)
		},
	},
		qtransform.WithExtraMappedInput[*infra.ProviderStatus](toSameID[*infra.Provider]()),
		qtransform.WithExtraMappedInput[*infra.ProviderHealthStatus](toSameID[*infra.Provider]()),
	)
}

func fillCombined(
	ctx context.Context, r controller.Reader, provider *infra.Provider, out *omni.InfraProviderCombinedStatus, heartbeat time.Duration,
) error {
	id, spec := provider.Metadata().ID(), out.TypedSpec().Value
	health := &specs.InfraProviderCombinedStatusSpec_Health{}
	spec.Health = health

	status, ok, err := find[*infra.ProviderStatus](ctx, r, id)
	if err != nil {
		return err
	}

	if ok {
		reported := status.TypedSpec().Value
		spec.Name, spec.Description, spec.Icon = reported.Name, reported.Description, reported.Icon
		health.Initialized = true
	}

	beat, ok, err := find[*infra.ProviderHealthStatus](ctx, r, id)
	if err != nil || !ok {
		return err
	}

	health.Error = beat.TypedSpec().Value.Error

	left := heartbeat - time.Since(beat.TypedSpec().Value.LastHeartbeatTimestamp.AsTime())
	if left <= 0 {
		return nil
	}

	health.Connected = true

	return controller.NewRequeueInterval(left)
}

// cleanUp takes away what a removed provider leaves in Omni.
func cleanUp(ctx context.Context, r controller.QRuntime, provider *infra.Provider, allSets bool) (bool, error) {
	id := provider.Metadata().ID()

	if err := removeUnowned[*infra.ProviderStatus](ctx, r, id); err != nil {
		return false, err
	}

	if err := removeUnowned[*infra.ProviderHealthStatus](ctx, r, id); err != nil {
		return false, err
	}

	if err := removeServiceAccount(ctx, r, id); err != nil {
		return false, err
	}

	links, err := labelled[*siderolink.Link](ctx, r, omni.LabelInfraProviderID, id)
	if err != nil {
		return false, err
	}

	for _, link := range links {
		if _, err = r.Teardown(ctx, link.Metadata(), controller.WithOwner("")); ignoreNotFound(err) != nil {
			return false, err
		}
	}

	machinesGone, err := removeLabelled[*infra.MachineStatus](ctx, r, id)
	if err != nil {
		return false, err
	}

	statusesGone, err := removeLabelled[*infra.MachineRequestStatus](ctx, r, id)
	if err != nil {
		return false, err
	}

	setsGone, err := removeSets(ctx, r, id, allSets)

	return machinesGone && statusesGone && setsGone, err
}

// removeUnowned removes a resource of a provider unless a controller of the provider owns it.
func removeUnowned[T generic.ResourceWithRD](ctx context.Context, r controller.QRuntime, id string) error {
	res, ok, err := find[T](ctx, r, id)
	if err != nil || !ok || res.Metadata().Owner() != "" {
		return err
	}

	_, err = remove(ctx, r, res.Metadata(), "")

	return err
}

// removeLabelled removes what has the label of a provider, as whoever owns it.
func removeLabelled[T generic.ResourceWithRD](ctx context.Context, r controller.QRuntime, id string) (allGone bool, err error) {
	found, err := labelled[T](ctx, r, omni.LabelInfraProviderID, id)
	if err != nil {
		return false, err
	}

	allGone = true

	for _, res := range found {
		gone, err := remove(ctx, r, res.Metadata(), res.Metadata().Owner())
		if err != nil {
			return false, err
		}

		allGone = allGone && gone
	}

	return allGone, nil
}

// removeSets removes the request sets that users made: those of the provider or, as Omni v1.9.3 does, all of them.
func removeSets(ctx context.Context, r controller.QRuntime, id string, takeAll bool) (allGone bool, err error) {
	sets, err := all[*omni.MachineRequestSet](ctx, r)
	if err != nil {
		return false, err
	}

	allGone = true

	for _, set := range sets {
		if set.Metadata().Owner() != "" || (!takeAll && set.TypedSpec().Value.ProviderId != id) {
			continue
		}

		gone, err := remove(ctx, r, set.Metadata(), "")
		if err != nil {
			return false, err
		}

		allGone = allGone && gone
	}

	return allGone, nil
}

// removeServiceAccount removes the identity of a provider, its user and its keys.
func removeServiceAccount(ctx context.Context, r controller.QRuntime, id string) error {
	email := id + access.InfraProviderServiceAccountNameSuffix

	identity, ok, err := find[*auth.Identity](ctx, r, email)
	if err != nil || !ok {
		return err
	}

	user := identity.TypedSpec().Value.UserId

	keys, err := labelled[*auth.PublicKey](ctx, r, auth.LabelPublicKeyUserID, user)
	if err != nil {
		return err
	}

	for _, key := range keys {
		if _, err = remove(ctx, r, key.Metadata(), ""); err != nil {
			return err
		}
	}

	if _, err = remove(ctx, r, auth.NewUser(user).Metadata(), ""); err != nil {
		return err
	}

	_, err = remove(ctx, r, identity.Metadata(), "")

	return err
}
