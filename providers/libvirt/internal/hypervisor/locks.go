package hypervisor

import (
	"context"
	"fmt"
	"sync"
)

// locks is a set of locks by key. The zero value is ready for use.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	turn    chan struct{}
	waiting int
}

// acquire waits for the key's lock until ctx ends.
func (l *locks) acquire(ctx context.Context, key string) (release func(), err error) {
	l.mu.Lock()

	if l.held == nil {
		l.held = map[string]*lock{}
	}

	one := l.held[key]
	if one == nil {
		one = &lock{turn: make(chan struct{}, 1)}
		l.held[key] = one
	}

	one.waiting++
	l.mu.Unlock()

	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()

		if one.waiting--; one.waiting == 0 {
			delete(l.held, key)
		}
	}

	select {
	case one.turn <- struct{}{}:
		return func() {
			<-one.turn
			leave()
		}, nil
	case <-ctx.Done():
		leave()

		return nil, fmt.Errorf("wait for other work on %s: %w", key, ctx.Err())
	}
}
