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

		q := newQueue(func(string) lane { return promptLane }, func(context.Context, string) result {
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

func TestTurnEndsWhenItsKeyMovesToAnotherLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		at := provisionLane

		var took []lane

		q := newQueue(func(string) lane { return at }, nil)
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
