package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// mostAnswer bounds what is read of an answer that asks for a pause.
const mostAnswer = 64 << 10

// transport is what all requests go through. It keeps the quiet times that the library has been asked for, and takes from client-go
// what that would do about answers by itself: sleep through Retry-After in the middle of a call, up to ten times, where nobody can see it.
type transport struct {
	next http.RoundTripper
	// troubled is set while the last answer was none, or that of a server in trouble.
	troubled atomic.Bool
	// quiet is the end of the pause that the server has asked for, in nanoseconds of Unix time. Not every answer reaches the library: one
	// to a watch, to a sweep, or to a look at mere details does not.
	quiet atomic.Int64
}

// RoundTrip makes the request.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	return try(req.Context(), func() (*http.Response, error) { return t.roundTrip(req) })
}

func (t *transport) roundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()

	if err := driver.AwaitTurn(ctx); err != nil {
		return nil, err
	}

	if err := t.awaitQuiet(ctx); err != nil {
		return nil, err
	}

	resp, err := t.next.RoundTrip(req)
	if err != nil {
		// Who gave the request up says nothing about the server; a call's own deadline does.
		if !errors.Is(ctx.Err(), context.Canceled) {
			t.troubled.Store(true)
		}

		return nil, err
	}

	t.troubled.Store(resp.StatusCode >= http.StatusInternalServerError || resp.StatusCode == http.StatusUnauthorized)

	after := retryAfter(resp)
	if after == 0 && resp.StatusCode != http.StatusTooManyRequests {
		return resp, nil
	}

	defer resp.Body.Close() //nolint:errcheck // it was read

	body, _ := io.ReadAll(io.LimitReader(resp.Body, mostAnswer)) //nolint:errcheck // what there is of it is shown

	t.keepQuiet(time.Now().Add(after).UnixNano())

	return nil, &pauseError{code: resp.StatusCode, after: after, text: message(resp, body)}
}

// keepQuiet lets no call be made before the time, in nanoseconds.
func (t *transport) keepQuiet(until int64) {
	for {
		was := t.quiet.Load()
		if until <= was || t.quiet.CompareAndSwap(was, until) {
			return
		}
	}
}

// awaitQuiet waits for the end of the server's pause. A call whose time ends before that is not made.
func (t *transport) awaitQuiet(ctx context.Context) error {
	for {
		left := time.Until(time.Unix(0, t.quiet.Load()))
		if left <= 0 {
			return nil
		}

		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < left {
			return &pauseError{code: http.StatusTooManyRequests, after: left, text: "the Kubernetes API has asked for a pause"}
		}

		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(left):
		}
	}
}

// CloseIdleConnections passes on what http.Client asks for.
func (t *transport) CloseIdleConnections() {
	if c, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// WrappedRoundTripper lets client-go find the network's own transport.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// pauseError is an answer that asks for a pause, or should.
type pauseError struct {
	code  int
	after time.Duration
	text  string
}

func (e *pauseError) Error() string { return e.text }

// mostPause bounds a pause that a server, or whoever is between, asks for.
const mostPause = 10 * time.Minute

// retryAfter returns the pause that an answer of a server in trouble asks for, zero for none.
func retryAfter(resp *http.Response) time.Duration {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode < http.StatusInternalServerError {
		return 0
	}

	text := strings.TrimSpace(resp.Header.Get("Retry-After"))

	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return min(max(time.Duration(seconds)*time.Second, time.Second), mostPause)
	}

	// The other form of RFC 9110, section 10.2.3, which proxies send.
	if at, err := http.ParseTime(text); err == nil {
		return min(max(time.Until(at), time.Second), mostPause)
	}

	return 0
}

// message is what the answer says, which is a Status from the API server and anything from a proxy.
func message(resp *http.Response, body []byte) string {
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		return status.Message
	}

	return resp.Status
}

type onceKey struct{}

// attempt is the one request of a call.
type attempt struct {
	mu sync.Mutex
	// err is why it failed.
	err error
}

// once makes a ctx in which a single request is made. client-go repeats reads whose connection broke, up to ten times at once; the
// library's pauses are for that.
func once(ctx context.Context) context.Context { return context.WithValue(ctx, onceKey{}, &attempt{}) }

// try makes the request of ctx unless that has failed already: then its error is given again.
func try(ctx context.Context, f func() (*http.Response, error)) (*http.Response, error) {
	a, ok := ctx.Value(onceKey{}).(*attempt)
	if !ok {
		return f()
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	if a.err != nil {
		return nil, a.err
	}

	resp, err := f()
	a.err = err

	return resp, err
}

// failed returns why the request of ctx failed, or nil.
func failed(ctx context.Context) error {
	a, ok := ctx.Value(onceKey{}).(*attempt)
	if !ok {
		return nil
	}

	a.mu.Lock()
	defer a.mu.Unlock()

	return a.err
}
