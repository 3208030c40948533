package mvcc

import (
	"context"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// Bookmarks come about once a minute, and shortly before a watch runs out.
const (
	bookmarkEvery  = time.Minute
	bookmarkBefore = 2 * time.Second
)

// maxPending is how many events wait for a reader.
const maxPending = 100

type watcher struct {
	storage *Storage
	ctx     context.Context // It is the life of the watch.
	cancel  context.CancelFunc
	cut     <-chan struct{}
	result  chan watch.Event
	within  func(key string) bool
	options storage.ListOptions
	// seen is the revision up to which the reader was told.
	seen int64
}

// Watch implements storage.Interface.
func (s *Storage) Watch(ctx context.Context, key string, options storage.ListOptions) (watch.Interface, error) {
	key, err := storage.PrepareKey(s.prefix, key, options.Recursive)
	if err != nil {
		return nil, err
	}

	from, err := s.versioner.ParseResourceVersion(options.ResourceVersion)
	if err != nil {
		return nil, err
	}

	w := &watcher{
		storage: s, cut: s.db.cutting(), result: make(chan watch.Event, maxPending), options: options, seen: int64(from),
		within: func(k string) bool { return k == key || (options.Recursive && strings.HasPrefix(k, key)) },
	}
	w.ctx, w.cancel = context.WithCancel(ctx)

	initial := options.SendInitialEvents != nil && *options.SendInitialEvents

	// The real server looks at the request's own time only when this is over.
	late := error(nil)
	if initial {
		late = s.fresh(context.WithoutCancel(ctx), from)
	}

	go func() {
		defer close(w.result)
		defer w.cancel()

		var pairs []pair

		switch {
		case late != nil:
			w.fail(late)

			return
		case initial || (options.SendInitialEvents == nil && from == 0):
			pairs, w.seen, _ = s.db.list(key, options.Recursive, 0)
		case from == 0:
			w.seen = s.db.Revision()
		}

		w.run(pairs, initial && options.Predicate.AllowWatchBookmarks)
	}()

	return w, nil
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.cancel() }

func (w *watcher) run(initial []pair, marked bool) {
	for _, p := range initial {
		if !w.tell(change{key: p.key, item: p.item}) {
			return
		}
	}

	if marked && !w.bookmark(true) {
		return
	}

	bookmarks := time.NewTicker(bookmarkEvery)
	defer bookmarks.Stop()

	last := w.lastBookmark()
	defer last.Stop()

	for {
		changes, next, ok := w.storage.db.since(w.seen)
		if !ok {
			w.fail(apierrors.NewResourceExpired(watchExpired))

			return
		}

		for _, c := range changes {
			if w.within(c.key) && !w.tell(c) {
				return
			}

			w.seen = c.revision
		}

		if len(changes) > 0 {
			continue
		}

		select {
		case <-next:
		case <-bookmarks.C:
			if !w.bookmark(false) {
				return
			}
		case <-last.C:
			if !w.bookmark(false) {
				return
			}
		case <-w.ctx.Done():
			return
		case <-w.cut:
			return
		}
	}
}

// lastBookmark fires shortly before the watch's time is over.
func (w *watcher) lastBookmark() *time.Timer {
	deadline, ok := w.ctx.Deadline()
	if !ok || time.Until(deadline) <= bookmarkBefore {
		timer := time.NewTimer(time.Hour)
		timer.Stop()

		return timer
	}

	return time.NewTimer(time.Until(deadline) - bookmarkBefore)
}

// tell sends a change, if the selectors let it through. It returns false when the watch is over.
func (w *watcher) tell(c change) bool {
	matches, err := w.matches(c.item)
	if err != nil {
		return w.fail(err)
	}

	matched, err := w.matches(c.before)
	if err != nil {
		return w.fail(err)
	}

	switch {
	case matches && matched:
		return w.sendItem(watch.Modified, c.item)
	case matches:
		return w.sendItem(watch.Added, c.item)
	case matched:
		// An object that goes, or that the selectors do not match any more, is told of as it was last.
		return w.sendItem(watch.Deleted, c.last)
	default:
		return true
	}
}

func (w *watcher) matches(i item) (bool, error) {
	if i.data == nil || w.options.Predicate.Empty() {
		return i.data != nil, nil
	}

	object, err := w.storage.read(i)
	if err != nil {
		return false, err
	}

	matched, err := w.options.Predicate.Matches(object.object)

	return err == nil && matched, nil
}

func (w *watcher) sendItem(t watch.EventType, i item) bool {
	object, err := w.storage.read(i)
	if err != nil {
		return w.fail(err)
	}

	return w.send(watch.Event{Type: t, Object: object})
}

// bookmark tells how far the watch is, to a reader that asked for bookmarks.
func (w *watcher) bookmark(initialEnd bool) bool {
	if !w.options.Predicate.AllowWatchBookmarks {
		return true
	}

	object := w.storage.newObject()
	if err := w.storage.versioner.UpdateObject(object, uint64(w.seen)); err != nil {
		return w.fail(err)
	}

	if initialEnd {
		if err := storage.AnnotateInitialEventsEndBookmark(object); err != nil {
			return w.fail(err)
		}
	}

	return w.send(watch.Event{Type: watch.Bookmark, Object: object})
}

// fail tells of the error that ends a watch. It returns false.
func (w *watcher) fail(err error) bool {
	answer, ok := err.(apierrors.APIStatus) //nolint:errorlint // it is made here
	if !ok {
		answer = apierrors.NewInternalError(err)
	}

	status := answer.Status()

	select {
	case w.result <- watch.Event{Type: watch.Error, Object: &status}:
	default:
		w.send(watch.Event{Type: watch.Error, Object: &status})
	}

	return false
}

func (w *watcher) send(e watch.Event) bool {
	select {
	case w.result <- e:
		return true
	case <-w.ctx.Done():
		return false
	case <-w.cut:
		return false
	}
}
