package lifecycle

import (
	"context"
	"slices"
	"sync"
	"time"
)

// lane is a group of workers of its own: what waits in one never delays the other.
type lane int

const (
	// provisionLane is for turns that may take hours, with an image to import.
	provisionLane lane = iota
	// promptLane is for everything else: teardown, power, what was observed.
	promptLane
	lanes
)

// result says when an item wants its next turn.
type result struct {
	// after is the pause until the next turn; zero means that only an event brings it.
	after time.Duration
	// hold keeps events from shortening the pause: the last turn failed, or the cloud asked to be left alone.
	hold bool
}

// queue gives each key its turns, one at a time, in the lane that fits it then. Turns asked for while one runs become one
// more turn.
type queue struct {
	// laneOf says which lane a key belongs to now.
	laneOf func(key string) lane
	// unwanted says that what a turn in the provision lane makes is not wanted any more.
	unwanted func(key string) bool
	// work takes a turn. Its ctx ends when what it makes is not wanted any more. No other change of lane ends a turn: news of
	// what it has just written may come before the answer to the write.
	work func(ctx context.Context, key string) result

	mu    sync.Mutex
	wake  *sync.Cond
	items map[string]*item
	ready [lanes][]string
	ended bool
}

type item struct {
	lane      lane
	queued    bool
	running   bool
	again     bool
	hurried   bool // asked for at once while it was running
	cancel    context.CancelFunc
	timer     *time.Timer
	notBefore time.Time
}

func newQueue(laneOf func(string) lane, unwanted func(string) bool, work func(context.Context, string) result) *queue {
	q := &queue{laneOf: laneOf, unwanted: unwanted, work: work, items: map[string]*item{}}
	q.wake = sync.NewCond(&q.mu)

	return q
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

	to := q.laneOf(key)

	switch {
	case it.running:
		it.again = true
		it.hurried = it.hurried || now

		if it.lane == provisionLane && q.unwanted(key) {
			it.cancel()
		}
	case it.queued && to != it.lane:
		q.ready[it.lane] = slices.DeleteFunc(q.ready[it.lane], func(k string) bool { return k == key })
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
		q.push(key, it, q.laneOf(key))

		return
	}

	it.timer = time.AfterFunc(after, func() {
		q.mu.Lock()
		defer q.mu.Unlock()

		if it.timer != nil && !q.ended && !it.running && !it.queued {
			it.timer = nil
			q.push(key, it, q.laneOf(key))
		}
	})
}

func (q *queue) push(key string, it *item, to lane) {
	it.queued, it.lane = true, to
	q.ready[to] = append(q.ready[to], key)
	q.wake.Broadcast()
}

// run works with so many workers in each lane until ctx ends and the last turn is over.
func (q *queue) run(ctx context.Context, workers [lanes]int) {
	var wg sync.WaitGroup

	stop := context.AfterFunc(ctx, func() {
		q.mu.Lock()
		defer q.mu.Unlock()

		q.ended = true

		for _, it := range q.items {
			if it.timer != nil {
				it.timer.Stop()
			}
		}

		q.wake.Broadcast()
	})
	defer stop()

	for l, n := range workers {
		for range n {
			wg.Go(func() {
				for q.turn(ctx, lane(l)) {
				}
			})
		}
	}

	wg.Wait()
}

// turn takes the next key of the lane; it returns false at the end.
func (q *queue) turn(ctx context.Context, l lane) bool {
	q.mu.Lock()

	for len(q.ready[l]) == 0 && !q.ended {
		q.wake.Wait()
	}

	if q.ended {
		q.mu.Unlock()

		return false
	}

	key := q.ready[l][0]
	q.ready[l] = q.ready[l][1:]
	it := q.items[key]

	turn, cancel := context.WithCancel(ctx)
	it.queued, it.running, it.again, it.hurried, it.cancel = false, true, false, false, cancel
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
	case it.again || q.laneOf(key) != l:
		q.schedule(key, it, 0)
	case res.after > 0:
		q.schedule(key, it, res.after)
	default:
		delete(q.items, key)
	}

	return true
}
