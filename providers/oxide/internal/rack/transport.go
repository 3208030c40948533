package rack

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// callHeader carries the id that the client gives a call, for whoever looks at the traffic; serverHeader is the rack's own.
const (
	callHeader   = "X-Client-Request-Id"
	serverHeader = "X-Request-Id"
)

// mostAnswer bounds an answer of the rack. A page has at most 100 objects.
const mostAnswer = 16 << 20

// transport makes requests one by one: with a limit on their number and time, and none in a quiet time.
type transport struct {
	base    http.RoundTripper
	slots   chan struct{}
	timeout time.Duration
	log     *zap.Logger

	mu sync.Mutex
	// quiet is until when the rack wants to be left alone.
	quiet time.Time
}

func newTransport(base http.RoundTripper, inFlight int, timeout time.Duration, log *zap.Logger) *transport {
	return &transport{base: base, slots: make(chan struct{}, inFlight), timeout: timeout, log: log}
}

func baseTransport(caFile string, insecure bool) (http.RoundTripper, error) {
	base, ok := http.DefaultTransport.(*http.Transport)
	if !ok {
		return nil, fmt.Errorf("http.DefaultTransport is a %T", http.DefaultTransport)
	}

	base = base.Clone()
	base.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: insecure} //nolint:gosec // The operator has asked for it.

	if caFile == "" {
		return base, nil
	}

	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("read the rack's certificate authority: %w", err)
	}

	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}

	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read the rack's certificate authority: %s has no certificate in PEM form", caFile)
	}

	base.TLSClientConfig.RootCAs = pool

	return base, nil
}

// RoundTrip implements http.RoundTripper. The whole answer has arrived when it returns.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()

	response, err := t.roundTrip(ctx, r)
	if err != nil {
		note(ctx, err)

		return nil, err
	}

	if response.StatusCode == http.StatusTooManyRequests || response.StatusCode == http.StatusServiceUnavailable && response.Header.Get(retryAfter) != "" {
		t.keepQuiet(pauseOf(response.Header))
	}

	return response, nil
}

func (t *transport) roundTrip(ctx context.Context, r *http.Request) (*http.Response, error) {
	select {
	case t.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}

	defer func() { <-t.slots }()

	if err := t.awaitTurn(ctx); err != nil {
		return nil, err
	}

	late := fmt.Errorf("the rack has not answered for %s", t.timeout)

	limited, cancel := context.WithTimeoutCause(ctx, t.timeout, late)
	defer cancel()

	id := uuid.NewString()
	began := time.Now()

	request := r.Clone(limited)
	request.Header.Set(callHeader, id)

	response, err := t.base.RoundTrip(request)
	if err == nil {
		err = swallow(response, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	}

	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = late
	}

	fields := []zap.Field{
		zap.String("method", r.Method), zap.String("path", r.URL.Path), zap.String("call_id", id), zap.Duration("took", time.Since(began)),
	}

	if err != nil {
		t.log.Debug("call of the rack failed", append(fields, zap.Error(withoutURL(err)))...)

		return nil, withoutURL(err)
	}

	t.log.Debug("call of the rack", append(fields, zap.Int("status", response.StatusCode), zap.String("request_id", response.Header.Get(serverHeader)))...)

	return response, nil
}

// swallow reads an answer to its end. One that repeats the token is made to say something else: its text may be shown to others.
func swallow(response *http.Response, token string) error {
	defer response.Body.Close() //nolint:errcheck // it was read

	body, err := io.ReadAll(io.LimitReader(response.Body, mostAnswer+1))
	if err != nil {
		return fmt.Errorf("read the rack's answer: %w", err)
	}

	if len(body) > mostAnswer {
		return fmt.Errorf("read the rack's answer: it is longer than %d bytes", mostAnswer)
	}

	if token != "" && response.StatusCode >= http.StatusBadRequest {
		body = bytes.ReplaceAll(body, []byte(token), []byte("[token]"))
	}

	response.Body = io.NopCloser(bytes.NewReader(body))

	return nil
}

// withoutURL drops the address from an error of net/http, which those above add themselves.
func withoutURL(err error) error {
	if e, ok := err.(*url.Error); ok { //nolint:errorlint // only the outermost one
		return e.Err
	}

	return err
}

// awaitTurn waits until neither the library nor the rack wants this process to be quiet.
func (t *transport) awaitTurn(ctx context.Context) error {
	for {
		if err := driver.AwaitTurn(ctx); err != nil {
			return err
		}

		t.mu.Lock()
		left := time.Until(t.quiet)
		t.mu.Unlock()

		if left <= 0 {
			return nil
		}

		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < left {
			return driver.Pending(left, "the rack asks to be left alone for %s", left.Round(time.Second))
		}

		select {
		case <-time.After(left):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *transport) keepQuiet(pause time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if until := time.Now().Add(pause); until.After(t.quiet) {
		t.quiet = until
	}
}

type outcomeKey struct{}

// outcome carries the error of a request past Oxide's client, which keeps its text alone.
type outcome struct {
	mu   sync.Mutex
	last error
}

func withOutcome(ctx context.Context, o *outcome) context.Context {
	return context.WithValue(ctx, outcomeKey{}, o)
}

func note(ctx context.Context, err error) {
	if o, ok := ctx.Value(outcomeKey{}).(*outcome); ok {
		o.mu.Lock()
		defer o.mu.Unlock()

		o.last = err
	}
}

func (o *outcome) err() error {
	o.mu.Lock()
	defer o.mu.Unlock()

	return o.last
}
