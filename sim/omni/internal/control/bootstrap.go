package control

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
)

// Bootstrap writes what an Omni has before anybody calls it: SideroLink and connection configuration, the initial join
// token, Talos versions and extensions, features. What is there already is kept, so it may be called again.
func Bootstrap(ctx context.Context, st state.State, opts Options) error {
	opts = opts.withDefaults()

	token, err := bootstrapToken(ctx, st, opts.InitialJoinToken)
	if err != nil {
		return err
	}

	api := siderolink.NewAPIConfig()
	api.TypedSpec().Value.MachineApiAdvertisedUrl = opts.MachineAPIURL
	api.TypedSpec().Value.WireguardAdvertisedEndpoint = opts.WireGuardEndpoint
	api.TypedSpec().Value.EnforceGrpcTunnel = opts.EnforceGRPCTunnel
	api.TypedSpec().Value.EventsPort = int32(opts.EventsPort)
	api.TypedSpec().Value.LogsPort = int32(opts.LogsPort)

	params := siderolink.NewConnectionParams(siderolink.ConfigID)
	if err = fillConnectionParams(params.TypedSpec().Value, api.TypedSpec().Value, token); err != nil {
		return fmt.Errorf("make connection parameters: %w", err)
	}

	if err = ensure(ctx, st, api, siderolinkAPIConfigController); err != nil {
		return err
	}

	if err = ensure(ctx, st, params, connectionParamsController); err != nil {
		return err
	}

	features := omni.NewFeaturesConfig(omni.FeaturesConfigID)
	features.TypedSpec().Value.ImageFactoryBaseUrl = opts.ImageFactoryURL
	features.TypedSpec().Value.ImageFactoryPxeBaseUrl = opts.ImageFactoryURL

	if err = ensure(ctx, st, features, ""); err != nil {
		return err
	}

	for _, version := range opts.TalosVersions {
		if err = bootstrapVersion(ctx, st, version, opts.Extensions); err != nil {
			return err
		}
	}

	return nil
}

// bootstrapToken returns the default join token, which it makes if there is none.
func bootstrapToken(ctx context.Context, st state.State, value string) (string, error) {
	standard, err := safe.StateGetByID[*siderolink.DefaultJoinToken](ctx, st, siderolink.DefaultJoinTokenID)
	if err == nil {
		return standard.TypedSpec().Value.TokenId, nil
	}

	if !state.IsNotFoundError(err) {
		return "", err
	}

	if value == "" {
		if value, err = jointoken.Generate(); err != nil {
			return "", err
		}
	}

	token := siderolink.NewJoinToken(value)
	token.TypedSpec().Value.Name = "initial token"

	if err = ensure(ctx, st, token, ""); err != nil {
		return "", err
	}

	status := siderolink.NewJoinTokenStatus(value)
	status.TypedSpec().Value.Name = token.TypedSpec().Value.Name
	status.TypedSpec().Value.State = specs.JoinTokenStatusSpec_ACTIVE
	status.TypedSpec().Value.IsDefault = true

	if err = ensure(ctx, st, status, joinTokenStatusController); err != nil {
		return "", err
	}

	standard = siderolink.NewDefaultJoinToken()
	standard.TypedSpec().Value.TokenId = value

	return value, ensure(ctx, st, standard, "")
}

func bootstrapVersion(ctx context.Context, st state.State, version string, extensions []string) error {
	talos := omni.NewTalosVersion(version)
	talos.TypedSpec().Value.Version = version

	available := omni.NewTalosExtensions(version)
	for _, name := range extensions {
		author, _, _ := strings.Cut(name, "/")
		available.TypedSpec().Value.Items = append(available.TypedSpec().Value.Items,
			&specs.TalosExtensionsSpec_Info{Name: name, Author: author, Version: version})
	}

	if err := ensure(ctx, st, talos, "TalosVersionController"); err != nil {
		return err
	}

	return ensure(ctx, st, available, "TalosExtensionsController")
}

// ensure creates res unless it is there. The error does not name it, as the id of a join token is the token.
func ensure(ctx context.Context, st state.State, res resource.Resource, owner string) error {
	err := st.Create(ctx, res, state.WithCreateOwner(owner))
	if err == nil || state.IsConflictError(err) {
		return nil
	}

	return fmt.Errorf("create initial %s: %w", res.Metadata().Type(), err)
}

func (o Options) withDefaults() Options {
	o.MachineAPIURL = cmp.Or(o.MachineAPIURL, "grpc://127.0.0.1:8090")
	o.WireGuardEndpoint = cmp.Or(o.WireGuardEndpoint, "127.0.0.1:50180")
	o.EventsPort = cmp.Or(o.EventsPort, 8091)
	o.LogsPort = cmp.Or(o.LogsPort, 8092)
	o.ImageFactoryURL = cmp.Or(o.ImageFactoryURL, "https://factory.talos.dev")

	if o.TalosVersions == nil {
		o.TalosVersions = DefaultTalosVersions
	}

	if o.Extensions == nil {
		o.Extensions = DefaultExtensions
	}

	t := &o.Timing
	t.LinkRequeue = cmp.Or(t.LinkRequeue, 5*time.Second)
	t.ResetTimeout = cmp.Or(t.ResetTimeout, 10*time.Second)
	t.Heartbeat = cmp.Or(t.Heartbeat, 31*time.Second)
	t.PeerPoll = cmp.Or(t.PeerPoll, 30*time.Second)
	t.PeerGrace = cmp.Or(t.PeerGrace, 60*time.Second)
	t.PeerDown = cmp.Or(t.PeerDown, 275*time.Second)
	t.PendingMachine = cmp.Or(t.PendingMachine, 30*time.Second)

	return o
}
