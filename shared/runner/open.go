package runner

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// opened is a driver whose cloud has answered.
type opened struct {
	driver driver.Driver
	close  func() error
	err    error
}

// open makes a driver and asks its cloud one question. A driver that ignores the end of its time is left to itself, and closed
// when it comes back: it must hold neither the program's end up nor the driver that works.
func (p Program[C]) open(ctx context.Context, config C, log *zap.Logger) (driver.Driver, func() error, error) {
	const grace = 5 * time.Second

	asked, cancel := context.WithTimeout(ctx, startupTimeout)
	defer cancel()

	answer := make(chan opened)
	gone := make(chan struct{})

	go func() {
		o := p.tryOpen(ctx, asked, config, log)

		select {
		case answer <- o:
		case <-gone:
			if o.err == nil {
				o.close() //nolint:errcheck // nobody waits for it
			}
		}
	}()

	late := make(chan struct{})
	stop := context.AfterFunc(asked, func() { time.AfterFunc(grace, func() { close(late) }) })

	defer stop()

	select {
	case o := <-answer:
		return o.driver, o.close, o.err
	case <-late:
		close(gone)

		if ctx.Err() != nil {
			return nil, nil, ctx.Err()
		}

		return nil, nil, fmt.Errorf("making the driver and asking its cloud has not ended after %s", startupTimeout+grace)
	}
}

// tryOpen opens within asked; what it has opened lives with ctx.
func (p Program[C]) tryOpen(ctx, asked context.Context, config C, log *zap.Logger) (o opened) {
	o.close = func() error { return nil }

	defer func() {
		if r := recover(); r != nil {
			o.err = fmt.Errorf("internal error of the provider, please report it: panic: %v", r)
		}

		if o.err != nil {
			o.close() //nolint:errcheck // it was not used
		}
	}()

	d, closeDriver, err := p.New(ctx, config, log.Named(p.Name))
	if err != nil {
		o.err = err

		return o
	}

	if closeDriver != nil {
		o.close = closeDriver
	}

	o.driver, o.err = d, d.Check(asked)

	// One that works at some of its places does; its health names the others.
	if driver.UnseenOf(o.err) != nil {
		log.Warn("not all places of the cloud can be reached", zap.Error(o.err))

		o.err = nil
	}

	return o
}
