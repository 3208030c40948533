package lifecycle

import (
	"context"
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

		q := newQueue(func(string) lane { return promptLane }, func(string) bool { return true }, func(context.Context, string) result {
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
		at := provisionLane

		var took []lane

		q := newQueue(func(string) lane { return at }, func(string) bool { return at == promptLane }, nil)
		q.work = func(ctx context.Context, _ string) result {
			took = append(took, at)

			if at == provisionLane {
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

		at = promptLane

		q.add("a")
		synctest.Wait()
		assert.Equal(t, []lane{provisionLane, promptLane}, took)
		assert.Empty(t, q.items, "a key at rest costs nothing")

		cancel()
		<-done
	})
}

func TestTurnIsNotEndedByNewsOfItsOwnWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		at := promptLane

		var ended error

		q := newQueue(func(string) lane { return at }, func(string) bool { return false }, nil)
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
