package omni

import (
	"context"
	"strings"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources"
	infrares "github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/omni-infra/omni-infra-providers/sim/omni/internal/validation"
)

// infraResource is what a provider may do with a kind of resource in the shared infra-provider namespaces. It only ever sees
// those that carry its own id as a label.
type infraResource struct {
	// input resources are Omni's: the provider may only set finalizers.
	input bool
	// ownID resources have the id of their provider.
	ownID bool
}

var infraResources = map[resource.Type]infraResource{
	infrares.MachineRequestType:            {input: true},
	infrares.InfraMachineType:              {input: true},
	infrares.MachineRegistrationType:       {input: true},
	infrares.BMCConfigType:                 {input: true},
	siderolink.ProviderJoinConfigType:      {input: true},
	infrares.MachineRequestStatusType:      {},
	infrares.InfraMachineStatusType:        {},
	infrares.ConfigPatchRequestType:        {},
	infrares.InfraProviderStatusType:       {ownID: true},
	infrares.InfraProviderHealthStatusType: {ownID: true},
	infrares.ProviderType:                  {ownID: true},
}

// isInfraResource reports whether the provider gate decides over a resource.
func isInfraResource(ns resource.Namespace, typ resource.Type) bool {
	_, known := infraResources[typ]

	return known || strings.HasPrefix(ns, resources.InfraProviderSpecificNamespacePrefix)
}

// providerGate is the second gate: it keeps each infra provider to its own resources, and everybody else from writing those
// of providers. All other resources it passes on.
type providerGate struct {
	core     state.State
	defects  Defects
	breakers *breakers
}

// grant is what a caller may see of a kind of resource.
type grant struct {
	infraResource
	// provider is the id that resources have to be labelled with, empty if labels do not matter.
	provider string
}

// sees reports whether a resource is the caller's.
func (g grant) sees(r resource.Resource) bool {
	if g.provider == "" {
		return true
	}

	id, _ := r.Metadata().Labels().Get(omni.LabelInfraProviderID)

	return id == g.provider
}

// claim labels a resource as the caller's.
func (g grant) claim(r resource.Resource) {
	if g.provider != "" {
		r.Metadata().Labels().Set(omni.LabelInfraProviderID, g.provider)
	}
}

// admit checks what the caller does with a kind of resource.
func (p *providerGate) admit(ctx context.Context, v verb, ns resource.Namespace, typ resource.Type) (grant, error) {
	if !isInfraResource(ns, typ) {
		return grant{}, nil
	}

	who := callerOf(ctx)

	if err := who.require(RoleInfraProvider); err != nil {
		return grant{}, err
	}

	if who.role != RoleInfraProvider {
		return grant{}, admitUser(who, v, typ)
	}

	if _, err := p.core.Get(ctx, infrares.NewProvider(who.provider).Metadata()); err != nil {
		if state.IsNotFoundError(err) {
			return grant{}, status.Errorf(codes.PermissionDenied,
				"infra provider with name %q is not registered in the system", who.provider)
		}

		return grant{}, err
	}

	own := infra.ResourceNamespace(who.provider)

	switch ns {
	case resources.InfraProviderNamespace, resources.InfraProviderEphemeralNamespace:
		return grant{infraResource: infraResources[typ], provider: who.provider}, nil
	case own:
		if suffix := infra.ResourceType("", who.provider); !strings.HasSuffix(typ, suffix) {
			return grant{}, status.Errorf(codes.InvalidArgument, "resources in namespace %q must have a type suffix %q", ns, suffix)
		}

		return grant{}, nil
	default:
		return grant{}, status.Errorf(codes.PermissionDenied, "namespace not allowed, must be one of: %s, %s, %s",
			resources.InfraProviderNamespace, resources.InfraProviderEphemeralNamespace, own)
	}
}

// admitUser checks what somebody who is no provider does with the resources of providers.
func admitUser(who caller, v verb, typ resource.Type) error {
	switch {
	case v == verbRead && typ == infrares.BMCConfigType && who.role < RoleAdmin:
		return status.Errorf(codes.PermissionDenied, "only admins are allowed to read %q resources", typ)
	case v == verbRead:
		return nil
	case typ != infrares.ProviderType && typ != infrares.MachineRequestType:
		return status.Errorf(codes.PermissionDenied, "users are not allowed to modify %q resources", typ)
	case who.role < RoleOperator:
		return status.Errorf(codes.PermissionDenied, "only operators and admins are allowed to modify %q resources", typ)
	default:
		return nil
	}
}

