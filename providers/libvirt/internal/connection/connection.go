// Package connection keeps one connection to a libvirt daemon: it opens it when it is first needed, notices when it breaks,
// opens it again, and puts a deadline on every call, which libvirt itself does not. The libvirt driver imports it.
package connection

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// The defaults of Config.
const (
	DefaultURI         = "qemu:///system"
	DefaultCallTimeout = time.Minute
	DefaultMaxCalls    = 64
)

// ErrUnreachable is in the chain of an error that says that libvirt did not answer, whatever it was asked.
var ErrUnreachable = errors.New("libvirt is out of reach")

var errClosed = errors.New("the connection to libvirt has been closed")

// unreachable marks an error as ErrUnreachable without a change of its text.
type unreachable struct{ error }

func (unreachable) Is(target error) bool { return target == ErrUnreachable } //nolint:errorlint // It is the comparison.
func (u unreachable) Unwrap() error      { return u.error }

// hungAfter is how long a call has to be without an answer before its connection is given up with it.
const hungAfter = 10 * time.Second

// The pauses between attempts to connect grow from first to last; closeTimeout bounds Close.
const (
	firstPause   = 200 * time.Millisecond
	lastPause    = 10 * time.Second
	closeTimeout = 5 * time.Second
)

// maxAttempts bounds the attempts to connect under way, those that were given up included.
const maxAttempts = 16

// Config says where libvirt is and how patient to be. Its zero value is the local system daemon.
type Config struct {
	// URI is anything that libvirt connects to; DefaultURI when empty.
	URI string
	// CallTimeout is the longest that one call may take; DefaultCallTimeout when zero.
	CallTimeout time.Duration
	// MaxCalls bounds the calls under way, those that nobody waits for any more included; DefaultMaxCalls when zero.
	MaxCalls int
	// Open, when not nil, opens connections instead of Real: another hypervisor behind the seam.
	Open func(uri string) (Connect, error)
	// Intercept, when not nil, stands around every call, which next makes; what it returns is the call's result. Tests use it
	// to lose calls and replies.
	Intercept func(what string, next func() error) error
}

// Connection is a connection that opens itself. Its methods may be called from several goroutines.
type Connection struct {
	config Config
	slots  chan struct{}
	// heard is when the last call was answered, in nanoseconds since the epoch.
	heard atomic.Int64

	mu         sync.Mutex
	current    *link
	opening    *attempt
	attempts   int
	failures   int
	retryAt    time.Time
	lastErr    error
	closed     bool
	running    map[*string]struct{}
	subscriber map[*func(Event)]struct{}
}

// attempt is one try to connect, which all callers wait for.
type attempt struct {
	done chan struct{}
	err  error
}

// New returns a connection that opens with the first call.
func New(config Config) *Connection {
	if config.URI == "" {
		config.URI = DefaultURI
	}

	if config.CallTimeout == 0 {
		config.CallTimeout = DefaultCallTimeout
	}

	if config.MaxCalls == 0 {
		config.MaxCalls = DefaultMaxCalls
	}

	if config.Open == nil {
		config.Open = Real
	}

	return &Connection{
		config:     config,
		slots:      make(chan struct{}, config.MaxCalls),
		running:    map[*string]struct{}{},
		subscriber: map[*func(Event)]struct{}{},
	}
}

// URI returns the URI without a password, fit for texts.
func (c *Connection) URI() string {
	u, err := url.Parse(c.config.URI)
	if err != nil {
		return "the configured URI"
	}

	return u.Redacted()
}

// Call makes one call to libvirt, described by what ("define domain \"x\"") in errors. It returns when f has, when ctx ends, or
// after the call timeout, whichever is first.
//
// libvirt cannot cancel a call, so that f may go on after Call has returned: it must neither write to variables of its caller
// nor return libvirt's handles, but free those itself. To let a lost call be repeated safely it changes at most one thing.
func Call[T any](ctx context.Context, c *Connection, what string, f func(Connect) (T, error)) (T, error) {
	return callWithin(ctx, c, c.config.CallTimeout, hungAfter, what, f)
}

// CallWithin is Call for work that takes libvirt long: it has the limit for its time. That it is given up with ctx says nothing
// about the daemon.
func CallWithin[T any](ctx context.Context, c *Connection, limit time.Duration, what string, f func(Connect) (T, error)) (T, error) {
	return callWithin(ctx, c, limit, limit-limit/10, what, f)
}

