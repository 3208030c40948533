package apiserver

import (
	"context"
	"errors"
	"fmt"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	storeerrors "k8s.io/apiserver/pkg/storage/errors"
	"k8s.io/apiserver/pkg/util/dryrun"
)

var namespaceResource = core.SchemeGroupVersion.WithResource("namespaces")

// namespaces keeps a namespace that is deleted, as terminating, until its finalizers are gone: somebody has to empty it first, and then
// to update its subresource finalize. Namespaces are not deleted as a collection.
type namespaces struct {
	rest.Getter
	rest.Lister
	rest.Watcher
	rest.CreaterUpdater
	store *registry.Store
}

// Destroy implements rest.Storage.
func (n namespaces) Destroy() {}

// New implements rest.Storage.
func (n namespaces) New() runtime.Object { return n.store.New() }

// Delete implements rest.GracefulDeleter.
func (n namespaces) Delete(
	ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions,
) (runtime.Object, bool, error) {
	got, err := n.store.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, false, err
	}

	found, ok := got.(*core.Namespace)
	if !ok {
		return nil, false, fmt.Errorf("read namespace %q: got a %T", name, got)
	}

	if len(found.Spec.Finalizers) == 0 {
		return n.store.Delete(ctx, name, validate, options)
	}

	if !found.DeletionTimestamp.IsZero() {
		return found, false, nil
	}

	marked, err := n.mark(ctx, name, validate, options)

	return marked, false, err
}

// mark makes a namespace terminate.
func (n namespaces) mark(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, error) {
	key, err := n.store.KeyFunc(ctx, name)
	if err != nil {
		return nil, err
	}

	preconditions := &storage.Preconditions{}
	if options.Preconditions != nil {
		preconditions.UID, preconditions.ResourceVersion = options.Preconditions.UID, options.Preconditions.ResourceVersion
	}

	marked := n.store.New()
	update := storage.SimpleUpdate(func(existing runtime.Object) (runtime.Object, error) {
		found, ok := existing.(*core.Namespace)
		if !ok {
			return nil, fmt.Errorf("read namespace %q: got a %T", name, existing)
		}

		if err := validate(ctx, found); err != nil {
			return nil, err
		}

		if found.DeletionTimestamp.IsZero() {
			now := metav1.Now()
			found.DeletionTimestamp = &now
		}

		found.Status.Phase = core.NamespaceTerminating

		return found, nil
	})

	err = n.store.Storage.GuaranteedUpdate(ctx, key, marked, false, preconditions, update, dryrun.IsDryRun(options.DryRun), nil)
	if err != nil {
		err = storeerrors.InterpretUpdateError(storeerrors.InterpretGetError(err, namespaceResource.GroupResource(), name),
			namespaceResource.GroupResource(), name)

		if _, ok := errors.AsType[*apierrors.StatusError](err); !ok {
			err = apierrors.NewInternalError(err)
		}

		return nil, err
	}

	return marked, nil
}

// emptied says whether an update ends a namespace.
func emptied(ctx context.Context, key string, object, existing runtime.Object) bool {
	n, ok := object.(*core.Namespace)

	return ok && len(n.Spec.Finalizers) == 0 && registry.ShouldDeleteDuringUpdate(ctx, key, object, existing)
}

// createNamespace makes one that is there from the start.
func (s *Server) createNamespace(name string) error {
	n := &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	ctx := request.WithNamespace(context.Background(), metav1.NamespaceNone)

	_, err := s.resource(namespaceResource).main.(rest.Creater).Create(ctx, n, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})

	return err
}

func (s *Server) namespace(name string) (*core.Namespace, error) {
	ctx := request.WithNamespace(context.Background(), metav1.NamespaceNone)

	got, err := s.resource(namespaceResource).main.(rest.Getter).Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}

	n, ok := got.(*core.Namespace)
	if !ok {
		return nil, fmt.Errorf("read namespace %q: got a %T", name, got)
	}

	return n, nil
}
