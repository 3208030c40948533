package lifecycle

import (
	"context"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"go.uber.org/zap"
)

// waitingAdvice is what the operator of a second process reads.
const waitingAdvice = "it takes over when the other process ends; if two were not meant to run, stop one of them or give it a provider id of its own"

// waiting is what a process without the lease knows of it, by its own clock.
type waiting struct {
	lease    *lease
	watching bool

	version resource.Version
	epoch   int64
	since   time.Time
	rests   time.Duration

	told      string
	nextTold  time.Time
	tellPause time.Duration
}

// saw takes a look in, and reports whether the holder has shown that it lives: the version is another one.
func (w *waiting) saw(cur *leaseRecord) (alive bool) {
	if !w.since.IsZero() && cur.Metadata().Version().Equal(w.version) && cur.spec.Epoch == w.epoch {
		return false
	}

	alive = !w.since.IsZero()
	w.version, w.epoch, w.since, w.rests = cur.Metadata().Version(), cur.spec.Epoch, time.Now(), cur.spec.restFor(w.lease.duration)

	return alive
}

// isOver reports whether the lease has lain untouched for long enough.
func (w *waiting) isOver(cur *leaseRecord) bool {
	return !w.since.IsZero() && cur.Metadata().Version().Equal(w.version) && cur.spec.Epoch == w.epoch && time.Since(w.since) >= w.rests
}

// tell says who holds the lease: when that is news, and again at growing intervals.
func (w *waiting) tell(cur *leaseRecord) {
	now := time.Now()

	if w.told != cur.spec.Instance+cur.spec.Holder {
		w.told, w.tellPause = cur.spec.Instance+cur.spec.Holder, time.Minute
	} else if now.Before(w.nextTold) {
		return
	}

	w.nextTold = now.Add(w.tellPause)
	w.tellPause = min(2*w.tellPause, time.Hour)

	w.lease.log.Warn("another process acts for this provider, this one waits", zap.String("holder", cur.spec.Holder),
		zap.Time("since", time.Unix(cur.spec.Since, 0)), zap.Int64("epoch", cur.spec.Epoch),
		zap.Duration("takes_over_when_silent_for", w.rests), zap.String("advice", waitingAdvice))
}

// rest waits until there may be something to do.
func (w *waiting) rest(ctx context.Context, changed <-chan struct{}) error {
	timer := time.NewTimer(min(time.Until(w.since.Add(w.rests)), time.Until(w.nextTold)))
	defer timer.Stop()

	select {
	case <-changed:
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}

	return nil
}
