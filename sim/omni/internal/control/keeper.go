package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/cosi-project/runtime/pkg/controller"
	"github.com/cosi-project/runtime/pkg/controller/generic"
	"github.com/cosi-project/runtime/pkg/controller/generic/qtransform"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/gen/xerrors"
	"go.uber.org/zap"
)

// keeper is a controller over the resources of one kind: it puts its finalizer on them while they run, does its work, and
// lets go once released says so. Where one resource is made from another, qtransform is used instead.
type keeper[I generic.ResourceWithRD] struct {
	name string
	// free is set for a controller that works without a finalizer.
	free bool
	// last makes it let go only after all other finalizers are gone.
	last bool
	// work is called for each running resource; nil does nothing.
	work func(ctx context.Context, r controller.QRuntime, in I) error
	// release is called for a resource in teardown; nil lets go at once.
	release func(ctx context.Context, r controller.QRuntime, in I) (done bool, err error)

	mapped  []mapping
	outputs []controller.Output
}

// mapping says which primary resources are looked at again when one of another kind changes.
type mapping struct {
	input controller.Input
	to    qtransform.MapperFunc
}

// on returns the mapping of changes in resources of type T.
func on[T generic.ResourceWithRD](to qtransform.MapperFunc) mapping {
	definition := definitionOf[T]()

	return mapping{to: to, input: controller.Input{
		Namespace: definition.DefaultNamespace, Type: definition.Type, Kind: controller.InputQMapped,
	}}
}

// shares returns the right to write resources of type T beside other controllers.
func shares[T generic.ResourceWithRD]() controller.Output {
	return controller.Output{Type: definitionOf[T]().Type, Kind: controller.OutputShared}
}

// Name implements controller.QController.
func (k *keeper[I]) Name() string { return k.name }

// Settings implements controller.QController.
func (k *keeper[I]) Settings() controller.QSettings {
	primary := on[I](nil).input
	primary.Kind = controller.InputQPrimary

	settings := controller.QSettings{Inputs: []controller.Input{primary}, Outputs: k.outputs}
	for _, m := range k.mapped {
		settings.Inputs = append(settings.Inputs, m.input)
	}

	return settings
}

// MapInput implements controller.QController.
func (k *keeper[I]) MapInput(
	ctx context.Context, logger *zap.Logger, r controller.QRuntime, ptr controller.ReducedResourceMetadata,
) ([]resource.Pointer, error) {
	for _, m := range k.mapped {
		if m.input.Type == ptr.Type() && m.input.Namespace == ptr.Namespace() {
			return m.to(ctx, logger, r, ptr)
		}
	}

	return nil, fmt.Errorf("map %q: no mapping for its type", ptr)
}

// Reconcile implements controller.QController.
func (k *keeper[I]) Reconcile(ctx context.Context, _ *zap.Logger, r controller.QRuntime, ptr resource.Pointer) error {
	in, err := safe.ReaderGet[I](ctx, r, ptr)
	if err != nil {
		return ignoreNotFound(err)
	}

	held := in.Metadata().Finalizers().Has(k.name)

	if in.Metadata().Phase() == resource.PhaseRunning {
		if !held && !k.free {
			if err = r.AddFinalizer(ctx, ptr, k.name); err != nil {
				return ignoreNotFound(err)
			}
		}

		if k.work == nil {
			return nil
		}

		return k.work(ctx, r, in)
	}

	if !held || (k.last && len(*in.Metadata().Finalizers()) > 1) {
		return nil
	}

	if k.release != nil {
		if done, err := k.release(ctx, r, in); err != nil || !done {
			return err
		}
	}

	return ignoreNotFound(r.RemoveFinalizer(ctx, ptr, k.name))
}

func ignoreNotFound(err error) error {
	if state.IsNotFoundError(err) {
		return nil
	}

	return err
}

