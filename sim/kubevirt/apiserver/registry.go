package apiserver

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/endpoints/handlers"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/client-go/applyconfigurations"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver/internal/mvcc"
)

// builtinTypes knows the built-in kinds as server-side apply sees them.
var builtinTypes = sync.OnceValue(func() managedfields.TypeConverter { return applyconfigurations.NewTypeConverter(scheme) })

// newBuiltin makes the resource of a built-in kind.
func newBuiltin(db *mvcc.DB, b builtin) (*resource, error) {
	s := strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator, builtin: b}
	of := b.resource().GroupResource()

	singular := of
	singular.Resource = b.singular

	store := &registry.Store{
		NewFunc: b.newObject, NewListFunc: b.newList, PredicateFunc: predicate(s.attributes),
		DefaultQualifiedResource: of, SingularQualifiedResource: singular,
		CreateStrategy: s, UpdateStrategy: s, DeleteStrategy: s, ResetFieldsStrategy: s,
		TableConvertor: rest.NewDefaultTableConvertor(of),
	}

	options := inMemory{db: db, codec: codecs.LegacyCodec(b.version)}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options, AttrFunc: s.attributes}); err != nil {
		return nil, fmt.Errorf("make resource %q: %w", b.plural, err)
	}

	r := &resource{main: store, patches: builtinPatches, info: metav1.APIResource{
		Name: b.plural, SingularName: b.singular, Namespaced: !b.cluster, Kind: b.kind, Verbs: allVerbs, ShortNames: b.short,
	}}

	var err error
	if r.scope, err = builtinScope(b, "", s); err != nil || !b.status {
		return r, err
	}

	s.onStatus = true

	statusStore := *store
	statusStore.UpdateStrategy, statusStore.ResetFieldsStrategy = s, s
	r.status = statusOf{store: &statusStore}
	r.statusScope, err = builtinScope(b, "status", s)

	return r, err
}

func builtinScope(b builtin, subresource string, reset rest.ResetFieldsStrategy) (*handlers.RequestScope, error) {
	kind := b.version.WithKind(b.kind)
	equivalent := runtime.NewEquivalentResourceRegistry()
	equivalent.RegisterKindFor(b.resource(), subresource, kind)

	scope := &handlers.RequestScope{
		Namer:      handlers.ContextBasedNaming{Namer: runtime.Namer(meta.NewAccessor()), ClusterScoped: b.cluster},
		Serializer: codecs, ParameterCodec: runtime.NewParameterCodec(scheme),
		Creater: scheme, Convertor: scheme, Defaulter: scheme, Typer: scheme, UnsafeConvertor: runtime.UnsafeObjectConvertor(scheme),
		EquivalentResourceMapper: equivalent, TableConvertor: rest.NewDefaultTableConvertor(b.resource().GroupResource()),
		Resource: b.resource(), Kind: kind, Subresource: subresource,
		HubGroupVersion: b.version, MetaGroupVersion: metav1.SchemeGroupVersion, MaxRequestBodyBytes: maxBody,
	}

	manager, err := managedfields.NewDefaultFieldManager(
		builtinTypes(), scope.UnsafeConvertor, scheme, scheme, kind, b.version, subresource,
		fieldpath.NewExcludeFilterSetMap(reset.GetResetFields()),
	)
	if err != nil {
		return nil, fmt.Errorf("make field manager of %q: %w", b.plural, err)
	}

	scope.FieldManager = manager

	return scope, nil
}

// sortedKeys returns a map's keys in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
