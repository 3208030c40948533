package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// LongWatch is how long a watch is open before it is opened again from where it ended, and up to a third longer.
	LongWatch = 6 * time.Minute
	// ShortWatch is that of a watch which also shows, by being opened so often, that the cluster can be reached and knows us.
	ShortWatch = 15 * time.Second
	// endedAtOnce is how long a watch has to be open to be opened again without a pause.
	endedAtOnce = time.Second
	// slowAnswer is how long the opening of a watch takes at most before the mirror is not live any more.
	slowAnswer = 5 * time.Second
	// resumeTime is for how long a mirror whose Run was ended in peace is live without a watch: the next Run goes on where it ended.
	resumeTime = 10 * time.Second
)

// Source is how a Mirror learns what there is. List and Watch are those of a clientset.
type Source[T metav1.Object] struct {
	// Op is the list, for errors.
	Op Op
	// Selector selects the objects by their labels.
	Selector string
	// List returns what there is and the list's resource version.
	List func(ctx context.Context, opts metav1.ListOptions) ([]T, string, error)
	// Watch opens a watch.
	Watch func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	// Keep reduces an object to what is used of it; nil keeps all.
	Keep func(T)
	// Renew is how long a watch is open: LongWatch or ShortWatch.
	Renew time.Duration
}

// Mirror is a copy of some objects of one kind and namespace that a watch keeps up to date. Its methods may be called from several
// goroutines; Run from one at a time. What it holds outlives Run: the next one resumes where the last one ended.
type Mirror[T metav1.Object] struct {
	cluster *Cluster
	source  Source[T]

	mu      sync.Mutex
	objects map[string]T
	// version is where the watch goes on; empty before the first list, and once the server has forgotten so old a one.
	version string
	// open is whether a watch tells of changes now, resumed until when one is taken to be on its way.
	open    bool
	resumed time.Time
}

// NewMirror returns an empty mirror.
func NewMirror[T metav1.Object](k *Cluster, source Source[T]) *Mirror[T] {
	return &Mirror[T]{cluster: k, source: source, objects: map[string]T{}}
}

// All returns what there is by the mirror, and whether that can be relied on: a list has been seen whole and a watch is open, or was
// until a moment ago. The objects are shared and must not be changed.
//
// A watch tells of changes in order, but late by as long as the network takes, or until it is opened again when its connection
// died in silence. So an object that is shown may have gone meanwhile, and one that was just made may be missing.
func (m *Mirror[T]) All() (objects []T, live bool) {
	m.mu.Lock()
	defer m.mu.Unlock()

	for _, o := range m.objects {
		objects = append(objects, o)
	}

	return objects, m.liveLocked()
}

func (m *Mirror[T]) liveLocked() bool { return m.open || time.Now().Before(m.resumed) }

// Get returns an object that the mirror shows; false says nothing about whether it exists.
func (m *Mirror[T]) Get(name string) (object T, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()

	object, ok = m.objects[name]

	return object, ok && m.liveLocked()
}

