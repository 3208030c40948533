// Package rack talks to the API of an Oxide rack with Oxide's own client. It adds what that leaves to its users: time limits, calls
// in flight, quiet times, all pages, and errors of a stated kind. Package provider is its only user.
package rack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Config says where the rack is and how to behave towards it. The zero value of each field is its default.
type Config struct {
	Credentials

	// CAFile has certificates in PEM form that are trusted beside the system's.
	CAFile string
	// InsecureSkipVerify takes any certificate.
	InsecureSkipVerify bool
	// Transport makes the requests, by default one with CAFile and InsecureSkipVerify, and with proxies from the environment.
	Transport http.RoundTripper
	// InFlight is how many calls are made at once, 8 by default.
	InFlight int
	// Timeout is how long one call may take, a minute by default. Waiting for its turn is not part of it.
	Timeout time.Duration
	// UserAgent is what the rack's audit log sees.
	UserAgent string
	// Logger gets a line for each call at level debug.
	Logger *zap.Logger
}

// DefaultInFlight and DefaultTimeout are those of Config.
const (
	DefaultInFlight = 8
	DefaultTimeout  = time.Minute
)

// Client talks to a rack. It may be used from several goroutines.
type Client struct {
	config    Config
	transport *transport
	api       atomic.Pointer[oxide.Client]

	mu     sync.Mutex
	reread time.Time
}

// New makes a client. It reads the credentials, and calls nothing yet.
func New(config Config) (*Client, error) {
	config.InFlight = cmp.Or(config.InFlight, DefaultInFlight)
	config.Timeout = cmp.Or(config.Timeout, DefaultTimeout)

	if config.Logger == nil {
		config.Logger = zap.NewNop()
	}

	base := config.Transport
	if base == nil {
		var err error
		if base, err = baseTransport(config.CAFile, config.InsecureSkipVerify); err != nil {
			return nil, err
		}
	}

	c := &Client{config: config, transport: newTransport(base, config.InFlight, config.Timeout, config.Logger)}

	api, err := c.connect()
	if err != nil {
		return nil, err
	}

	c.api.Store(api)

	return c, nil
}

// InFlight is how many calls are made at once.
func (c *Client) InFlight() int { return c.config.InFlight }

// Close gives connections that nobody uses back.
func (c *Client) Close() {
	if idle, ok := c.transport.base.(interface{ CloseIdleConnections() }); ok {
		idle.CloseIdleConnections()
	}
}

func (c *Client) connect() (*oxide.Client, error) {
	options, err := c.config.options()
	if err != nil {
		return nil, err
	}

	options = append(options, oxide.WithHTTPClient(&http.Client{
		Transport: c.transport,
		// The rack does not redirect. The token does not go where somebody else says.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}))

	if c.config.UserAgent != "" {
		options = append(options, oxide.WithUserAgent(c.config.UserAgent))
	}

	api, err := oxide.NewClient(options...)
	if err != nil {
		return nil, c.config.explain(err)
	}

	return api, nil
}

// rereadPause is the least time between two readings of the credentials.
const rereadPause = 5 * time.Second

// refused reads credentials that come from a file again: they may have been replaced.
func (c *Client) refused() {
	if !c.config.fromFile() {
		return
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	if !c.reread.IsZero() && time.Since(c.reread) < rereadPause {
		return
	}

	c.reread = time.Now()

	api, err := c.connect()
	if err != nil {
		c.config.Logger.Warn("the rack refuses the token, and there is no other", zap.Error(err))

		return
	}

	c.api.Store(api)
}

// call makes one call, or those for all pages of a list, and gives its error a kind. what is a verb and a noun for messages.
func call[T any](ctx context.Context, c *Client, what string, f func(context.Context, *oxide.Client) (T, error)) (T, error) {
	var (
		none   T
		broken outcome
	)

	v, err := f(withOutcome(ctx, &broken), c.api.Load())
	if err == nil {
		return v, nil
	}

	// Oxide's client keeps the text of an error that comes from below it, and drops the error.
	if below := broken.err(); below != nil {
		err = below
	}

	if errors.Is(err, oxide.ErrHTTP401) {
		c.refused()
	}

	return none, classify(what, err)
}

// do is call for what returns nothing but an error.
func do(ctx context.Context, c *Client, what string, f func(context.Context, *oxide.Client) error) error {
	_, err := call(ctx, c, what, func(ctx context.Context, api *oxide.Client) (struct{}, error) { return struct{}{}, f(ctx, api) })

	return err
}

// part turns not found into an error without a kind. In the answer to a list or to a create it speaks of something that the object would be a part
// of, as a project, and says nothing of the object.
func part[T any](v T, err error) (T, error) {
	if driver.IsNotFound(err) {
		return v, fmt.Errorf("%w; is there such a thing, and may this token see it?", errors.Unwrap(err))
	}

	return v, err
}

func quoted[T ~string](name T) string { return `"` + strings.ReplaceAll(string(name), `"`, "'") + `"` }
