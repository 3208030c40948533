package omni

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources"
)

// Records returns what an infra provider keeps in its own namespace, of whatever types.
func (o *Omni) Records(ctx context.Context, provider string) ([]resource.Resource, error) {
	ns := infra.ResourceNamespace(provider)

	var all []resource.Resource

	for _, typ := range o.records.of(ns) {
		list, err := o.state.List(ctx, resource.NewMetadata(ns, typ, "", resource.VersionUndefined))
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", typ, err)
		}

		all = append(all, list.Items...)
	}

	return all, nil
}

// recordTypes remembers which types of resources providers have in their own namespaces; no definition tells.
type recordTypes struct {
	mu    sync.Mutex
	types map[resource.Namespace][]resource.Type
	known map[resource.Type]bool
}

func (r *recordTypes) of(ns resource.Namespace) []resource.Type {
	r.mu.Lock()
	defer r.mu.Unlock()

	return append([]resource.Type(nil), r.types[ns]...)
}

func (r *recordTypes) note(ns resource.Namespace, typ resource.Type) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.known[typ] {
		return
	}

	if r.known == nil {
		r.known, r.types = map[resource.Type]bool{}, map[resource.Namespace][]resource.Type{}
	}

	// The type's name ends in the provider's id, as its namespace does, so it is in no other one.
	r.known[typ] = true
	r.types[ns] = append(r.types[ns], typ)
}

// watched returns a state of one namespace that remembers the types of what is created in it, if it is a provider's own.
func (r *recordTypes) watched(ns resource.Namespace, st state.CoreState) state.CoreState {
	if !strings.HasPrefix(ns, resources.InfraProviderSpecificNamespacePrefix) {
		return st
	}

	return &recordState{CoreState: st, ns: ns, types: r}
}

type recordState struct {
	state.CoreState
	ns    resource.Namespace
	types *recordTypes
}

// Create makes a resource.
func (s *recordState) Create(ctx context.Context, r resource.Resource, opts ...state.CreateOption) error {
	s.types.note(s.ns, r.Metadata().Type())

	return s.CoreState.Create(ctx, r, opts...)
}
