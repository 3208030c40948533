package lifecycle

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is a pause that doubles with each failure, up to a limit. Up to two fifths of jitter come on top, so that the pause is
// never shorter than it says.
type backoff struct {
	first, most time.Duration
}

// after returns the pause after so many failures, counted from zero.
func (b backoff) after(failures int) time.Duration {
	pause := b.most
	if failures < 20 {
		pause = min(b.most, b.first<<failures)
	}

	return pause + jitter(2*pause/5)
}

// jitter returns a random time below d.
func jitter(d time.Duration) time.Duration { return time.Duration(rand.Float64() * float64(d)) }

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
