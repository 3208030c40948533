package provider

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// The pauses between attempts to watch a host grow from first to last.
const (
	firstWatchPause = time.Second
	lastWatchPause  = time.Minute
)

// Watch passes on the events of all hosts. One whose events break off is watched again, and the others are not disturbed by that.
func (d *Driver) Watch(ctx context.Context, providerID string, changed func(driver.Ref)) error {
	var wg sync.WaitGroup

	for _, h := range d.hosts {
		wg.Go(func() { d.watch(ctx, h, providerID, changed) })
	}

	wg.Wait()

	return ctx.Err()
}

func (d *Driver) watch(ctx context.Context, h *host, providerID string, changed func(driver.Ref)) {
	for tries := 0; ; tries++ {
		started := time.Now()
		err := h.Watch(ctx, providerID, changed)

		if ctx.Err() != nil {
			return
		}

		d.log.Warn("events of a host were cut off", zap.String("host", h.Name()), zap.Error(err))

		if time.Since(started) > lastWatchPause {
			tries = 0
		}

		pause := min(firstWatchPause<<min(tries, 10), lastWatchPause)

		select {
		case <-time.After(pause/2 + rand.N(pause/2)):
		case <-ctx.Done():
			return
		}
	}
}
