package lifecycle

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
)

// calls keeps account of what is wrong with the driver's calls: those that do not end, and those that panicked.
type calls struct {
	mu sync.Mutex
	// endless holds the calls that were given up and have not ended.
	endless map[subject]*underWay
	// bugs holds the last panic of each call, until the call is made again or its request has no more need of it.
	bugs map[subject]error
	// wake gives a request, whose call has ended after all, its turn; nil when nobody takes turns.
	wake func(request string)
}

// subject names a call. Calls for one request wait for each other, whatever they do; those for the provider as a whole do not.
type subject struct{ request, what string }

type underWay struct {
	request, what string
	began         time.Time
	givenUp, over bool
}

func (u *underWay) subject() subject {
	if u.request != "" {
		return subject{request: u.request}
	}

	return subject{what: u.what}
}

type turnKey struct{}

// withTurn notes whose turn the calls under ctx belong to.
func withTurn(ctx context.Context, request string) context.Context {
	return context.WithValue(ctx, turnKey{}, request)
}

// turnOf returns the request whose turn it is, empty outside of turns.
func turnOf(ctx context.Context) string {
	request, _ := ctx.Value(turnKey{}).(string)

	return request
}

// refusal says why a call must not be made now, or nil.
func (c *calls) refusal(request, what string) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	if u, ok := c.endless[(&underWay{request: request, what: what}).subject()]; ok {
		return u.err()
	}

	return nil
}

func (u *underWay) err() error {
	of := ""
	if u.request != "" {
		of = fmt.Sprintf(" for %q", u.request)
	}

	return fmt.Errorf("%s%s is under way for %s and does not end; the provider waits for it", u.what, of, time.Since(u.began).Round(time.Second))
}

func (c *calls) begin(request, what string) *underWay {
	c.mu.Lock()
	defer c.mu.Unlock()

	delete(c.bugs, subject{request, what})

	return &underWay{request: request, what: what, began: time.Now()}
}

// giveUp stops waiting for a call, unless it has just ended.
func (c *calls) giveUp(u *underWay) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if u.over {
		return
	}

	if c.endless == nil {
		c.endless = map[subject]*underWay{}
	}

	u.givenUp = true
	c.endless[u.subject()] = u
}

// wakes sets who is told of a request that need not wait for its call any more.
func (c *calls) wakes(wake func(request string)) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.wake = wake
}

// end notes that a call has ended, and wakes the request that has waited for it.
func (c *calls) end(u *underWay) {
	c.mu.Lock()

	u.over = true

	if c.endless[u.subject()] == u {
		delete(c.endless, u.subject())
	}

	waits, wake := u.givenUp && u.request != "", c.wake
	c.mu.Unlock()

	if waits && wake != nil {
		wake(u.request)
	}
}

func (c *calls) panicked(u *underWay, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.bugs == nil {
		c.bugs = map[subject]error{}
	}

	c.bugs[subject{u.request, u.what}] = err
}

// forget drops the panics of a request that is well or gone.
func (c *calls) forget(request string) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for b := range c.bugs {
		if b.request == request {
			delete(c.bugs, b)
		}
	}
}

func (c *calls) allEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()

	return len(c.endless) == 0
}

// warn tells of the calls that are left behind.
func (c *calls) warn(log *zap.Logger) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for _, u := range c.endless {
		log.Warn("shutdown waits no longer for a call of the driver", zap.String("call", u.what), zap.String("request", u.request),
			zap.Duration("under_way", time.Since(u.began)))
	}
}

// err returns the worst of what is wrong with the driver's calls, or nil: the oldest call that does not end, else a panic.
func (c *calls) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()

	var oldest *underWay

	for _, u := range c.endless {
		if oldest == nil || u.began.Before(oldest.began) {
			oldest = u
		}
	}

	if oldest != nil {
		return fmt.Errorf("calls of the driver that do not end: %d; %w", len(c.endless), oldest.err())
	}

	for _, err := range c.bugs {
		return err
	}

	return nil
}
