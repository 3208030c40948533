package omni

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
)

// BreakWatches ends all watches that clients have on a kind of resource now, or on any if typ is empty, with the error of one that
// could not keep up.
func (o *Omni) BreakWatches(typ resource.Type) { o.breakers.trip(typ) }

// breakers end the watches of clients.
type breakers struct {
	mu    sync.Mutex
	armed map[chan struct{}]resource.Type
}

func (b *breakers) arm(typ resource.Type) (broken <-chan struct{}, disarm func()) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.armed == nil {
		b.armed = map[chan struct{}]resource.Type{}
	}

	ch := make(chan struct{})
	b.armed[ch] = typ

	return ch, func() {
		b.mu.Lock()
		defer b.mu.Unlock()

		delete(b.armed, ch)
	}
}

func (b *breakers) trip(typ resource.Type) {
	b.mu.Lock()
	defer b.mu.Unlock()

	for ch, armed := range b.armed {
		if typ == "" || armed == typ {
			close(ch)
			delete(b.armed, ch)
		}
	}
}

// Watch sends the changes of a resource to ch, if it is the caller's.
func (p *providerGate) Watch(ctx context.Context, ptr resource.Pointer, ch chan<- state.Event, opts ...state.WatchOption) error {
	return watch(ctx, p, ptr, ch, grant.filterEvent, errored,
		func(all chan<- state.Event) error { return p.core.Watch(ctx, ptr, all, opts...) })
}

// WatchKind sends the changes of a kind of resource to ch, as far as they are the caller's.
func (p *providerGate) WatchKind(
	ctx context.Context, kind resource.Kind, ch chan<- state.Event, opts ...state.WatchKindOption,
) error {
	return watch(ctx, p, kind, ch, grant.filterEvent, errored,
		func(all chan<- state.Event) error { return p.core.WatchKind(ctx, kind, all, opts...) })
}

// WatchKindAggregated sends the changes of a kind of resource to ch, as far as they are the caller's.
func (p *providerGate) WatchKindAggregated(
	ctx context.Context, kind resource.Kind, ch chan<- []state.Event, opts ...state.WatchKindOption,
) error {
	return watch(ctx, p, kind, ch, grant.filterEvents,
		func(err error) []state.Event { return []state.Event{errored(err)} },
		func(all chan<- []state.Event) error { return p.core.WatchKindAggregated(ctx, kind, all, opts...) })
}

func errored(err error) state.Event { return state.Event{Type: state.Errored, Error: err} }

// filterEvent lets events through that are about a resource of the caller, or about none.
func (g grant) filterEvent(e state.Event) (state.Event, bool) {
	switch e.Type {
	case state.Bootstrapped, state.Errored, state.Noop:
		return e, true
	case state.Created, state.Updated, state.Destroyed:
	}

	return e, e.Resource != nil && g.sees(e.Resource)
}

func (g grant) filterEvents(events []state.Event) ([]state.Event, bool) {
	events = slices.DeleteFunc(events, func(e state.Event) bool {
		_, ok := g.filterEvent(e)

		return !ok
	})

	return events, len(events) > 0
}

// watch begins a watch and passes on what the caller may see of it until ctx ends or the watch is broken.
func watch[T any](
	ctx context.Context, p *providerGate, kind resource.Kind, ch chan<- T,
	filter func(grant, T) (T, bool), failed func(error) T, begin func(chan<- T) error,
) error {
	g, err := p.admit(ctx, verbRead, kind.Namespace(), kind.Type())
	if err != nil {
		return err
	}

	all := make(chan T)

	if err = begin(all); err != nil {
		return err
	}

	broken, disarm := p.breakers.arm(kind.Type())

	go func() {
		defer disarm()

		send := func(item T) bool {
			select {
			case ch <- item:
				return true
			case <-ctx.Done():
				return false
			}
		}

		for {
			select {
			case <-ctx.Done():
				return
			case <-broken:
				send(failed(fmt.Errorf("buffer overrun: namespace %q type %q", kind.Namespace(), kind.Type())))

				return
			case item := <-all:
				if item, ok := filter(g, item); ok && !send(item) {
					return
				}
			}
		}
	}()

	return nil
}