// callWithin gives up the connection with a call that was given up after it had been without an answer for as long as hung says.
func callWithin[T any](
	ctx context.Context, c *Connection, limit, hung time.Duration, what string, f func(Connect) (T, error),
) (T, error) {
	var zero T

	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()

	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return zero, unreachable{fmt.Errorf("%s: %d calls to libvirt at %q are without an answer: %w", what, c.config.MaxCalls, c.URI(), ctx.Err())}
	}

	l, release, err := c.acquire(ctx)
	if err != nil {
		<-c.slots

		return zero, unreachable{fmt.Errorf("%s: %w", what, err)}
	}

	began := time.Now()

	if l.turn != nil {
		select {
		case l.turn <- struct{}{}:
		case <-ctx.Done():
			release()
			<-c.slots

			if time.Since(began) >= hungAfter {
				c.drop(l)
			}

			return zero, unreachable{fmt.Errorf("%s: another call to libvirt at %q is without an answer: %w", what, c.URI(), ctx.Err())}
		}
	}

	type result struct {
		value T
		err   error
	}

	done := make(chan result, 1)
	finished := c.begin(what)

	go func() {
		defer func() { <-c.slots }()
		defer release()
		defer func() {
			if l.turn != nil {
				<-l.turn
			}
		}()

		var r result

		call := func() error {
			r.value, r.err = f(l.conn)

			return r.err
		}

		if c.config.Intercept != nil {
			r.err = c.config.Intercept(what, call)
		} else {
			_ = call() // The error is in r.
		}

		if l.alive() {
			c.heard.Store(time.Now().UnixNano())
		}

		finished()
		done <- r
	}()

	select {
	case r := <-done:
		if r.err != nil {
			err := classify(what, r.err)

			if !l.alive() {
				c.drop(l)

				err = unreachable{err}
			}

			return zero, err
		}

		return r.value, nil
	case <-ctx.Done():
		// A daemon that does not answer in time may never answer on this connection.
		if time.Since(began) >= hung {
			c.drop(l)
		}

		return zero, unreachable{fmt.Errorf("%s: no answer from libvirt at %q: %w", what, c.URI(), ctx.Err())}
	}
}

// Do is Call for calls without a result.
func Do(ctx context.Context, c *Connection, what string, f func(Connect) error) error {
	_, err := Call(ctx, c, what, func(conn Connect) (struct{}, error) { return struct{}{}, f(conn) })

	return err
}

// Unanswered returns the description of a call that is under way and whose description contains fragment.
func (c *Connection) Unanswered(fragment string) (what string, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()

	for what := range c.running {
		if strings.Contains(*what, fragment) {
			return *what, true
		}
	}

	return "", false
}

// Heard returns when libvirt answered last, however late: a host that answers is slow, not dead.
func (c *Connection) Heard() time.Time { return time.Unix(0, c.heard.Load()) }

// Close ends the connection for good and waits a few seconds at most.
func (c *Connection) Close() {
	c.mu.Lock()
	c.closed = true
	l := c.current
	c.current = nil
	c.mu.Unlock()

	if l == nil {
		return
	}

	done := make(chan struct{})

	go func() {
		defer close(done)
		l.close()
	}()

	select {
	case <-done:
	case <-time.After(closeTimeout):
	}
}

func (c *Connection) begin(what string) (finished func()) {
	c.mu.Lock()
	defer c.mu.Unlock()

	key := &what
	c.running[key] = struct{}{}

	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()

		delete(c.running, key)
	}
}

// acquire returns an open link, held against being closed until release is called.
func (c *Connection) acquire(ctx context.Context) (l *link, release func(), err error) {
	for {
		c.mu.Lock()

		if c.closed {
			c.mu.Unlock()

			return nil, nil, errClosed
		}

		if l = c.current; l != nil {
			if l.alive() {
				release, err = l.hold()
				c.mu.Unlock()

				return l, release, err
			}

			c.dropLocked(l)
		}

		a := c.opening
		if a == nil {
			if wait := time.Until(c.retryAt); wait > 0 {
				err = c.lastErr
				c.mu.Unlock()

				return nil, nil, err
			}

			a = &attempt{done: make(chan struct{})}
			c.opening = a
			c.attempts++

			go c.connect(a)
		}

		c.mu.Unlock()

		select {
		case <-a.done:
			if a.err != nil {
				return nil, nil, a.err
			}
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("connect to libvirt at %q: no answer: %w", c.URI(), ctx.Err())
		}
	}
}

// connect makes one attempt. It cannot be cancelled; one that takes longer than a call may is given up, so that it keeps nobody from
// the next. What comes of it then is still welcome.
func (c *Connection) connect(a *attempt) {
	late := time.AfterFunc(c.config.CallTimeout, func() {
		c.mu.Lock()
		defer c.mu.Unlock()

		if c.opening == a && c.attempts < maxAttempts {
			c.failLocked(a, fmt.Errorf("connect to libvirt at %q: no answer in %s", c.URI(), c.config.CallTimeout))
		}
	})

	l, err := openLink(c.config.Open, c.config.URI, c.report)

	late.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()

	c.attempts--

	switch {
	case err != nil:
		if c.opening == a {
			c.failLocked(a, classifyOpen(c.config.URI, c.URI(), err))
		}
	case c.closed || c.current != nil:
		if c.opening == a {
			var err error
			if c.closed {
				err = errClosed
			}

			c.endLocked(a, err)
		}

		go l.close()
	default:
		c.current, c.failures, c.retryAt = l, 0, time.Time{}

		if c.opening == a {
			c.endLocked(a, nil)
		}
	}
}

// failLocked ends an attempt that has come to nothing, and puts the next one off.
func (c *Connection) failLocked(a *attempt, err error) {
	pause := min(firstPause<<min(c.failures, 10), lastPause)
	c.retryAt = time.Now().Add(pause/2 + rand.N(pause/2))
	c.failures++
	c.lastErr = err
	c.endLocked(a, err)
}

func (c *Connection) endLocked(a *attempt, err error) {
	c.opening = nil
	a.err = err
	close(a.done)
}

func (c *Connection) drop(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.dropLocked(l)
}

// dropLocked gives up l, so that the next call opens another link, and tells the subscribers that events may be missing.
func (c *Connection) dropLocked(l *link) {
	if c.current != l {
		return
	}

	c.current = nil

	go func() {
		// Closing may take as long as the daemon does.
		c.report(Event{Kind: Lost})
		l.close()
	}()
}
