package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
)

// mirror keeps a copy of all resources of one kind, so that a reconcile reads nothing over the wire. It follows a watch; when
// the watch is cut or overrun it opens another one with a full look, and tells of everything that differs.
//
// Writers put what they wrote, so that the next reader sees it before the watch brings it back.
type mirror[T resource.Resource] struct {
	namespace resource.Namespace
	kind      resource.Type
	// decode turns what the state delivers into T; false drops the resource, as another provider's.
	decode func(resource.Resource) (T, bool, error)
	// changed is called after each change, with the zero T for what was not or is no longer there.
	changed func(before, after T)

	// back is shared with other mirrors of the same Omni; it may be nil.
	back *comeback

	mu     sync.RWMutex
	items  map[resource.ID]T
	gone   map[resource.ID]time.Time // when what we destroyed had been created; the watch has yet to say that it is gone
	made   map[resource.ID]struct{}  // what we put that was not there before, since the full look under way began; nil when none is
	filled chan struct{}
	once   sync.Once
}

// newMirror returns a mirror of the resources that keep accepts; a nil keep accepts all.
func newMirror[T resource.Resource](namespace resource.Namespace, kind resource.Type, keep func(T) bool, changed func(before, after T)) *mirror[T] {
	return &mirror[T]{
		namespace: namespace,
		kind:      kind,
		decode: func(res resource.Resource) (T, bool, error) {
			typed, ok := res.(T)
			if !ok {
				return typed, false, fmt.Errorf("decode %s %q: got a %T", kind, res.Metadata().ID(), res)
			}

			return typed, keep == nil || keep(typed), nil
		},
		changed: changed,
		items:   map[resource.ID]T{},
		gone:    map[resource.ID]time.Time{},
		filled:  make(chan struct{}),
	}
}

// get returns the resource with the id. The caller must not change it.
func (m *mirror[T]) get(id resource.ID) (T, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()

	res, ok := m.items[id]

	return res, ok
}

// all returns the resources that match, in no order. A nil match returns all.
func (m *mirror[T]) all(match func(T) bool) []T {
	m.mu.RLock()
	defer m.mu.RUnlock()

	var out []T

	for _, res := range m.items {
		if match == nil || match(res) {
			out = append(out, res)
		}
	}

	return out
}

// put takes in a resource that was just written.
func (m *mirror[T]) put(res T) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if cur, ok := m.items[res.Metadata().ID()]; ok && newer(cur, res) {
		return
	}

	if _, had := m.items[res.Metadata().ID()]; !had && m.made != nil {
		m.made[res.Metadata().ID()] = struct{}{}
	}

	delete(m.gone, res.Metadata().ID())
	m.items[res.Metadata().ID()] = res
}

// drop takes out a resource that was just destroyed.
func (m *mirror[T]) drop(id resource.ID) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if cur, ok := m.items[id]; ok {
		m.gone[id] = cur.Metadata().Created()
		delete(m.items, id)
		delete(m.made, id)
	}
}

// newer orders copies of a resource, those of one that was destroyed and made again included.
func newer(a, b resource.Resource) bool {
	return cmp.Or(
		a.Metadata().Created().Compare(b.Metadata().Created()),
		cmp.Compare(a.Metadata().Version().Value(), b.Metadata().Version().Value()),
	) > 0
}

// awaitFilled returns once the first full look is done.
func (m *mirror[T]) awaitFilled(ctx context.Context) error {
	select {
	case <-m.filled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("list %s: %w", m.kind, context.Cause(ctx))
	}
}

// run follows the state until ctx ends. failed is told of every watch that broke.
func (m *mirror[T]) run(ctx context.Context, st state.CoreState, failed func(error)) {
	pause := backoff{first: 500 * time.Millisecond, most: 30 * time.Second}

	var (
		others  <-chan struct{}
		hurries int
	)

	for tries := 0; ctx.Err() == nil; tries++ {
		started := time.Now()

		opened, err := m.follow(ctx, st)
		if ctx.Err() != nil {
			return
		}

		failed(fmt.Errorf("watch %s: %w", m.kind, err))

		if time.Since(started) > pause.most {
			tries, hurries = 0, 0
		}

		// One that comes back while this one tries in vain is heard of as well.
		if opened || others == nil {
			others = m.back.next()
		}

		if hurries == mostHurries {
			others = nil
		}

		if await(ctx, pause.after(tries), others) {
			others = nil
			hurries++
		}
	}
}

