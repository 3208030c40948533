package omni

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/cosi-project/runtime/pkg/state/registry"
	"github.com/siderolabs/omni/client/pkg/omni/resources"
	"github.com/siderolabs/omni/client/pkg/omni/resources/auth"
	registered "github.com/siderolabs/omni/client/pkg/omni/resources/registry"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/siderolabs/omni/client/pkg/omni/resources/system"
	"github.com/siderolabs/siderolink/pkg/wireguard"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/omni-infra/omni-infra-providers/sim/omni/internal/control"

	// The packages below register their resources.
	_ "github.com/siderolabs/omni/client/pkg/omni/resources/k8s"
	_ "github.com/siderolabs/omni/client/pkg/omni/resources/oidc"
	_ "github.com/siderolabs/omni/client/pkg/omni/resources/virtual"
)

// apiVersion is the version of the API that SysVersion names; clients that know their own refuse another.
const apiVersion = 1

// The history of a kind of resource has room for so many events at first, and grows up to that many.
const (
	initialHistory = 64
	maxHistory     = 16384
)

func newState(records *recordTypes) state.State {
	build := inmem.NewStateWithOptions(
		inmem.WithHistoryMaxCapacity(maxHistory),
		inmem.WithHistoryInitialCapacity(initialHistory),
	)

	return state.WrapCore(namespaced.NewState(func(ns resource.Namespace) state.CoreState { return records.watched(ns, build(ns)) }))
}

// definitions are those of all resources. To derive the names of a kind takes many regular expressions, so it is done once.
var definitions = sync.OnceValues(func() ([]*meta.ResourceDefinition, error) {
	var all []*meta.ResourceDefinition

	for _, r := range append([]meta.ResourceWithRD{&meta.ResourceDefinition{}, &meta.Namespace{}}, registered.Resources...) {
		definition, err := meta.NewResourceDefinition(r.ResourceDefinition())
		if err != nil {
			return nil, err
		}

		all = append(all, definition)
	}

	return all, nil
})

// register makes the namespaces and resource definitions known, which is how clients learn what this Omni can do.
func register(ctx context.Context, st state.State) error {
	namespaces := registry.NewNamespaceRegistry(st)
	errs := []error{namespaces.RegisterDefault(ctx)}

	for _, ns := range []resource.Namespace{
		resources.DefaultNamespace,
		resources.EphemeralNamespace,
		resources.MetricsNamespace,
		resources.VirtualNamespace,
		resources.ExternalNamespace,
		resources.InfraProviderNamespace,
		resources.InfraProviderEphemeralNamespace,
	} {
		errs = append(errs, namespaces.Register(ctx, ns, ""))
	}

	all, err := definitions()
	errs = append(errs, err)

	for _, definition := range all {
		errs = append(errs, st.Create(ctx, definition.DeepCopy(), state.WithCreateOwner(meta.Owner)))
	}

	return errors.Join(errs...)
}

// bootstrap writes what an Omni has before anybody calls it. What is there is kept, so a restart calls it again.
func (o *Omni) bootstrap(ctx context.Context) error {
	version := system.NewSysVersion(system.SysVersionID)
	version.TypedSpec().Value.BackendVersion = o.opts.Version
	version.TypedSpec().Value.InstanceName = o.opts.Name
	version.TypedSpec().Value.BackendApiVersion = apiVersion

	config := auth.NewAuthConfig()
	config.TypedSpec().Value.Suspended = o.opts.SuspendedAuth

	link, err := o.siderolinkConfig()
	if err != nil {
		return err
	}

	for _, r := range []resource.Resource{version, config, link} {
		if err := o.state.Create(ctx, r); err != nil && !state.IsConflictError(err) {
			return fmt.Errorf("create %s: %w", r.Metadata().Type(), err)
		}
	}

	if !o.opts.PendingEULA {
		if err := o.AcceptEULA(ctx, "omni-sim", "omni-sim@localhost"); err != nil {
			return err
		}
	}

	return control.Bootstrap(ctx, o.state, o.opts.control(o.tunnels))
}

// siderolinkConfig is Omni's own end of the tunnels.
func (o *Omni) siderolinkConfig() (*siderolink.Config, error) {
	key, err := wgtypes.GeneratePrivateKey()
	if err != nil {
		return nil, fmt.Errorf("generate SideroLink key: %w", err)
	}

	prefix := wireguard.NetworkPrefix("")

	config := siderolink.NewConfig()
	spec := config.TypedSpec().Value
	spec.PrivateKey = key.String()
	spec.PublicKey = key.PublicKey().String()
	spec.WireguardEndpoint = o.opts.WireGuardEndpoint
	spec.AdvertisedEndpoint = o.opts.WireGuardEndpoint
	spec.Subnet = prefix.String()
	spec.ServerAddress = prefix.Addr().Next().String()

	return config, nil
}

// wipeEphemeral removes what a real Omni keeps in memory only and loses when it restarts.
func wipeEphemeral(ctx context.Context, st state.State) error {
	var errs []error

	for _, r := range registered.Resources {
		definition := r.ResourceDefinition()

		for _, ns := range []resource.Namespace{resources.EphemeralNamespace, resources.InfraProviderEphemeralNamespace} {
			list, err := st.List(ctx, resource.NewMetadata(ns, definition.Type, "", resource.VersionUndefined))
			if err != nil {
				return fmt.Errorf("list %s: %w", definition.Type, err)
			}

			for _, item := range list.Items {
				errs = append(errs, wipe(ctx, st, item))
			}
		}
	}

	return errors.Join(errs...)
}

func wipe(ctx context.Context, st state.State, r resource.Resource) error {
	md := r.Metadata()

	if !md.Finalizers().Empty() {
		if err := st.RemoveFinalizer(ctx, md, *md.Finalizers()...); err != nil {
			return fmt.Errorf("release %s %q: %w", md.Type(), md.ID(), err)
		}
	}

	if err := st.Destroy(ctx, md, state.WithDestroyOwner(md.Owner())); err != nil {
		return fmt.Errorf("forget %s %q: %w", md.Type(), md.ID(), err)
	}

	return nil
}
