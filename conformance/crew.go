package conformance

import "sync"

// crew plays attempts, so many at once as it has players. The points of a generated case go before cases that have not begun, so that
// no player is left with a long case when all others are done.
type crew struct {
	points chan func()
}

// mostWaiting is how many points may wait for a player.
const mostWaiting = 1024

func newCrew() *crew { return &crew{points: make(chan func(), mostWaiting)} }

// play plays all cases with that many players and returns when they are over. f plays one.
func (w *crew) play(all []testCase, players int, f func(testCase)) {
	queue := make(chan testCase, len(all))
	for _, c := range all {
		queue <- c
	}

	close(queue)

	var cases, crew sync.WaitGroup

	cases.Add(len(all))

	over := make(chan struct{})

	for range players {
		crew.Go(func() {
			for c, ok := w.next(queue); ok; c, ok = w.next(queue) {
				f(c)
				cases.Done()
			}

			w.help(over)
		})
	}

	cases.Wait()
	close(over)
	crew.Wait()
}

// next plays the points that wait and returns a case then, false if there is none left.
func (w *crew) next(queue <-chan testCase) (testCase, bool) {
	for {
		select {
		case point := <-w.points:
			point()
		default:
			c, ok := <-queue

			return c, ok
		}
	}
}

// each plays n points, whoever has time, and returns when they are over. Whoever calls it is a player, and goes on as one meanwhile.
func (w *crew) each(n int, f func(i int)) {
	var points sync.WaitGroup

	points.Add(n)

	for i := range n {
		point := func() {
			defer points.Done()
			f(i)
		}

		select {
		case w.points <- point:
		default:
			point()
		}
	}

	over := make(chan struct{})

	go func() {
		points.Wait()
		close(over)
	}()

	w.help(over)
}

// help plays points, of whichever case, until over is closed.
func (w *crew) help(over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case point := <-w.points:
			point()
		}
	}
}
