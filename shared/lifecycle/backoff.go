package lifecycle

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff is a pause that doubles with each failure, up to a limit, with a fifth of jitter either way.
type backoff struct {
	first, most time.Duration
}

// after returns the pause after so many failures, counted from zero.
func (b backoff) after(failures int) time.Duration {
	pause := b.most
	if failures < 20 {
		pause = min(b.most, b.first<<failures)
	}

	return pause + time.Duration((rand.Float64()*0.4-0.2)*float64(pause))
}

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
