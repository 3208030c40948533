package lifecycle

import (
	"context"
	"sync"
	"time"
)

// mostHurries bounds how often in a row a watch is opened before its time.
const mostHurries = 3

// comeback lets mirrors tell each other that Omni is in reach again. Whichever tries first is back first; were the others to wait out
// their pauses, turns would act for half a minute on a picture of which one part is new and the rest is old. A nil comeback
// tells nobody.
type comeback struct {
	mu     sync.Mutex
	waiter chan struct{}
}

// next returns a channel that is closed when a mirror comes back after this.
func (c *comeback) next() <-chan struct{} {
	if c == nil {
		return nil
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	if c.waiter == nil {
		c.waiter = make(chan struct{})
	}

	return c.waiter
}

// tell says that a mirror is back.
func (c *comeback) tell() {
	if c == nil {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	if c.waiter != nil {
		close(c.waiter)
		c.waiter = nil
	}
}

// await is sleep that something may end sooner, which it reports.
func await(ctx context.Context, d time.Duration, sooner <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-sooner:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}

	return false
}
