package omni

import (
	"context"
	"errors"
	"slices"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/hashicorp/go-multierror"
	"github.com/siderolabs/omni/client/pkg/omni/resources"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/omni-infra/omni-infra-providers/sim/omni/internal/validation"
)

// gate is the state as callers from outside reach it: it checks access and what they write. Behind it, providerGate decides
// over the infra-provider namespaces.
type gate struct {
	providers  state.State
	internal   state.State
	unmodelled *unmodelled
}

func (o *Omni) newGate() *gate {
	return &gate{
		providers:  state.WrapCore(&providerGate{core: o.state, defects: o.opts.Defects, breakers: &o.breakers}),
		internal:   o.state,
		unmodelled: &o.unmodelled,
	}
}

// check returns what is wrong with access to a kind of resource.
func check(who caller, v verb, ns resource.Namespace, typ resource.Type) error {
	if isInfraResource(ns, typ) {
		return nil // The provider gate decides.
	}

	needs, ok := permissionOf(typ)

	switch {
	case !ok:
		return status.Error(codes.PermissionDenied, "no access is permitted")
	case v == verbRead:
		if err := who.require(needs.read); err != nil {
			return err
		}
	case !slices.Contains(needs.writable, v):
		if err := who.require(max(needs.read, needs.write)); err != nil {
			return err
		}

		return status.Error(codes.PermissionDenied, "only read access is permitted")
	default:
		if err := who.require(needs.write); err != nil {
			return err
		}
	}

	// The real server has no rule for this kind, so that not even an administrator reaches it.
	if typ == omni.MachineRequestSetStatusType {
		return status.Error(codes.PermissionDenied, "access is not permitted")
	}

	return nil
}

// refusal joins what is wrong with a call into the error that its caller gets: the code is that of the first gRPC status
// among them, else InvalidArgument.
func refusal(errs ...error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}

	code := codes.InvalidArgument

	for _, err := range errs {
		var withStatus interface{ GRPCStatus() *status.Status }
		if errors.As(err, &withStatus) {
			code = withStatus.GRPCStatus().Code()

			break
		}
	}

	return status.Error(code, "failed to validate: "+multierror.Append(nil, errs...).Error())
}

func (g *gate) read(ctx context.Context, ns resource.Namespace, typ resource.Type) error {
	if err := refusal(check(callerOf(ctx), verbRead, ns, typ)); err != nil {
		return err
	}

	if ns == resources.VirtualNamespace {
		return g.unmodelled.refuse("resources in namespace " + ns)
	}

	return nil
}

func (g *gate) destroy(ctx context.Context, ptr resource.Pointer) error {
	errs := []error{check(callerOf(ctx), verbDestroy, ptr.Namespace(), ptr.Type())}

	return refusal(append(errs, validation.Destroy(ctx, g.internal, ptr)...)...)
}

// Get returns a resource.
func (g *gate) Get(ctx context.Context, ptr resource.Pointer, opts ...state.GetOption) (resource.Resource, error) {
	if err := g.read(ctx, ptr.Namespace(), ptr.Type()); err != nil {
		return nil, err
	}

	return g.providers.Get(ctx, ptr, opts...)
}

// List returns the resources of a kind.
func (g *gate) List(ctx context.Context, kind resource.Kind, opts ...state.ListOption) (resource.List, error) {
	if err := g.read(ctx, kind.Namespace(), kind.Type()); err != nil {
		return resource.List{}, err
	}

	return g.providers.List(ctx, kind, opts...)
}

// Create makes a resource. The provider gate checks what is written to its own kinds after access to them.
func (g *gate) Create(ctx context.Context, r resource.Resource, opts ...state.CreateOption) error {
	md := r.Metadata()

	if !isInfraResource(md.Namespace(), md.Type()) {
		errs := []error{check(callerOf(ctx), verbCreate, md.Namespace(), md.Type())}
		if err := refusal(append(errs, validation.Create(ctx, g.internal, r)...)...); err != nil {
			return err
		}
	}

	return g.providers.Create(ctx, r, opts...)
}

// Update changes a resource. The provider gate checks what is written to its own kinds after access to them.
func (g *gate) Update(ctx context.Context, r resource.Resource, opts ...state.UpdateOption) error {
	md := r.Metadata()

	if isInfraResource(md.Namespace(), md.Type()) {
		return g.providers.Update(ctx, r, opts...)
	}

	errs := []error{check(callerOf(ctx), verbUpdate, md.Namespace(), md.Type())}

	stored, err := g.internal.Get(ctx, md)

	switch {
	case err == nil:
		errs = append(errs, validation.Update(ctx, g.internal, stored, r)...)
	case !state.IsNotFoundError(err):
		return err
	}

	if err = refusal(errs...); err != nil {
		return err
	}

	return g.providers.Update(ctx, r, opts...)
}

// Destroy removes a resource.
func (g *gate) Destroy(ctx context.Context, ptr resource.Pointer, opts ...state.DestroyOption) error {
	if err := g.destroy(ctx, ptr); err != nil {
		return err
	}

	return g.providers.Destroy(ctx, ptr, opts...)
}

// Teardown begins to remove a resource. It needs what Destroy needs, and then is an update of the phase.
func (g *gate) Teardown(ctx context.Context, ptr resource.Pointer, opts ...state.TeardownOption) (bool, error) {
	if err := g.destroy(ctx, ptr); err != nil {
		return false, err
	}

	return g.providers.Teardown(ctx, ptr, opts...)
}

// Watch sends the changes of a resource to ch.
func (g *gate) Watch(ctx context.Context, ptr resource.Pointer, ch chan<- state.Event, opts ...state.WatchOption) error {
	if err := g.read(ctx, ptr.Namespace(), ptr.Type()); err != nil {
		return err
	}

	return g.providers.Watch(ctx, ptr, ch, opts...)
}

// WatchKind sends the changes of a kind of resource to ch.
func (g *gate) WatchKind(ctx context.Context, kind resource.Kind, ch chan<- state.Event, opts ...state.WatchKindOption) error {
	if err := g.read(ctx, kind.Namespace(), kind.Type()); err != nil {
		return err
	}

	return g.providers.WatchKind(ctx, kind, ch, opts...)
}

// WatchKindAggregated sends the changes of a kind of resource to ch, several at once.
func (g *gate) WatchKindAggregated(
	ctx context.Context, kind resource.Kind, ch chan<- []state.Event, opts ...state.WatchKindOption,
) error {
	if err := g.read(ctx, kind.Namespace(), kind.Type()); err != nil {
		return err
	}

	return g.providers.WatchKindAggregated(ctx, kind, ch, opts...)
}
