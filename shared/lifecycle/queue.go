package lifecycle

import (
	"context"
	"slices"
	"sync"
	"time"
)

// lane is what a turn is about: what waits in one never delays the other.
type lane int

const (
	// provisionLane is for turns that may take hours, with an image to import.
	provisionLane lane = iota
	// promptLane is for everything else: teardown, power, what was observed.
	promptLane
	lanes
)

// pool is a group of workers: those for one lane's turns at one place. What waits in one never delays another, whatever its turns wait
// for; a place that hangs has its own workers wait, and no others.
type pool struct {
	lane lane
	// place is empty for what has no place, or none yet.
	place string
}

// result says when an item wants its next turn.
type result struct {
	// after is the pause until the next turn; zero means that only an event brings it.
	after time.Duration
	// hold keeps events from shortening the pause: the last turn failed, or the cloud asked to be left alone.
	hold bool
}

// queue gives each key its turns, one at a time, in the pool that fits it then. Turns asked for while one runs become one
// more turn.
type queue struct {
	// poolOf says which pool a key belongs to now.
	poolOf func(key string) pool
	// unwanted says that what a turn in the provision lane makes is not wanted any more.
	unwanted func(key string) bool
	// grace is how long such a turn may go on, so that a call to the cloud under way is not given up before it is known what it
	// has made.
	grace time.Duration
	// work takes a turn. Its ctx ends, after the grace, when what it makes is not wanted any more. No other change of pool ends a turn: news of
	// what it has just written may come before the answer to the write.
	work func(ctx context.Context, key string) result

	mu    sync.Mutex
	items map[string]*item
	ready map[pool][]string
	// busy is how many workers a pool has now; hire gives it one more if it may have that, and is nil before the queue runs.
	busy  map[pool]int
	hire  func(pool)
	ended bool
}

type item struct {
	pool      pool
	queued    bool
	running   bool
	again     bool
	hurried   bool // asked for at once while it was running
	ending    bool // the grace has begun
	cancel    context.CancelFunc
	timer     *time.Timer
	notBefore time.Time
}

func newQueue(poolOf func(string) pool, unwanted func(string) bool, work func(context.Context, string) result) *queue {
	return &queue{poolOf: poolOf, unwanted: unwanted, work: work, items: map[string]*item{}, ready: map[pool][]string{}, busy: map[pool]int{}}
}

// add asks for a turn, not earlier than the key's last result allows.
func (q *queue) add(key string) { q.ask(key, false) }

// hurry asks for a turn now: what the key waited out is void.
func (q *queue) hurry(key string) { q.ask(key, true) }

func (q *queue) ask(key string, now bool) {
	q.mu.Lock()
	defer q.mu.Unlock()

	if q.ended {
		return
	}

	it, ok := q.items[key]
	if !ok {
		it = &item{}
		q.items[key] = it
	}

	if now {
		it.notBefore = time.Time{}
	}

	to := q.poolOf(key)

	switch {
	case it.running:
		it.again = true
		it.hurried = it.hurried || now

		if it.pool.lane == provisionLane && !it.ending && q.unwanted(key) {
			it.ending = true
			time.AfterFunc(q.grace, it.cancel)
		}
	case it.queued && to != it.pool:
		q.ready[it.pool] = slices.DeleteFunc(q.ready[it.pool], func(k string) bool { return k == key })
		q.push(key, it, to)
	case it.queued:
	default:
		q.schedule(key, it, 0)
	}
}

// schedule gives a resting item its next turn after a pause; q.mu is held.
func (q *queue) schedule(key string, it *item, after time.Duration) {
	after = max(after, time.Until(it.notBefore))

	if it.timer != nil {
		it.timer.Stop()
		it.timer = nil
	}

	if after <= 0 {
		q.push(key, it, q.poolOf(key))

		return
	}

	it.timer = time.AfterFunc(after, func() {
		q.mu.Lock()
		defer q.mu.Unlock()

		if it.timer != nil && !q.ended && !it.running && !it.queued {
			it.timer = nil
			q.push(key, it, q.poolOf(key))
		}
	})
}

func (q *queue) push(key string, it *item, to pool) {
	it.queued, it.pool = true, to
	q.ready[to] = append(q.ready[to], key)

	if q.hire != nil {
		q.hire(to)
	}
}

// run works with so many workers in each pool of a lane until ctx ends and the last turn is over.
func (q *queue) run(ctx context.Context, workers [lanes]int) {
	var wg sync.WaitGroup
	defer wg.Wait()

	q.mu.Lock()
	q.hire = func(to pool) {
		if q.ended || q.busy[to] == workers[to.lane] {
			return
		}

		q.busy[to]++

		wg.Go(func() {
			for q.turn(ctx, to) {
			}
		})
	}

	for to, keys := range q.ready {
		for range keys {
			q.hire(to)
		}
	}
	q.mu.Unlock()

	<-ctx.Done()

	q.mu.Lock()
	defer q.mu.Unlock()

	q.ended = true

	for _, it := range q.items {
		if it.timer != nil {
			it.timer.Stop()
		}
	}
}

// turn takes the next key of the pool; it returns false when there is none, and the worker goes.
func (q *queue) turn(ctx context.Context, in pool) bool {
	q.mu.Lock()

	if len(q.ready[in]) == 0 || q.ended {
		if q.busy[in]--; q.busy[in] == 0 {
			delete(q.busy, in)
			delete(q.ready, in)
		}

		q.mu.Unlock()

		return false
	}

	key := q.ready[in][0]
	q.ready[in] = q.ready[in][1:]
	it := q.items[key]

	turn, cancel := context.WithCancel(ctx)
	it.queued, it.running, it.again, it.hurried, it.ending, it.cancel = false, true, false, false, false, cancel
	q.mu.Unlock()

	res := q.work(turn, key)

	cancel()

	q.mu.Lock()
	defer q.mu.Unlock()

	it.running, it.cancel = false, nil

	it.notBefore = time.Time{}
	if res.hold && !it.hurried {
		it.notBefore = time.Now().Add(res.after)
	}

	switch {
	case q.ended:
	case it.again || q.poolOf(key) != in:
		q.schedule(key, it, 0)
	case res.after > 0:
		q.schedule(key, it, res.after)
	default:
		delete(q.items, key)
	}

	return true
}
