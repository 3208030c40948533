package memory

import (
	"context"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Client is one process's connection to the cloud. Calls may come from several goroutines. They return an *Error when the cloud
// says no, and other errors when the connection fails. What they return belongs to the caller.
type Client struct {
	cloud   *Cloud
	session *ledger.Session
}

// Ping says whether the cloud can be reached.
func (c *Client) Ping(ctx context.Context) error {
	_, err := call(ctx, c, OpPing, "", func() (struct{}, error) { return struct{}{}, nil })

	return err
}

// call makes one call: its record, its faults, and effect with the lock held.
func call[T any](ctx context.Context, c *Client, op Op, object string, effect func() (T, error)) (T, error) {
	var got, none T

	if err := ctx.Err(); err != nil {
		return none, err
	}

	err := c.session.Call(string(op), object, func() error {
		fault := c.cloud.fault(op)

		if fault.Hang {
			<-ctx.Done()

			return ctx.Err()
		}

		if err := c.cloud.latency(ctx); err != nil {
			return err
		}

		if fault.Err != nil {
			return fault.Err
		}

		c.cloud.mu.Lock()
		defer c.cloud.mu.Unlock()

		if c.cloud.closed {
			return Unavailable()
		}

		var err error

		got, err = effect()
		if fault.Lost {
			return ErrConnection
		}

		return err
	})
	if err != nil {
		return none, err
	}

	return got, nil
}

func (c *Cloud) latency(ctx context.Context) error {
	c.mu.Lock()
	d := c.jitterLocked(c.opts.Latency)
	c.mu.Unlock()

	return sleep(ctx, d)
}
