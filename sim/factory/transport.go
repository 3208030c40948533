package factory

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
)

// Transport is an http.RoundTripper that calls a handler, without a socket: clients of a factory then live on the fake clock of
// testing/synctest. Bodies stream, so that slow, stalled and cut images are seen as such.
type Transport struct {
	// Handler answers the requests, whatever host they are for.
	Handler http.Handler
}

// RoundTrip calls the handler in a goroutine that ends when the handler does or when the body is closed.
func (t Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(request.Context())
	body, writer := io.Pipe()
	answer := &answer{header: http.Header{}, body: writer, started: make(chan struct{})}

	served := request.Clone(ctx)
	served.RequestURI = request.URL.RequestURI()

	if served.Body == nil {
		served.Body = http.NoBody
	}

	go func() {
		defer cancel()
		defer served.Body.Close() //nolint:errcheck // As a RoundTripper has to.
		defer func() {
			if reason := recover(); reason != nil && reason != http.ErrAbortHandler { //nolint:errorlint // A panic's value.
				panic(reason)
			} else if reason != nil {
				answer.WriteHeader(http.StatusOK)
				writer.CloseWithError(io.ErrUnexpectedEOF) //nolint:errcheck // Never fails.
			}
		}()

		t.Handler.ServeHTTP(answer, served)
		answer.WriteHeader(http.StatusOK)
		writer.CloseWithError(request.Context().Err()) //nolint:errcheck // Never fails.
	}()

	// Whoever waits for the body, on either side, learns that the request was given up.
	context.AfterFunc(ctx, func() {
		if err := request.Context().Err(); err != nil {
			writer.CloseWithError(err) //nolint:errcheck // Never fails.
		}
	})

	select {
	case <-answer.started:
	case <-request.Context().Done():
		return nil, request.Context().Err()
	}

	length, err := strconv.ParseInt(answer.sent.Get("Content-Length"), 10, 64)
	if err != nil {
		length = -1
	}

	return &http.Response{
		Status:        strconv.Itoa(answer.status) + " " + http.StatusText(answer.status),
		StatusCode:    answer.status,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        answer.sent,
		ContentLength: length,
		Body:          givenUp{body, cancel},
		Request:       request,
	}, nil
}

// answer is the http.ResponseWriter of one request.
type answer struct {
	header http.Header
	body   *io.PipeWriter

	once    sync.Once
	started chan struct{}
	status  int
	sent    http.Header
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	a.once.Do(func() {
		a.status, a.sent = status, a.header.Clone()
		close(a.started)
	})
}

func (a *answer) Write(data []byte) (int, error) {
	a.WriteHeader(http.StatusOK)

	return a.body.Write(data)
}

// Flush sends the header; the body is never held back.
func (a *answer) Flush() { a.WriteHeader(http.StatusOK) }

// givenUp ends the handler when the client closes the body.
type givenUp struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (g givenUp) Close() error {
	g.cancel()

	return g.ReadCloser.Close()
}
