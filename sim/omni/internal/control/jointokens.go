package control

import (
	"context"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/controller"
	"github.com/cosi-project/runtime/pkg/controller/generic/qtransform"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	siderolinkclient "github.com/siderolabs/omni/client/pkg/siderolink"
	"go.uber.org/zap"
)

const (
	joinTokenStatusController     = "JoinTokenStatusController"
	connectionParamsController    = "ConnectionParamsController"
	siderolinkAPIConfigController = "SiderolinkAPIConfigController"
)

// tokenControllers follow join tokens.
func tokenControllers() []controller.QController {
	return []controller.QController{joinTokenStatuses(), connectionParams()}
}

// joinTokenStatuses says of each join token whether it is good.
func joinTokenStatuses() controller.QController {
	return qtransform.NewQController(qtransform.Settings[*siderolink.JoinToken, *siderolink.JoinTokenStatus]{
		Name: joinTokenStatusController,
		MapMetadataFunc: func(token *siderolink.JoinToken) *siderolink.JoinTokenStatus {
			return siderolink.NewJoinTokenStatus(token.Metadata().ID())
		},
		UnmapMetadataFunc: func(status *siderolink.JoinTokenStatus) *siderolink.JoinToken {
			return siderolink.NewJoinToken(status.Metadata().ID())
		},
		TransformFunc: fillTokenStatus,
	},
		qtransform.WithExtraMappedInput[*siderolink.DefaultJoinToken](toAll[*siderolink.JoinToken]()),
		qtransform.WithExtraMappedInput[*siderolink.JoinTokenUsage](toAll[*siderolink.JoinToken]()),
	)
}

func fillTokenStatus(
	ctx context.Context, r controller.Reader, _ *zap.Logger, token *siderolink.JoinToken, status *siderolink.JoinTokenStatus,
) error {
	from, spec := token.TypedSpec().Value, status.TypedSpec().Value
	spec.Name = from.Name
	spec.ExpirationTime = from.ExpirationTime

	standard, ok, err := find[*siderolink.DefaultJoinToken](ctx, r, siderolink.DefaultJoinTokenID)
	if err != nil {
		return err
	}

	spec.IsDefault = ok && standard.TypedSpec().Value.TokenId == token.Metadata().ID()

	usages, err := all[*siderolink.JoinTokenUsage](ctx, r)
	if err != nil {
		return err
	}

	spec.UseCount = 0

	for _, usage := range usages {
		if usage.TypedSpec().Value.TokenId == token.Metadata().ID() {
			spec.UseCount++
		}
	}

	if from.Revoked {
		spec.State = specs.JoinTokenStatusSpec_REVOKED

		return nil
	}

	spec.State = specs.JoinTokenStatusSpec_ACTIVE

	if from.ExpirationTime == nil {
		return nil
	}

	if left := time.Until(from.ExpirationTime.AsTime()); left > 0 {
		return controller.NewRequeueInterval(left)
	}

	spec.State = specs.JoinTokenStatusSpec_EXPIRED

	return nil
}

// connectionParams keeps what clients older than the join configs read: how to join with the default token.
func connectionParams() controller.QController {
	return qtransform.NewQController(qtransform.Settings[*siderolink.DefaultJoinToken, *siderolink.ConnectionParams]{
		Name: connectionParamsController,
		MapMetadataFunc: func(*siderolink.DefaultJoinToken) *siderolink.ConnectionParams {
			return siderolink.NewConnectionParams(siderolink.ConfigID)
		},
		UnmapMetadataFunc: func(*siderolink.ConnectionParams) *siderolink.DefaultJoinToken {
			return siderolink.NewDefaultJoinToken()
		},
		TransformFunc: func(
			ctx context.Context, r controller.Reader, _ *zap.Logger, token *siderolink.DefaultJoinToken, out *siderolink.ConnectionParams,
		) error {
			api, ok, err := find[*siderolink.APIConfig](ctx, r, siderolink.ConfigID)
			if err != nil {
				return err
			}

			if !ok {
				return errNotYet
			}

			return fillConnectionParams(out.TypedSpec().Value, api.TypedSpec().Value, token.TypedSpec().Value.TokenId)
		},
	}, qtransform.WithExtraMappedInput[*siderolink.APIConfig](toAll[*siderolink.DefaultJoinToken]()))
}

func fillConnectionParams(out *specs.ConnectionParamsSpec, api *specs.SiderolinkAPIConfigSpec, token string) error {
	join, err := siderolinkclient.NewJoinOptions(
		siderolinkclient.WithJoinToken(token),
		siderolinkclient.WithJoinTokenVersion(jointoken.VersionPlain),
		siderolinkclient.WithMachineAPIURL(api.MachineApiAdvertisedUrl),
		siderolinkclient.WithGRPCTunnel(api.EnforceGrpcTunnel),
		siderolinkclient.WithEventSinkPort(int(api.EventsPort)),
		siderolinkclient.WithLogServerPort(int(api.LogsPort)),
	)
	if err != nil {
		return err
	}

	out.Args = strings.Join(join.GetKernelArgs(), " ")
	out.ApiEndpoint = api.MachineApiAdvertisedUrl
	out.WireguardEndpoint = api.WireguardAdvertisedEndpoint
	out.JoinToken = token
	out.UseGrpcTunnel = api.EnforceGrpcTunnel
	out.EventsPort = api.EventsPort
	out.LogsPort = api.LogsPort

	return nil
}
