package kube

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Queue lets one worker look after keys, each once however often it was added. Keys that fail come again after a growing pause.
type Queue struct {
	// Sync looks after a key. It is never called twice at a time.
	Sync func(ctx context.Context, key string) error
	// Failed is told of errors other than conflicts, which a controller just retries; nil means nobody is.
	Failed func(key string, err error)

	mu      sync.Mutex
	order   []string
	waiting map[string]bool
	timers  map[string]*timer
	fails   map[string]int
	wake    chan struct{}
	once    sync.Once
	ended   bool
}

type timer struct {
	*time.Timer
	at time.Time
}

func (q *Queue) init() {
	q.once.Do(func() {
		q.waiting, q.timers, q.fails = map[string]bool{}, map[string]*timer{}, map[string]int{}
		q.wake = make(chan struct{}, 1)
	})
}

// Add lets the key be looked after soon.
func (q *Queue) Add(key string) {
	q.init()
	q.mu.Lock()
	defer q.mu.Unlock()

	q.addLocked(key)
}

func (q *Queue) addLocked(key string) {
	if q.ended || q.waiting[key] {
		return
	}

	q.waiting[key] = true
	q.order = append(q.order, key)

	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// After lets the key be looked after once d has passed. Of several such calls the earliest counts.
func (q *Queue) After(key string, d time.Duration) {
	q.init()
	q.mu.Lock()
	defer q.mu.Unlock()

	if q.ended {
		return
	}

	at := time.Now().Add(d)

	if t := q.timers[key]; t != nil {
		if !at.Before(t.at) {
			return
		}

		t.Stop()
	}

	t := &timer{at: at}
	t.Timer = time.AfterFunc(d, func() {
		q.mu.Lock()
		defer q.mu.Unlock()

		if q.timers[key] == t {
			delete(q.timers, key)
		}

		q.addLocked(key)
	})
	q.timers[key] = t
}

// The pause before a key that failed comes again doubles up to a limit.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Minute
)

// Run works until ctx ends. No timer is left then.
func (q *Queue) Run(ctx context.Context) {
	q.init()

	defer q.end()

	for {
		key, ok := q.next()
		if !ok {
			select {
			case <-q.wake:
				continue
			case <-ctx.Done():
				return
			}
		}

		if ctx.Err() != nil {
			return
		}

		err := q.Sync(ctx, key)
		if ctx.Err() != nil {
			return
		}

		q.done(key, err)
	}
}

func (q *Queue) next() (string, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()

	if len(q.order) == 0 {
		return "", false
	}

	key := q.order[0]
	q.order = q.order[1:]
	delete(q.waiting, key)

	return key, true
}

func (q *Queue) done(key string, err error) {
	q.mu.Lock()

	if err == nil {
		delete(q.fails, key)
		q.mu.Unlock()

		return
	}

	pause := min(firstRetry<<min(q.fails[key], 16), lastRetry)
	q.fails[key]++
	q.mu.Unlock()

	if q.Failed != nil && !apierrors.IsConflict(err) {
		q.Failed(key, err)
	}

	q.After(key, pause)
}

func (q *Queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()

	q.ended = true

	for _, t := range q.timers {
		t.Stop()
	}

	q.timers = map[string]*timer{}
}