// cached reports whether a read is answered from the cache that knows no owners.
func (p *providerGate) cached(typ resource.Type) bool {
	return p.defects.UnfilteredCache &&
		(typ == siderolink.ProviderJoinConfigType || typ == infrares.ConfigPatchRequestType)
}

var errNotOwn = status.Error(codes.NotFound, "not found")

// Get returns a resource.
func (p *providerGate) Get(ctx context.Context, ptr resource.Pointer, opts ...state.GetOption) (resource.Resource, error) {
	if p.cached(ptr.Type()) {
		return p.core.Get(ctx, ptr, opts...)
	}

	g, err := p.admit(ctx, verbRead, ptr.Namespace(), ptr.Type())
	if err != nil {
		return nil, err
	}

	r, err := p.core.Get(ctx, ptr, opts...)
	if err != nil {
		return nil, err
	}

	if !g.sees(r) {
		return nil, errNotOwn
	}

	return r, nil
}

// List returns the resources of a kind.
func (p *providerGate) List(ctx context.Context, kind resource.Kind, opts ...state.ListOption) (resource.List, error) {
	if p.cached(kind.Type()) {
		return p.core.List(ctx, kind, opts...)
	}

	g, err := p.admit(ctx, verbRead, kind.Namespace(), kind.Type())
	if err != nil {
		return resource.List{}, err
	}

	list, err := p.core.List(ctx, kind, opts...)
	if err != nil {
		return resource.List{}, err
	}

	own := list.Items[:0]

	for _, r := range list.Items {
		if g.sees(r) {
			own = append(own, r)
		}
	}

	list.Items = own

	return list, nil
}

// Create makes a resource. A provider's gets its label, whatever it was.
func (p *providerGate) Create(ctx context.Context, r resource.Resource, opts ...state.CreateOption) error {
	md := r.Metadata()

	g, err := p.admit(ctx, verbCreate, md.Namespace(), md.Type())
	if err != nil {
		return err
	}

	switch {
	case g.input:
		return status.Errorf(codes.PermissionDenied, "infra providers are not allowed to create %q resources", md.Type())
	case g.ownID && md.ID() != g.provider:
		return status.Errorf(codes.InvalidArgument, "resource ID must match the infra provider ID %q", g.provider)
	}

	if isInfraResource(md.Namespace(), md.Type()) {
		if err = refusal(validation.Create(ctx, p.core, r)...); err != nil {
			return err
		}
	}

	g.claim(r)

	return p.core.Create(ctx, r, opts...)
}

// Update changes a resource.
func (p *providerGate) Update(ctx context.Context, r resource.Resource, opts ...state.UpdateOption) error {
	md := r.Metadata()

	g, err := p.admit(ctx, verbUpdate, md.Namespace(), md.Type())
	if err != nil {
		return err
	}

	stored, err := p.core.Get(ctx, md)
	if err != nil {
		return err
	}

	switch {
	case !g.sees(stored):
		return errNotOwn
	case g.input && !onlyFinalizersDiffer(stored, r):
		return status.Errorf(codes.PermissionDenied,
			"infra providers are not allowed to update %q resources other than setting finalizers", md.Type())
	}

	if isInfraResource(md.Namespace(), md.Type()) {
		if err = refusal(validation.Update(ctx, p.core, stored, r)...); err != nil {
			return err
		}
	}

	g.claim(r)

	return p.core.Update(ctx, r, opts...)
}

// onlyFinalizersDiffer compares two states of a resource but for version and finalizers.
func onlyFinalizersDiffer(stored, updated resource.Resource) bool {
	updated = updated.DeepCopy()
	md := updated.Metadata()
	md.SetVersion(stored.Metadata().Version())

	for _, f := range *stored.Metadata().Finalizers() {
		md.Finalizers().Add(f)
	}

	stored = stored.DeepCopy()
	for _, f := range *md.Finalizers() {
		stored.Metadata().Finalizers().Add(f)
	}

	return resource.Equal(stored, updated)
}

// Destroy removes a resource.
func (p *providerGate) Destroy(ctx context.Context, ptr resource.Pointer, opts ...state.DestroyOption) error {
	g, err := p.admit(ctx, verbDestroy, ptr.Namespace(), ptr.Type())
	if err != nil {
		return err
	}

	stored, err := p.core.Get(ctx, ptr)
	if err != nil {
		return err
	}

	switch {
	case !g.sees(stored):
		return errNotOwn
	case g.input:
		return status.Errorf(codes.PermissionDenied, "infra providers are not allowed to destroy %q resources", ptr.Type())
	}

	return p.core.Destroy(ctx, ptr, opts...)
}
