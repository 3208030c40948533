package conformance

import (
	"context"
	"encoding/json"
	"sync"

	"github.com/cosi-project/runtime/pkg/controller/generic"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
)

// outputs are all that the provider has written for others to read, of which most is overwritten soon.
type outputs struct {
	mu sync.Mutex
	// texts has the places at which a text was.
	texts map[string]string
	// statuses are those of each request, in their order.
	statuses map[string][]*specs.MachineRequestStatusSpec
}

// follow keeps what the provider writes into Omni until the world ends.
func (e *env) follow() {
	e.outputs.texts, e.outputs.statuses = map[string]string{}, map[string][]*specs.MachineRequestStatusSpec{}

	watch(e, infra.NewMachineRequestStatus(""), func(r *infra.MachineRequestStatus) {
		e.outputs.statuses[r.Metadata().ID()] = append(e.outputs.statuses[r.Metadata().ID()], r.TypedSpec().Value)
		e.outputs.keep("a machine request's status", r.TypedSpec().Value)
		e.outputs.keep("the labels of a machine request's status", r.Metadata().Labels().Raw())
	})
	watch(e, infra.NewProviderStatus(""), func(r *infra.ProviderStatus) {
		e.outputs.keep("the provider's status", r.TypedSpec().Value)
	})
	watch(e, infra.NewProviderHealthStatus(""), func(r *infra.ProviderHealthStatus) {
		// The time makes each text a new one.
		e.outputs.keep("the provider's health", r.TypedSpec().Value.Error)
	})
	watch(e, infra.NewMachineStatus(""), func(r *infra.MachineStatus) {
		e.outputs.keep("an infra machine's status", r.TypedSpec().Value)
		e.outputs.keep("the labels of an infra machine's status", r.Metadata().Labels().Raw())
	})
	watch(e, siderolink.NewProviderJoinConfig(e.provider), func(r *siderolink.ProviderJoinConfig) {
		e.watchSecret("the provider's join token", r.TypedSpec().Value.JoinToken)
	})
}

// watch hands each version of the resources of a kind to see, with the outputs locked.
func watch[T generic.ResourceWithRD](e *env, kind T, see func(T)) {
	events := make(chan safe.WrappedStateEvent[T])

	e.do("watch what the provider writes", func(context.Context) error {
		return safe.StateWatchKind(e.ctx, e.state, kind.Metadata(), events, state.WithBootstrapContents(true))
	})
	e.tasks.Go(func() {
		for {
			select {
			case <-e.ctx.Done():
				return
			case event := <-events:
				if r, err := event.Resource(); err == nil && event.Type() != state.Destroyed {
					e.outputs.mu.Lock()
					see(r)
					e.outputs.mu.Unlock()
				}
			}
		}
	})
}

// keep remembers a text; o.mu is held.
func (o *outputs) keep(place string, what any) {
	text, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}

	o.texts[string(text)] = place
}

// told returns all that the provider has said of a request, each status once.
func (e *env) told(request string) []*specs.MachineRequestStatusSpec {
	e.outputs.mu.Lock()
	defer e.outputs.mu.Unlock()

	return append([]*specs.MachineRequestStatusSpec(nil), e.outputs.statuses[e.full(request)]...)
}

// scanOutputs looks for secrets in all that the provider has ever said. It comes last, when all secrets are known.
func (e *env) scanOutputs() {
	e.outputs.mu.Lock()
	defer e.outputs.mu.Unlock()

	for text, place := range e.outputs.texts {
		e.history().Scan(place, text)
	}

	if e.schematics != nil {
		for _, raw := range e.schematics.asked() {
			e.history().Scan("a schematic", raw)
		}
	}

	if e.ledger == nil {
		return
	}

	for _, o := range e.ledger.Objects() {
		e.ledger.Scan("the name of an object in the cloud", o.String())
	}

	if e.subject.Outputs != nil {
		for place, text := range e.subject.Outputs() {
			e.ledger.Scan(place, text)
		}
	}
}