// fillTimeout is how long a watch may say nothing before its full look is complete.
const fillTimeout = time.Minute

// follow keeps the copy up to date until the watch breaks, and reports whether the full look was complete by then.
func (m *mirror[T]) follow(ctx context.Context, st state.CoreState) (opened bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	silent := time.AfterFunc(fillTimeout, func() { cancel(fmt.Errorf("no word from Omni for %s", fillTimeout)) })
	defer silent.Stop()

	m.mu.Lock()
	m.made = map[resource.ID]struct{}{}
	m.mu.Unlock()

	ch := make(chan []state.Event)

	md := resource.NewMetadata(m.namespace, m.kind, "", resource.VersionUndefined)
	if err := st.WatchKindAggregated(ctx, md, ch, state.WithBootstrapContents(true)); err != nil {
		return false, cmp.Or(context.Cause(ctx), err)
	}

	// Until the full look is complete it is collected aside: a part of it never replaces what is known.
	look := map[resource.ID]T{}

	for {
		select {
		case <-ctx.Done():
			return opened, context.Cause(ctx)
		case events := <-ch:
			if look != nil {
				silent.Reset(fillTimeout)
			}

			for _, event := range events {
				switch event.Type {
				case state.Errored:
					return opened, event.Error
				case state.Noop:
				case state.Bootstrapped:
					m.replace(look)
					m.once.Do(func() { close(m.filled) })
					m.back.tell()

					look, opened = nil, true

					silent.Stop()
				case state.Created, state.Updated, state.Destroyed:
					if err := m.apply(event, look); err != nil {
						return opened, err
					}
				}
			}
		}
	}
}

func (m *mirror[T]) apply(event state.Event, look map[resource.ID]T) error {
	res, keep, err := m.decode(event.Resource)
	if err != nil {
		return err
	}

	if look != nil {
		if keep && event.Type != state.Destroyed {
			look[res.Metadata().ID()] = res
		}

		return nil
	}

	id := res.Metadata().ID()

	var zero, before T

	m.mu.Lock()

	before, had := m.items[id]

	if event.Type == state.Destroyed || !keep {
		if had && newer(before, res) {
			m.mu.Unlock()

			return nil
		}

		delete(m.gone, id)
		delete(m.items, id)
		m.mu.Unlock()

		if had || event.Type == state.Destroyed && keep {
			if !had {
				before = res
			}

			m.changed(before, zero)
		}

		return nil
	}

	destroyed, isGone := m.gone[id]
	stale := had && !newer(res, before) || isGone && !res.Metadata().Created().After(destroyed)

	if !stale {
		m.items[id] = res
	}

	m.mu.Unlock()

	// A write of our own that comes back is told as well: it may have woken somebody else.
	m.changed(before, res)

	return nil
}

func (m *mirror[T]) replace(look map[resource.ID]T) {
	var zero T

	m.mu.Lock()
	before := m.items
	m.items = look

	// What was written or destroyed while the look was taken is newer than the look.
	for id, destroyed := range m.gone {
		if res, ok := look[id]; ok && !res.Metadata().Created().After(destroyed) {
			delete(look, id)
		} else {
			delete(m.gone, id)
		}
	}

	for id := range m.made {
		if _, ok := look[id]; !ok {
			look[id] = before[id]
		}
	}

	m.made = nil

	for id, res := range look {
		if cur, ok := before[id]; ok && newer(cur, res) {
			look[id] = cur
		}
	}

	ids := make([]resource.ID, 0, len(before)+len(look))
	for id := range before {
		ids = append(ids, id)
	}

	for id := range look {
		if _, had := before[id]; !had {
			ids = append(ids, id)
		}
	}

	after := make(map[resource.ID]T, len(look))
	for id, res := range look {
		after[id] = res
	}
	m.mu.Unlock()

	slices.Sort(ids)

	for _, id := range ids {
		was, now := zero, zero
		if res, ok := before[id]; ok {
			was = res
		}

		if res, ok := after[id]; ok {
			now = res
		}

		m.changed(was, now)
	}
}

// isNil reports whether a generic resource is absent.
func isNil[T resource.Resource](res T) bool {
	var zero T

	return any(res) == any(zero)
}
