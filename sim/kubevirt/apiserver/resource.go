package apiserver

import (
	"context"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver/internal/mvcc"
)

// maxBody is what the real server takes in one request.
const maxBody = 3 << 20

// minWatch is how long a watch lasts at least that does not say so.
const minWatch = 30 * time.Minute

// resource is one kind in one version.
type resource struct {
	info metav1.APIResource
	// main offers the verbs, by the interfaces of package rest.
	main any
	// scope says how requests and answers are read and written.
	scope        *handlers.RequestScope
	subresources map[string]subresource
	patches      []string
}

// subresource is a part of a kind's objects that is read and written by itself.
type subresource struct {
	of    any
	scope *handlers.RequestScope
}

// What a resource offers, and a subresource.
var (
	allVerbs         = metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	customVerbs      = metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
	subresourceVerbs = metav1.Verbs{"get", "patch", "update"}
)

// The patches of built-in kinds and of custom resources, which have no strategic merge.
var (
	builtinPatches = []string{
		string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType), string(types.ApplyYAMLPatchType),
	}
	customPatches = []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)}
)

// misplaced returns the status for a path that objects of this kind do not have, zero if they have it.
func (r *resource) misplaced(info *request.RequestInfo) int {
	inNamespace := info.Namespace != "" && info.Resource != "namespaces"

	switch {
	case r.info.Namespaced == inNamespace:
		return 0
	case inNamespace, info.Name != "":
		return http.StatusNotFound
	case info.Verb == "list", info.Verb == "watch":
		return 0
	default:
		return http.StatusMethodNotAllowed
	}
}

// handler returns what serves a request, nil if there is no such subresource, or an error for a verb that is not offered.
func (r *resource) handler(info *request.RequestInfo, admit admission.Interface, limits *quotas) (http.Handler, error) {
	main, scope := r.main, r.scope

	if info.Subresource != "" {
		limits = nil // What objects take of a quota is not there.

		part, ok := r.subresources[info.Subresource]
		if !ok {
			return nil, nil //nolint:nilnil // see above
		}

		main, scope = part.of, part.scope
	}

	if h := handlerOf(info.Verb, main, scope, admit, limits, r.patches); h != nil {
		return h, nil
	}

	return nil, apierrors.NewMethodNotSupported(scope.Resource.GroupResource(), info.Verb)
}

// handlerOf returns the real server's handler of a verb, nil if the storage does not offer it.
func handlerOf(
	verb string, s any, scope *handlers.RequestScope, admit admission.Interface, limits *quotas, patches []string,
) http.Handler {
	switch verb {
	case "get":
		if g, ok := s.(rest.Getter); ok {
			return handlers.GetResource(g, scope)
		}
	case "list", "watch":
		if l, ok := s.(rest.Lister); ok {
			w, _ := s.(rest.Watcher)

			return handlers.ListResource(l, w, scope, verb == "watch", minWatch)
		}
	case "create":
		if c, ok := s.(rest.Creater); ok {
			return handlers.CreateResource(limits.creates(scope.Resource, c), scope, admit)
		}
	case "update":
		if p, ok := s.(rest.Patcher); ok {
			return handlers.UpdateResource(limits.updates(scope.Resource, p), scope, admit)
		}
	case "patch":
		if p, ok := s.(rest.Patcher); ok {
			return handlers.PatchResource(limits.updates(scope.Resource, p), scope, admit, patches)
		}
	case "delete":
		if d, ok := s.(rest.GracefulDeleter); ok {
			return handlers.DeleteResource(d, true, scope, admit)
		}
	case "deletecollection":
		if d, ok := s.(rest.CollectionDeleter); ok {
			return handlers.DeleteCollection(d, true, scope, admit)
		}
	}

	return nil
}

// inMemory makes the registry of the real server keep its objects in the database, below a prefix, which texts of conflicts have in them.
type inMemory struct {
	db     *mvcc.DB
	prefix string
	codec  runtime.Codec
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (m inMemory) GetRESTOptions(of schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := &storagebackend.ConfigForResource{Config: storagebackend.Config{Codec: m.codec}, GroupResource: of}

	return generic.RESTOptions{
		StorageConfig: config, ResourcePrefix: m.prefix, EnableGarbageCollection: true, DeleteCollectionWorkers: 1,
		Decorator: func(
			_ *storagebackend.ConfigForResource, prefix string, _ func(runtime.Object) (string, error), newObject, _ func() runtime.Object,
			_ storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
		) (storage.Interface, factory.DestroyFunc, error) {
			return m.db.Storage(prefix, m.codec, newObject), func() {}, nil
		},
	}, nil
}

// subresourceOf is a subresource of a kind, through the store of its objects with a strategy of its own.
type subresourceOf struct {
	store interface {
		rest.Getter
		rest.Updater
		rest.ResetFieldsStrategy
		rest.TableConvertor
	}
}

// predicate returns the selection for selectors with a kind's attributes.
func predicate(attrs storage.AttrFunc) func(labels.Selector, fields.Selector) storage.SelectionPredicate {
	return func(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
		return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: attrs}
	}
}

// New implements rest.Storage.
func (s subresourceOf) New() runtime.Object { return s.store.New() }

// Destroy implements rest.Storage.
func (s subresourceOf) Destroy() {}

// Get implements rest.Patcher.
func (s subresourceOf) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}

// Update implements rest.Updater. A part is never created by itself.
func (s subresourceOf) Update(
	ctx context.Context, name string, object rest.UpdatedObjectInfo, create rest.ValidateObjectFunc, update rest.ValidateObjectUpdateFunc,
	_ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, object, create, update, false, options)
}
