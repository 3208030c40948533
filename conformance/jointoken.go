package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
)

// joinTokenTime is how long Omni may take to give a new provider its join token.
const joinTokenTime = 10 * time.Second

// watchJoinTokens makes the suite look for the provider's join token, and for the token that its machines have without their
// request's id.
func (e *env) watchJoinTokens(ctx context.Context, provider string) error {
	ctx, cancel := context.WithTimeout(ctx, joinTokenTime)
	defer cancel()

	for {
		config, err := safe.StateGetByID[*siderolink.ProviderJoinConfig](ctx, e.state, provider)
		if err == nil && config.TypedSpec().Value.JoinToken != "" {
			e.watchSecret("join token", config.TypedSpec().Value.JoinToken)

			return e.watchMachineToken(config.TypedSpec().Value.JoinToken, map[string]string{omni.LabelInfraProviderID: provider})
		}

		if sleep(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("read the join config of provider %q: %w", provider, err)
		}
	}
}

// watchRequest makes the suite look for the token that the machine of a request has.
func (e *env) watchRequest(provider, request string) {
	config, err := safe.StateGetByID[*siderolink.ProviderJoinConfig](e.ctx, e.state, provider)
	if err != nil {
		return
	}

	_ = e.watchMachineToken(config.TypedSpec().Value.JoinToken, map[string]string{
		omni.LabelInfraProviderID: provider, omni.LabelMachineRequest: request,
	})
}

func (e *env) watchMachineToken(secret string, content map[string]string) error {
	token, err := jointoken.NewWithExtraData(secret, jointoken.Version2, content)
	if err != nil {
		return err
	}

	text, err := token.Encode()
	e.watchSecret("join token", text)

	return err
}
