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
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/discovery"
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

// eventSeconds is how long an event lasts after it was written last.
const eventSeconds = 60 * 60

// newBuiltin makes the resource of a built-in kind.
func newBuiltin(db *mvcc.DB, may authorizer.Authorizer, b builtin) (*resource, error) {
	s := strategy{ObjectTyper: scheme, NameGenerator: names.SimpleNameGenerator, builtin: b}
	of := b.resource().GroupResource()

	singular := of
	singular.Resource = b.singular

	store := &registry.Store{
		NewFunc: b.newObject, NewListFunc: b.newList, PredicateFunc: predicate(s.attributes),
		DefaultQualifiedResource: of, SingularQualifiedResource: singular,
		CreateStrategy: s, UpdateStrategy: s, DeleteStrategy: s, ResetFieldsStrategy: s,
		TableConvertor: rest.NewDefaultTableConvertor(of), ReturnDeletedObject: b.returnsDeleted(),
	}

	if b.kind == "Event" {
		store.TTLFunc = func(runtime.Object, uint64, bool) (uint64, error) { return eventSeconds, nil }
	}

	options := inMemory{db: db, prefix: "/registry/" + b.plural, codec: codecs.LegacyCodec(b.version)}
	if err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: options, AttrFunc: s.attributes}); err != nil {
		return nil, fmt.Errorf("make resource %q: %w", b.plural, err)
	}

	r := &resource{main: store, patches: builtinPatches, subresources: map[string]subresource{}, info: metav1.APIResource{
		Name: b.plural, SingularName: b.singular, Namespaced: !b.cluster, Kind: b.kind, Verbs: allVerbs, ShortNames: b.short,
		StorageVersionHash: discovery.StorageVersionHash(b.version.Group, b.version.Version, b.kind),
	}}

	var err error
	if r.scope, err = builtinScope(may, b, "", s); err != nil {
		return nil, err
	}

	var subresources []string

	if b.status {
		subresources = append(subresources, "status")
	}

	if b.kind == "Namespace" {
		store.ShouldDeleteDuringUpdate = emptied
		r.main = namespaces{Getter: store, Lister: store, Watcher: store, CreaterUpdater: store, store: store}
		r.info.Verbs = slices.DeleteFunc(slices.Clone(allVerbs), func(v string) bool { return v == "deletecollection" })
		subresources = append(subresources, "finalize")
	}

	for _, name := range subresources {
		s.subresource = name

		part := *store
		part.UpdateStrategy, part.ResetFieldsStrategy = s, s

		scope, err := builtinScope(may, b, name, s)
		if err != nil {
			return nil, err
		}

		r.subresources[name] = subresource{of: subresourceOf{store: &part}, scope: scope}
	}

	return r, nil
}

func builtinScope(may authorizer.Authorizer, b builtin, subresource string, reset rest.ResetFieldsStrategy) (*handlers.RequestScope, error) {
	kind := b.version.WithKind(b.kind)
	equivalent := runtime.NewEquivalentResourceRegistry()
	equivalent.RegisterKindFor(b.resource(), subresource, kind)

	var filter map[fieldpath.APIVersion]fieldpath.Filter
	if reset != nil {
		filter = fieldpath.NewExcludeFilterSetMap(reset.GetResetFields())
	}

	unsafe := runtime.UnsafeObjectConvertor(scheme)

	manager, err := managedfields.NewDefaultFieldManager(builtinTypes(), unsafe, scheme, scheme, kind, b.version, subresource, filter)
	if err != nil {
		return nil, fmt.Errorf("make field manager of %q: %w", b.plural, err)
	}

	return &handlers.RequestScope{
		Namer:      handlers.ContextBasedNaming{Namer: runtime.Namer(meta.NewAccessor()), ClusterScoped: b.cluster},
		Serializer: codecs, ParameterCodec: runtime.NewParameterCodec(scheme),
		Creater: scheme, Convertor: scheme, Defaulter: scheme, Typer: scheme, UnsafeConvertor: unsafe,
		EquivalentResourceMapper: equivalent, TableConvertor: rest.NewDefaultTableConvertor(b.resource().GroupResource()),
		FieldManager: manager, Authorizer: may, Resource: b.resource(), Kind: kind, Subresource: subresource,
		HubGroupVersion: b.version, MetaGroupVersion: metav1.SchemeGroupVersion, MaxRequestBodyBytes: maxBody,
	}, nil
}

// sortedKeys returns a map's keys in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
