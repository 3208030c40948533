package memory

import (
	"context"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Client is one process's connection to the cloud. Calls may come from several goroutines. They return an *Error when the cloud
// says no, and other errors when the connection fails. What they return belongs to the caller.
type Client struct {
	// Before, if not nil, is asked before each call; its error is the call's. It is set before the first call.
	Before func(ctx context.Context) error

	cloud   *Cloud
	session *ledger.Session
	// remote is where the cloud is if it is not in this process; then cloud and session are nil.
	remote *remote
}

// Ping says whether the cloud can be reached.
func (c *Client) Ping(ctx context.Context) error {
	_, err := call(ctx, c, OpPing, "", nil, func() (struct{}, error) { return struct{}{}, nil })

	return err
}

func (c *Client) before(ctx context.Context) error {
	if err := ctx.Err(); err != nil || c.Before == nil {
		return err
	}

	return c.Before(ctx)
}

// call makes one call: its record, its faults, and effect with the lock held. A cloud in another process is asked with args.
func call[T any](ctx context.Context, c *Client, op Op, object string, args any, effect func() (T, error)) (T, error) {
	var got, none T

	if err := c.before(ctx); err != nil {
		return none, err
	}

	if c.remote != nil {
		err := c.remote.ask(ctx, op, args, &got)

		return got, err
	}

	err := c.session.CallContext(ctx, string(op), object, func() error {
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
		return none, worded(err, args)
	}

	return got, nil
}

func (c *Cloud) latency(ctx context.Context) error {
	c.mu.Lock()
	d := c.jitterLocked(c.opts.Latency)
	c.mu.Unlock()

	return sleep(ctx, d)
}
