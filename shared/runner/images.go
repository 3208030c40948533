package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/client"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"

	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
)

// images returns the source of boot images: a factory of one's own, for schematics too, else the one that Omni uses, with
// Omni making the schematics.
func images(ctx context.Context, c *client.Client, factory string) (*bootasset.Resolver, error) {
	if factory != "" {
		return bootasset.New(bootasset.Config{Factory: factory})
	}

	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()

	config := bootasset.Config{Schematics: bootasset.OmniSchematics{Management: c.Management()}}

	features, err := safe.StateGetByID[*omni.FeaturesConfig](ctx, c.Omni().State(), omni.FeaturesConfigID)

	switch {
	case err == nil:
		config.Factory = features.TypedSpec().Value.ImageFactoryBaseUrl
	case !state.IsNotFoundError(err):
		return nil, fmt.Errorf("read from Omni which image factory it uses: %w", err)
	}

	return bootasset.New(config)
}
