package lifecycle

import (
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
)

// mostRaces is how often a write is tried against other writers before the request waits for its next turn.
const mostRaces = 10

// ensure writes a resource of ours as change leaves it: it creates what is not there, updates what differs, and calls nothing
// when nothing does. empty makes the resource that a create starts from. Another writer in between costs another look.
func ensure[T resource.Resource](ctx context.Context, p *Provider, m *mirror[T], empty T, change func(T)) (T, error) {
	cur, had := m.get(empty.Metadata().ID())

	for tries := 1; ; tries++ {
		var err error

		next := empty.DeepCopy().(T) //nolint:forcetypeassert,errcheck // a copy of a T
		if had {
			next = cur.DeepCopy().(T) //nolint:forcetypeassert,errcheck // a copy of a T
		}

		change(next)

		switch {
		case !had:
			err = p.write(ctx, func(ctx context.Context) error { return p.st.Create(ctx, next, state.WithCreateOwner(p.owner)) })
		case resource.Equal(cur, next):
			return cur, nil
		default:
			err = p.write(ctx, func(ctx context.Context) error {
				return p.st.Update(ctx, next, state.WithUpdateOwner(cur.Metadata().Owner()), state.WithExpectedPhaseAny())
			})
		}

		if err == nil {
			m.put(next)

			return next, nil
		}

		if !isRace(err) || tries == mostRaces {
			return next, err
		}

		if cur, had, err = fetch(ctx, p, m, empty.Metadata()); err != nil {
			return next, err
		}
	}
}

// isRace reports whether a write failed because somebody wrote in between, the last answer that was lost included.
func isRace(err error) bool {
	return state.IsNotFoundError(err) || state.IsConflictError(err) && !state.IsOwnerConflictError(err) && !state.IsPhaseConflictError(err)
}

// fetch reads a resource past the mirror.
func fetch[T resource.Resource](ctx context.Context, p *Provider, m *mirror[T], ptr resource.Pointer) (T, bool, error) {
	var zero T

	res, err := call(ctx, p.cfg.CallTimeout, "reading from Omni", func(ctx context.Context) (resource.Resource, error) { return p.st.Get(ctx, ptr) })
	if state.IsNotFoundError(err) {
		m.drop(ptr.ID())

		return zero, false, nil
	}

	if err != nil {
		return zero, false, err
	}

	typed, keep, err := m.decode(res)
	if err != nil || !keep {
		return zero, false, err
	}

	m.put(typed)

	return typed, true, nil
}

// remove tears a resource down and destroys it; false says that somebody's finalizer still holds it. What is not there is no
// error. The owner is the resource's own, as another version of the library may have made it.
func remove[T resource.Resource](ctx context.Context, p *Provider, m *mirror[T], ptr resource.Pointer) (bool, error) {
	cur, ok := m.get(ptr.ID())
	if !ok {
		return true, nil
	}

	owner := cur.Metadata().Owner()

	if cur.Metadata().Phase() != resource.PhaseTearingDown {
		if cur.Metadata().Finalizers().Empty() && p.destroy(ctx, ptr, owner) == nil {
			m.drop(ptr.ID())

			return true, nil
		}

		ready, err := tearDown(ctx, p, m, cur)
		if state.IsNotFoundError(err) {
			m.drop(ptr.ID())

			return true, nil
		}

		if err != nil || !ready {
			return false, err
		}
	} else if !cur.Metadata().Finalizers().Empty() {
		return false, nil
	}

	err := p.destroy(ctx, ptr, owner)
	if err == nil || state.IsNotFoundError(err) {
		m.drop(ptr.ID())

		return true, nil
	}

	if !state.IsConflictError(err) || state.IsOwnerConflictError(err) {
		return false, err
	}

	// Somebody who holds it is waited for: his letting go is news. Without anybody there would be none.
	fresh, ok, err := fetch(ctx, p, m, ptr)
	if err != nil || !ok {
		return !ok && err == nil, err
	}

	if fresh.Metadata().Finalizers().Empty() {
		return false, errChanged
	}

	return false, nil
}

// tearDown asks everybody to let go of a resource of ours; true says that nobody holds it. The copy in the mirror is torn down
// as well, so that no turn acts on the old one.
func tearDown[T resource.Resource](ctx context.Context, p *Provider, m *mirror[T], cur T) (bool, error) {
	ready := false

	err := p.write(ctx, func(ctx context.Context) (err error) {
		ready, err = p.st.Teardown(ctx, cur.Metadata(), state.WithTeardownOwner(cur.Metadata().Owner()))

		return err
	})
	if err != nil {
		return false, err
	}

	torn := cur.DeepCopy().(T) //nolint:forcetypeassert,errcheck // a copy of a T
	torn.Metadata().SetPhase(resource.PhaseTearingDown)
	m.put(torn)

	return ready, nil
}

func (p *Provider) destroy(ctx context.Context, ptr resource.Pointer, owner string) error {
	return p.write(ctx, func(ctx context.Context) error { return p.st.Destroy(ctx, ptr, state.WithDestroyOwner(owner)) })
}

// write makes one write to Omni.
func (p *Provider) write(ctx context.Context, f func(context.Context) error) error {
	return write(ctx, p.lease, p.cfg.CallTimeout, f)
}

// write makes one write to Omni, where only the process that holds the lease writes.
func write(ctx context.Context, l *lease, timeout time.Duration, f func(context.Context) error) error {
	if err := l.check(); err != nil {
		return fmt.Errorf("writing to Omni: %w", err)
	}

	_, err := call(ctx, timeout, "writing to Omni", func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) })

	return err
}
