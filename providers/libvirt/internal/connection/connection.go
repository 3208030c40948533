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
	"time"

	"libvirt.org/go/libvirt"
)

// The defaults of Config.
const (
	DefaultURI         = "qemu:///system"
	DefaultCallTimeout = time.Minute
	DefaultMaxCalls    = 64
)

// The pauses between attempts to connect grow from first to last; closeTimeout bounds Close.
const (
	firstPause   = 200 * time.Millisecond
	lastPause    = 10 * time.Second
	closeTimeout = 5 * time.Second
)

// Config says where libvirt is and how patient to be. Its zero value is the local system daemon.
type Config struct {
	// URI is anything that libvirt connects to; DefaultURI when empty.
	URI string
	// CallTimeout is the longest that one call may take; DefaultCallTimeout when zero.
	CallTimeout time.Duration
	// MaxCalls bounds the calls under way, those that nobody waits for any more included; DefaultMaxCalls when zero.
	MaxCalls int
	// Intercept, when not nil, stands around every call, which next makes; what it returns is the call's result. Tests use it
	// to lose calls and replies.
	Intercept func(what string, next func() error) error
}

// Connection is a connection that opens itself. Its methods may be called from several goroutines.
type Connection struct {
	config Config
	open   func(uri string, report func(Event)) (*link, error)
	slots  chan struct{}

	mu         sync.Mutex
	current    *link
	opening    *attempt
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

	return &Connection{
		config:     config,
		open:       openLibvirt,
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
func Call[T any](ctx context.Context, c *Connection, what string, f func(*libvirt.Connect) (T, error)) (T, error) {
	var zero T

	ctx, cancel := context.WithTimeout(ctx, c.config.CallTimeout)
	defer cancel()

	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return zero, fmt.Errorf("%s: %d calls to libvirt at %q are without an answer: %w", what, c.config.MaxCalls, c.URI(), ctx.Err())
	}

	l, release, err := c.acquire(ctx)
	if err != nil {
		<-c.slots

		return zero, fmt.Errorf("%s: %w", what, err)
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

		finished()
		done <- r
	}()

	select {
	case r := <-done:
		if r.err != nil {
			if !l.alive() {
				c.drop(l)
			}

			return zero, classify(what, r.err)
		}

		return r.value, nil
	case <-ctx.Done():
		// A daemon that does not answer in time may never answer on this connection.
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.drop(l)
		}

		return zero, fmt.Errorf("%s: no answer from libvirt at %q: %w", what, c.URI(), ctx.Err())
	}
}

// Do is Call for calls without a result.
func Do(ctx context.Context, c *Connection, what string, f func(*libvirt.Connect) error) error {
	_, err := Call(ctx, c, what, func(conn *libvirt.Connect) (struct{}, error) { return struct{}{}, f(conn) })

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

			return nil, nil, errors.New("the connection to libvirt has been closed")
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

// connect makes one attempt. It cannot be cancelled either, but only one is ever under way.
func (c *Connection) connect(a *attempt) {
	l, err := c.open(c.config.URI, c.report)

	c.mu.Lock()
	defer c.mu.Unlock()

	c.opening = nil

	switch {
	case err != nil:
		a.err = classifyOpen(c.config.URI, c.URI(), err)
		c.lastErr = a.err
		pause := min(firstPause<<min(c.failures, 10), lastPause)
		c.retryAt = time.Now().Add(pause/2 + rand.N(pause/2))
		c.failures++
	case c.closed:
		a.err = errors.New("the connection to libvirt has been closed")

		go l.close()
	default:
		c.current, c.failures = l, 0
	}

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
		l.close()
		c.report(Event{Kind: Lost})
	}()
}