// Run keeps the mirror up to date until ctx ends or the cluster does not let it. changed is called after each change with the object;
// it returns at once. After the end of ctx the mirror is live for a moment, within which Run may be called again.
func (m *Mirror[T]) Run(ctx context.Context, changed func(object T, gone bool)) error {
	defer func() {
		if ctx.Err() != nil {
			m.pause()
		} else {
			m.Close()
		}
	}()

	for {
		if m.resumeAt() == "" {
			if err := m.refill(ctx, changed); err != nil {
				return err
			}
		}

		started := time.Now()

		if err := m.follow(ctx, changed); err != nil {
			return err
		}

		// Right after a definition was installed the server ends watches as soon as they are opened.
		if time.Since(started) < endedAtOnce {
			m.Close()

			select {
			case <-ctx.Done():
			case <-time.After(endedAtOnce):
			}
		}

		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

func (m *Mirror[T]) resumeAt() string {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.version
}

// Close has the mirror not be live until Run opens a watch: what it shows is not to be relied on.
func (m *Mirror[T]) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.open, m.resumed = false, time.Time{}
}

// pause ends a watch that nothing is wrong with.
func (m *Mirror[T]) pause() {
	m.mu.Lock()
	defer m.mu.Unlock()

	if m.open {
		m.open, m.resumed = false, time.Now().Add(resumeTime)
	}
}

// refill makes the mirror what a list shows.
func (m *Mirror[T]) refill(ctx context.Context, changed func(T, bool)) error {
	type answer struct {
		objects []T
		version string
	}

	all, err := Call(ctx, m.cluster, m.source.Op, func(ctx context.Context) (a answer, err error) {
		a.objects, a.version, err = m.source.List(ctx, metav1.ListOptions{LabelSelector: m.source.Selector})

		return a, err
	})
	if err != nil {
		return err
	}

	before := m.replace(all.objects, all.version)

	for _, o := range all.objects {
		changed(o, false)
		delete(before, o.GetName())
	}

	for _, o := range before {
		changed(o, true)
	}

	return nil
}

// replace puts what a list has shown in the place of all, and returns what was there.
func (m *Mirror[T]) replace(objects []T, version string) (before map[string]T) {
	m.mu.Lock()
	defer m.mu.Unlock()

	before, m.objects = m.objects, make(map[string]T, len(objects))
	m.version = version

	for _, o := range objects {
		m.putLocked(o)
	}

	return before
}

func (m *Mirror[T]) putLocked(o T) {
	o.SetManagedFields(nil)

	if m.source.Keep != nil {
		m.source.Keep(o)
	}

	m.objects[o.GetName()] = o
}

// follow watches until the watch ends. A version that the server has forgotten is no error: the next one is had by a list.
func (m *Mirror[T]) follow(ctx context.Context, changed func(T, bool)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	seconds := int64(m.source.Renew / time.Second)
	seconds += rand.Int64N(seconds/3 + 1)

	w, err := m.connect(ctx, cancel, metav1.ListOptions{
		LabelSelector: m.source.Selector, ResourceVersion: m.resumeAt(), AllowWatchBookmarks: true, TimeoutSeconds: &seconds,
	})

	switch {
	case forgotten(err):
		m.forget()

		return nil
	case err != nil:
		return err
	}

	defer w.Stop()

	m.mu.Lock()
	m.open, m.resumed = true, time.Time{}
	m.mu.Unlock()

	// A watch that nobody ends may be one that nobody serves any more, behind a proxy that keeps the connection.
	overdue := time.NewTimer(time.Duration(seconds)*time.Second + m.cluster.timeout)
	defer overdue.Stop()

	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-overdue.C:
			return nil
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil
			}

			if err := m.apply(ctx, e, changed); err != nil || m.resumeAt() == "" {
				return err
			}
		}
	}
}

// connect opens a watch. Only that is bounded by the time of a call; afterwards the watch lives as long as ctx.
func (m *Mirror[T]) connect(ctx context.Context, cancel func(), opts metav1.ListOptions) (watch.Interface, error) {
	op := m.source.Op
	op.Verb = "watch"

	late, slow := time.AfterFunc(m.cluster.timeout, cancel), time.AfterFunc(slowAnswer, m.Close)
	defer slow.Stop()

	ctx = once(ctx)
	w, err := m.source.Watch(ctx, opts)

	// client-go makes an empty watch of a connection that broke.
	if broke := failed(ctx); err == nil && broke != nil {
		w.Stop()

		err = broke
	}

	switch {
	case !late.Stop():
		if err == nil {
			w.Stop()
		}

		return nil, fmt.Errorf("%s: the Kubernetes API has not answered within %s", op, m.cluster.timeout)
	case err != nil:
		return nil, classify(ctx, op, err)
	default:
		return w, nil
	}
}

func (m *Mirror[T]) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.version, m.open, m.resumed = "", false, time.Time{}
}

// apply takes an event over.
func (m *Mirror[T]) apply(ctx context.Context, e watch.Event, changed func(T, bool)) error {
	if e.Type == watch.Error {
		err := apierrors.FromObject(e.Object)
		if forgotten(err) {
			m.forget()

			return nil
		}

		op := m.source.Op
		op.Verb = "watch"

		return classify(ctx, op, err)
	}

	o, ok := e.Object.(T)
	if !ok {
		return fmt.Errorf("watch %s: got a %T", m.source.Op.Resource, e.Object)
	}

	m.mu.Lock()

	m.version = o.GetResourceVersion()

	switch e.Type {
	case watch.Added, watch.Modified:
		m.putLocked(o)
	case watch.Deleted:
		delete(m.objects, o.GetName())
	}

	m.mu.Unlock()

	if e.Type != watch.Bookmark {
		changed(o, e.Type == watch.Deleted)
	}

	return nil
}

// forgotten reports whether the server does not know so old a version any more.
func forgotten(err error) bool {
	var status apierrors.APIStatus

	return errors.As(err, &status) && status.Status().Code == http.StatusGone
}
