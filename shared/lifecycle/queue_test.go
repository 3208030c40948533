package lifecycle

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestWishThatComesDuringAFailingTurnIsNotHeldBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		var turns atomic.Int32

		q := newQueue(func(string) pool { return pool{lane: promptLane} }, func(string) bool { return true }, func(context.Context, string) result {
			turns.Add(1)

			time.Sleep(time.Second)

			return result{after: 5 * time.Minute, hold: true}
		})

		q.add("a")

		done := make(chan struct{})

		go func() {
			defer close(done)
			q.run(ctx, [lanes]int{1, 1})
		}()

		time.Sleep(500 * time.Millisecond)
		q.add("a")
		time.Sleep(time.Minute)
		assert.EqualValues(t, 1, turns.Load(), "an event shortens no pause")

		time.Sleep(4*time.Minute + time.Second)
		assert.EqualValues(t, 2, turns.Load())
		q.hurry("a")
		time.Sleep(10 * time.Second)
		assert.EqualValues(t, 3, turns.Load(), "a changed wish does")

		cancel()
		<-done
	})
}

func TestTurnEndsWhenWhatItMakesIsNotWantedAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)

		var (
			at   atomic.Int32 // provisionLane
			mu   sync.Mutex
			took []lane
		)

		taken := func() []lane {
			mu.Lock()
			defer mu.Unlock()

			return slices.Clone(took)
		}

		now := func(string) lane { return lane(at.Load()) }
		q := newQueue(func(key string) pool { return pool{lane: now(key)} }, func(key string) bool { return now(key) == promptLane }, nil)
		q.grace = time.Minute
		q.work = func(ctx context.Context, key string) result {
			mu.Lock()
			took = append(took, now(key))
			mu.Unlock()

			if now(key) == provisionLane {
				<-ctx.Done()

				return result{after: time.Millisecond}
			}

			return result{}
		}

		done := make(chan struct{})

		go func() {
			defer close(done)
			q.run(ctx, [lanes]int{1, 1})
		}()

		q.add("a")
		synctest.Wait()

		at.Store(int32(promptLane))

		for range 3 {
			q.add("a")
		}

		time.Sleep(q.grace - time.Second)
		assert.Equal(t, []lane{provisionLane}, taken())
		time.Sleep(2 * time.Second)
		assert.Equal(t, []lane{provisionLane, promptLane}, taken())
		q.mu.Lock()
		assert.Empty(t, q.items, "a key at rest costs nothing")
		q.mu.Unlock()

		cancel()
		<-done
	})
}

func TestTurnIsNotEndedByNewsOfItsOwnWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		at := promptLane

		var ended error

		q := newQueue(func(string) pool { return pool{lane: at} }, func(string) bool { return false }, nil)
		q.work = func(ctx context.Context, _ string) result {
			if at == provisionLane {
				return result{}
			}

			// The write moves the key, and its event comes first.
			at = provisionLane
			q.add("a")
			ended = ctx.Err()

			return result{after: time.Minute, hold: true}
		}

		done := make(chan struct{})

		go func() {
			defer close(done)
			q.run(ctx, [lanes]int{1, 1})
		}()

		q.add("a")
		synctest.Wait()
		assert.NoError(t, ended)
		assert.Positive(t, time.Until(q.items["a"].notBefore), "and the pause holds")

		cancel()
		<-done
	})
}
