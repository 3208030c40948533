package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Mirror is a copy of all objects of a kind that follows the server's watch. Objects that it returns are shared: they are copied
// before they are changed.
type Mirror[T any, P Object[T]] struct {
	Resource[T, P]

	changed []func(P)
	synced  chan struct{}

	mu      sync.Mutex
	objects map[string]P
	seen    uint64 // the version of the last event
	once    sync.Once
}

// NewMirror returns a mirror that Run fills.
func NewMirror[T any, P Object[T]](c *Client, kind Kind) (*Mirror[T, P], error) {
	resource, err := Of[T, P](c, kind)
	if err != nil {
		return nil, err
	}

	return &Mirror[T, P]{Resource: resource, synced: make(chan struct{}), objects: map[string]P{}}, nil
}

// OnChange calls f with each object that has come, has changed or has gone, in its last state. It is called before Run.
func (m *Mirror[T, P]) OnChange(f func(P)) { m.changed = append(m.changed, f) }

// Key returns what a queue names the object by: namespace and name.
func Key(o metav1.Object) string { return o.GetNamespace() + "/" + o.GetName() }

// Get returns the object, nil if there is none.
func (m *Mirror[T, P]) Get(namespace, name string) P {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.objects[namespace+"/"+name]
}

// List returns all objects in the order of their names.
func (m *Mirror[T, P]) List() []P {
	m.mu.Lock()
	defer m.mu.Unlock()

	all := make([]P, 0, len(m.objects))
	for _, o := range m.objects {
		all = append(all, o)
	}

	slices.SortFunc(all, func(a, b P) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})

	return all
}

// Put enters what the server answered to a write, so that the next look sees it even if its event is late.
func (m *Mirror[T, P]) Put(object P) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if version(object.GetResourceVersion()) > m.seen {
		m.storeLocked(object)
	}
}

// storeLocked keeps the newer one of two states.
func (m *Mirror[T, P]) storeLocked(object P) {
	old, ok := m.objects[Key(object)]
	if ok && version(old.GetResourceVersion()) > version(object.GetResourceVersion()) {
		return
	}

	m.objects[Key(object)] = object
}

func version(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64)

	return n
}

// Synced waits until the mirror is complete for the first time. It returns false when ctx ends before.
func (m *Mirror[T, P]) Synced(ctx context.Context) bool {
	select {
	case <-m.synced:
		return true
	case <-ctx.Done():
		return false
	}
}

// The pause after a watch or a list that failed grows up to a limit.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 15 * time.Second
)

// Run follows the server until ctx ends.
func (m *Mirror[T, P]) Run(ctx context.Context) {
	pause := firstPause

	for from := ""; ctx.Err() == nil; {
		err := m.follow(ctx, &from)

		switch {
		case err == nil: // The server ended the watch, as it does after a while.
			pause = firstPause
		case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
			from = ""
		default:
			sleep(ctx, pause+rand.N(pause/4)) //nolint:gosec // It spreads retries.

			pause = min(2*pause, lastPause)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// follow lists if from is empty, and watches until the watch ends.
func (m *Mirror[T, P]) follow(ctx context.Context, from *string) error {
	if *from == "" {
		objects, at, err := m.list(ctx)
		if err != nil {
			return err
		}

		m.replace(objects, at)
		*from = at
		m.once.Do(func() { close(m.synced) })
	}

	body, err := m.watch(ctx, *from)
	if err != nil {
		return err
	}
	defer body.Close() //nolint:errcheck // Only read from.

	stop := context.AfterFunc(ctx, func() { _ = body.Close() })
	defer stop()

	began := time.Now()

	for events := json.NewDecoder(body); ; {
		var event struct {
			Type   string          `json:"type"`
			Object json.RawMessage `json:"object"`
		}

		if err := events.Decode(&event); err != nil {
			if ctx.Err() != nil || time.Since(began) >= firstPause {
				return nil //nolint:nilerr // It is followed again from where it ended.
			}

			return errors.New("the watch ended at once")
		}

		if event.Type == "ERROR" {
			status := &metav1.Status{}
			if err := json.Unmarshal(event.Object, status); err != nil {
				return fmt.Errorf("decode error of a watch: %w", err)
			}

			return apierrors.FromObject(status)
		}

		object, err := m.decode(event.Object)
		if err != nil {
			return err
		}

		*from = object.GetResourceVersion()
		m.apply(event.Type, object)
	}
}

func (m *Mirror[T, P]) apply(kind string, object P) {
	m.mu.Lock()

	m.seen = max(m.seen, version(object.GetResourceVersion()))

	if kind != "DELETED" {
		m.storeLocked(object)
	} else if old, ok := m.objects[Key(object)]; ok && old.GetUID() == object.GetUID() {
		delete(m.objects, Key(object))
	}

	m.mu.Unlock()
	m.tell(object)
}

// replace takes a whole new list.
func (m *Mirror[T, P]) replace(objects []P, at string) {
	m.mu.Lock()

	before := m.objects
	m.objects, m.seen = map[string]P{}, max(m.seen, version(at))

	for _, o := range objects {
		m.objects[Key(o)] = o
	}

	m.mu.Unlock()

	for key, o := range before {
		if m.Get(o.GetNamespace(), o.GetName()) == nil {
			delete(before, key)
			m.tell(o)
		}
	}

	for _, o := range objects {
		m.tell(o)
	}
}

func (m *Mirror[T, P]) tell(object P) {
	for _, f := range m.changed {
		f(object)
	}
}
