package omni

import (
	"context"
	"slices"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
)

// Watch sends the changes of a resource to ch, if it is the caller's.
func (p *providerGate) Watch(ctx context.Context, ptr resource.Pointer, ch chan<- state.Event, opts ...state.WatchOption) error {
	g, err := p.admit(ctx, verbRead, ptr.Namespace(), ptr.Type())
	if err != nil {
		return err
	}

	return filterEvents(ctx, g, ch, func(all chan<- state.Event) error { return p.core.Watch(ctx, ptr, all, opts...) })
}

// WatchKind sends the changes of a kind of resource to ch, as far as they are the caller's.
func (p *providerGate) WatchKind(
	ctx context.Context, kind resource.Kind, ch chan<- state.Event, opts ...state.WatchKindOption,
) error {
	g, err := p.admit(ctx, verbRead, kind.Namespace(), kind.Type())
	if err != nil {
		return err
	}

	return filterEvents(ctx, g, ch, func(all chan<- state.Event) error { return p.core.WatchKind(ctx, kind, all, opts...) })
}

// WatchKindAggregated sends the changes of a kind of resource to ch, as far as they are the caller's.
func (p *providerGate) WatchKindAggregated(
	ctx context.Context, kind resource.Kind, ch chan<- []state.Event, opts ...state.WatchKindOption,
) error {
	g, err := p.admit(ctx, verbRead, kind.Namespace(), kind.Type())
	if err != nil {
		return err
	}

	if g.provider == "" {
		return p.core.WatchKindAggregated(ctx, kind, ch, opts...)
	}

	all := make(chan []state.Event)

	if err = p.core.WatchKindAggregated(ctx, kind, all, opts...); err != nil {
		return err
	}

	go pump(ctx, all, ch, func(events []state.Event) ([]state.Event, bool) {
		events = slices.DeleteFunc(events, func(e state.Event) bool { return !g.seesEvent(e) })

		return events, len(events) > 0
	})

	return nil
}

// seesEvent reports whether an event is about a resource of the caller, or about none.
func (g grant) seesEvent(e state.Event) bool {
	switch e.Type {
	case state.Bootstrapped, state.Errored, state.Noop:
		return true
	case state.Created, state.Updated, state.Destroyed:
	}

	return e.Resource != nil && g.sees(e.Resource)
}

func filterEvents(ctx context.Context, g grant, ch chan<- state.Event, watch func(chan<- state.Event) error) error {
	if g.provider == "" {
		return watch(ch)
	}

	all := make(chan state.Event)

	if err := watch(all); err != nil {
		return err
	}

	go pump(ctx, all, ch, func(e state.Event) (state.Event, bool) { return e, g.seesEvent(e) })

	return nil
}

// pump passes on what keep lets through until ctx ends.
func pump[T any](ctx context.Context, from <-chan T, to chan<- T, keep func(T) (T, bool)) {
	for {
		select {
		case <-ctx.Done():
			return
		case item := <-from:
			item, ok := keep(item)
			if !ok {
				continue
			}

			select {
			case to <- item:
			case <-ctx.Done():
				return
			}
		}
	}
}
