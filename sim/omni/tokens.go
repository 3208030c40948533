package omni

import (
	"context"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// joinToken is what a machine's join token proves.
type joinToken struct {
	valid bool
	// id is the join token that a plain or version 1 token stands for; those of providers are no JoinToken resources.
	id string
	// provider and request are the ids of the infra provider and machine request that the token was made for, or empty. Only
	// those of a valid token can be trusted.
	provider, request string
}

// checkJoinToken looks a join token up. A token that proves nothing is not an error, one that cannot be parsed is.
func (o *Omni) checkJoinToken(ctx context.Context, value string) (joinToken, error) {
	if value == "" {
		return joinToken{}, nil
	}

	token, err := jointoken.Parse(value)
	if err != nil {
		return joinToken{}, status.Errorf(codes.PermissionDenied, "invalid join token %s", err)
	}

	checked := joinToken{
		provider: token.ExtraData[omni.LabelInfraProviderID],
		request:  token.ExtraData[omni.LabelMachineRequest],
	}

	// A signature is what tells tokens with data from plain ones.
	if token.Version != jointoken.VersionPlain && token.Signature == nil {
		return joinToken{}, nil
	}

	if token.Version == jointoken.Version2 && checked.provider != "" {
		config, err := safe.StateGetByID[*siderolink.ProviderJoinConfig](ctx, o.state, checked.provider)
		if err != nil {
			return joinToken{}, ignoreNotFound(err)
		}

		checked.valid = token.IsValid(config.TypedSpec().Value.GetJoinToken())

		return checked, nil
	}

	checked.id = value

	if token.Version != jointoken.VersionPlain {
		initial, err := safe.StateGetByID[*siderolink.DefaultJoinToken](ctx, o.state, siderolink.DefaultJoinTokenID)
		if err != nil {
			return joinToken{}, ignoreNotFound(err)
		}

		checked.id = initial.TypedSpec().Value.GetTokenId()

		if !token.IsValid(checked.id) {
			return joinToken{}, nil
		}
	}

	checked.valid, err = o.isActive(ctx, checked.id)

	return checked, err
}

// isActive reports whether a join token exists and is neither revoked nor expired.
func (o *Omni) isActive(ctx context.Context, id string) (bool, error) {
	token, err := safe.StateGetByID[*siderolink.JoinTokenStatus](ctx, o.state, id)
	if err != nil {
		return false, ignoreNotFound(err)
	}

	spec := token.TypedSpec().Value
	expired := spec.GetExpirationTime() != nil && !spec.GetExpirationTime().AsTime().After(time.Now())

	return spec.GetState() == specs.JoinTokenStatusSpec_ACTIVE && !expired, nil
}

func ignoreNotFound(err error) error {
	if state.IsNotFoundError(err) {
		return nil
	}

	return err
}
