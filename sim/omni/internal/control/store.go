package control

import (
	"reflect"
	"sync"

	"github.com/cosi-project/runtime/pkg/controller/generic"
	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
)

// watchHistory is how many changes of one kind a watch may lag behind before it breaks. The default of the in-memory state
// is 100, which a set of a few hundred machines overruns.
const watchHistory = 1 << 16

// NewState returns an empty in-memory state that keeps up with thousands of machines.
func NewState() state.CoreState {
	return namespaced.NewState(func(ns resource.Namespace) state.CoreState {
		return inmem.NewStateWithOptions(inmem.WithHistoryMaxCapacity(watchHistory))(ns)
	})
}

var definitions sync.Map // of the reflect.Type of a resource to its meta.ResourceDefinitionSpec

// definitionOf returns the definition of T. It is remembered, as that of resource labels takes milliseconds to make.
func definitionOf[T generic.ResourceWithRD]() meta.ResourceDefinitionSpec {
	key := reflect.TypeFor[T]()

	if known, ok := definitions.Load(key); ok {
		if definition, ok := known.(meta.ResourceDefinitionSpec); ok {
			return definition
		}
	}

	var zero T

	definition := zero.ResourceDefinition()
	definitions.Store(key, definition)

	return definition
}

// pointerTo returns the metadata of the resource of type T with the id, all of them if the id is empty.
func pointerTo[T generic.ResourceWithRD](id resource.ID) resource.Metadata {
	definition := definitionOf[T]()

	return resource.NewMetadata(definition.DefaultNamespace, definition.Type, id, resource.VersionUndefined)
}