// ignoreRace drops the errors of a write to a resource that has gone, or has been torn down, since it was read. Its next
// event brings the controller back.
func ignoreRace(err error) error {
	if state.IsNotFoundError(err) || state.IsPhaseConflictError(err) {
		return nil
	}

	return err
}

// errNotYet makes a qtransform leave its output as it is until the next event.
var errNotYet = xerrors.NewTagged[qtransform.SkipReconcileTag](errors.New("input is not complete yet"))

// errNoOutput makes a qtransform remove its output.
var errNoOutput = xerrors.NewTagged[qtransform.DestroyOutputTag](errors.New("output is not wanted"))

// find returns the resource of type T with the id, or false if there is none.
func find[T generic.ResourceWithRD](ctx context.Context, r controller.Reader, id resource.ID) (T, bool, error) {
	res, err := safe.ReaderGet[T](ctx, r, pointerTo[T](id))
	if err != nil {
		return res, false, ignoreNotFound(err)
	}

	return res, true, nil
}

// running is find for resources that are not in teardown.
func running[T generic.ResourceWithRD](ctx context.Context, r controller.Reader, id resource.ID) (T, bool, error) {
	res, ok, err := find[T](ctx, r, id)

	return res, ok && res.Metadata().Phase() == resource.PhaseRunning, err
}

// labelled returns the resources of type T whose label has the value.
func labelled[T generic.ResourceWithRD](ctx context.Context, r controller.Reader, label, value string) ([]T, error) {
	return all[T](ctx, r, state.WithLabelQuery(resource.LabelEqual(label, value)))
}

// all returns the resources of type T.
func all[T generic.ResourceWithRD](ctx context.Context, r controller.Reader, opts ...state.ListOption) ([]T, error) {
	list, err := safe.ReaderList[T](ctx, r, pointerTo[T](""), opts...)
	if err != nil {
		return nil, err
	}

	found := make([]T, 0, list.Len())
	for res := range list.All() {
		found = append(found, res)
	}

	return found, nil
}

// remove tears ptr down as its owner and destroys it once nothing holds it. It returns whether it is gone.
func remove(ctx context.Context, r controller.QRuntime, ptr resource.Pointer, owner string) (gone bool, err error) {
	ready, err := r.Teardown(ctx, ptr, controller.WithOwner(owner))
	if err != nil {
		return state.IsNotFoundError(err), ignoreNotFound(err)
	}

	if !ready {
		return false, nil
	}

	err = ignoreNotFound(r.Destroy(ctx, ptr, controller.WithOwner(owner)))

	return err == nil, err
}

// toSameID maps a change to the resource of type T with the same id.
func toSameID[T generic.ResourceWithRD]() qtransform.MapperFunc { return qtransform.MapperSameID[T]() }

// toLabel maps a change to the resource of type T whose id is the value of the label.
func toLabel[T generic.ResourceWithRD](label string) qtransform.MapperFunc {
	return qtransform.MapExtractLabelValue[T](label)
}

// toLabelled maps a change to the resources of type T whose label has the id of the changed one.
func toLabelled[T generic.ResourceWithRD](label string) qtransform.MapperFunc {
	return func(
		ctx context.Context, _ *zap.Logger, r controller.QRuntime, ptr controller.ReducedResourceMetadata,
	) ([]resource.Pointer, error) {
		found, err := labelled[T](ctx, r, label, ptr.ID())

		return pointers(found), err
	}
}

// toAll maps a change to all resources of type T.
func toAll[T generic.ResourceWithRD]() qtransform.MapperFunc {
	return func(
		ctx context.Context, _ *zap.Logger, r controller.QRuntime, _ controller.ReducedResourceMetadata,
	) ([]resource.Pointer, error) {
		found, err := all[T](ctx, r)

		return pointers(found), err
	}
}

func pointers[T resource.Resource](list []T) []resource.Pointer {
	ptrs := make([]resource.Pointer, 0, len(list))
	for _, res := range list {
		ptrs = append(ptrs, res.Metadata())
	}

	return ptrs
}
