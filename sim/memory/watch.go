package memory

import (
	"context"
	"errors"
)

// maxEvents is how far a watcher may lag behind.
const maxEvents = 1024

// ErrWatchBroken ends a watch, of a reader that is too slow for one. Events are lost then; list, and watch again.
var ErrWatchBroken = errors.New("watch is broken")

// Event tells of a change to a machine.
type Event struct {
	// VM is the machine after the change, or as it was last when Deleted.
	VM      VM
	Deleted bool
}

type watch struct {
	events chan Event
}

// WatchVMs calls changed for each change from now on, one at a time, and returns when ctx ends or the stream breaks, always
// with an error.
func (c *Client) WatchVMs(ctx context.Context, changed func(Event)) error {
	if c.remote != nil {
		if err := c.before(ctx); err != nil {
			return err
		}

		return c.remote.watch(ctx, changed)
	}

	return c.watch(ctx, func() {}, changed)
}

// watch calls begun once nothing is missed any more.
func (c *Client) watch(ctx context.Context, begun func(), changed func(Event)) error {
	w, err := call(ctx, c, OpWatchVMs, "", nil, func() (*watch, error) {
		w := &watch{events: make(chan Event, maxEvents)}
		c.cloud.watches[w] = struct{}{}

		return w, nil
	})
	if err != nil {
		return err
	}

	defer func() {
		c.cloud.mu.Lock()
		delete(c.cloud.watches, w)
		c.cloud.mu.Unlock()
	}()

	begun()

	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.cloud.ctx.Done():
			return Unavailable()
		case e, ok := <-w.events:
			if !ok {
				return ErrWatchBroken
			}

			changed(e)
		}
	}
}

// BreakWatches ends all watches that are open, as a restart of the cloud's front end would.
func (c *Cloud) BreakWatches() {
	c.mu.Lock()
	defer c.mu.Unlock()

	for w := range c.watches {
		c.breakLocked(w)
	}
}

func (c *Cloud) breakLocked(w *watch) {
	close(w.events)
	delete(c.watches, w)
}

func (c *Cloud) publishLocked(m *machine, deleted bool) {
	for w := range c.watches {
		select {
		case w.events <- Event{VM: m.public(), Deleted: deleted}:
		default:
			c.breakLocked(w)
		}
	}
}
