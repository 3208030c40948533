// Package flight lets callers that want the same thing at the same time share one piece of work, such as the import of a boot image: for
// drivers whose cloud would do it once for each.
package flight

import (
	"context"
	"sync"
)

// Group is a set of such works, by their keys. A work goes on as long as one of its callers waits for it, whoever came first. The zero value
// is ready for use; its methods may be called from several goroutines.
type Group[T any] struct {
	mu      sync.Mutex
	flying  map[string]*flight[T]
	running sync.WaitGroup
}

type flight[T any] struct {
	cancel context.CancelFunc
	done   chan struct{}
	value  T
	err    error

	// The rest is guarded by Group.mu. said is the last text of the work.
	waiting map[*func(string)]struct{}
	said    string
}

// Do returns what work returns, or ctx's error when that ends before. Work runs in a goroutine of its own, with the values of the first
// caller's ctx, which is cancelled once nobody waits any more. The text that work passes on reaches progress of all who wait.
func (f *Group[T]) Do(ctx context.Context, key string, progress func(string), work func(context.Context, func(string)) (T, error)) (T, error) {
	f.mu.Lock()

	if f.flying == nil {
		f.flying = map[string]*flight[T]{}
	}

	one := f.flying[key]
	if one == nil {
		workCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		one = &flight[T]{cancel: cancel, done: make(chan struct{}), waiting: map[*func(string)]struct{}{}}
		f.flying[key] = one

		f.running.Go(func() {
			defer close(one.done)
			defer cancel()

			one.value, one.err = work(workCtx, func(text string) { f.tell(one, text) })

			f.mu.Lock()
			defer f.mu.Unlock()

			if f.flying[key] == one {
				delete(f.flying, key)
			}
		})
	}

	me := &progress
	one.waiting[me] = struct{}{}
	said := one.said
	f.mu.Unlock()

	if said != "" {
		progress(said)
	}

	select {
	case <-one.done:
		return one.value, one.err
	case <-ctx.Done():
		f.mu.Lock()
		defer f.mu.Unlock()

		if delete(one.waiting, me); len(one.waiting) == 0 && f.flying[key] == one {
			delete(f.flying, key)
			one.cancel()
		}

		var zero T

		return zero, ctx.Err()
	}
}

// Wait returns when no work is under way. No new one may begin meanwhile.
func (f *Group[T]) Wait() { f.running.Wait() }

func (f *Group[T]) tell(one *flight[T], text string) {
	f.mu.Lock()
	one.said = text

	waiting := make([]func(string), 0, len(one.waiting))
	for progress := range one.waiting {
		waiting = append(waiting, *progress)
	}

	f.mu.Unlock()

	for _, progress := range waiting {
		progress(text)
	}
}
