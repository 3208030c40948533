package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// host is the address that clients inside the process use. Nothing listens there.
const host = "https://kubernetes.sim"

// Transport returns the server as a client's transport inside this process: no socket, bodies that stream, and an end with the
// request's context. Give each process a session of the ledger, whose calls are its requests; with nil the requests are in no books and
// suffer no faults.
func (s *Server) Transport(session *ledger.Session) http.RoundTripper {
	return &transport{server: s, session: session}
}

type transport struct {
	server  *Server
	session *ledger.Session
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithCancel(r.Context())

	inner := r.Clone(ctx)
	inner.RequestURI = r.URL.RequestURI()
	inner.Proto, inner.ProtoMajor, inner.ProtoMinor = "HTTP/2.0", 2, 0
	inner.RemoteAddr = "192.0.2.1:1234"

	if inner.Body == nil {
		inner.Body = http.NoBody
	}

	x := &exchange{header: http.Header{}, begun: make(chan struct{}), cancel: cancel}
	x.reader, x.writer = io.Pipe()

	go x.serve(t.server, t.session, inner)

	select {
	case <-x.begun:
	case <-r.Context().Done():
		cancel()
		_ = x.reader.CloseWithError(r.Context().Err()) // Nobody reads what the server still writes.

		return nil, r.Context().Err()
	}

	if x.failed != nil {
		cancel()

		return nil, x.failed
	}

	// The end of the request's context ends its answer too, whoever reads it then.
	stop := context.AfterFunc(r.Context(), func() { _ = x.reader.CloseWithError(r.Context().Err()) })

	return &http.Response{
		Status: fmt.Sprintf("%d %s", x.status, http.StatusText(x.status)), StatusCode: x.status, Proto: "HTTP/2.0", ProtoMajor: 2,
		Header: x.sent, Body: &body{exchange: x, stop: stop}, ContentLength: -1, Request: r,
	}, nil
}

// exchange is one request with its answer.
type exchange struct {
	header http.Header
	once   sync.Once
	// begun is closed when status and sent, or failed, are there.
	begun  chan struct{}
	status int
	sent   http.Header
	failed error

	reader *io.PipeReader
	writer *io.PipeWriter
	cancel context.CancelFunc
}

func (x *exchange) serve(s *Server, session *ledger.Session, r *http.Request) {
	defer func() {
		switch p := recover().(type) {
		case nil:
			x.WriteHeader(http.StatusOK)
			_ = x.writer.Close() // It never fails.
		case *abort:
			x.fail(p.err)
		default:
			panic(p)
		}

		_ = r.Body.Close() // A RoundTripper closes the body; its errors are the client's.
	}()

	s.serve(session, x, r)
}

// fail ends the exchange as a broken connection does.
func (x *exchange) fail(err error) {
	x.once.Do(func() {
		x.failed = err
		close(x.begun)
	})

	_ = x.writer.CloseWithError(err) // It never fails.
}

// Header implements http.ResponseWriter.
func (x *exchange) Header() http.Header { return x.header }

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(status int) {
	x.once.Do(func() {
		x.status, x.sent = status, x.header.Clone()
		close(x.begun)
	})
}

// Write implements http.ResponseWriter.
func (x *exchange) Write(p []byte) (int, error) {
	x.WriteHeader(http.StatusOK)

	return x.writer.Write(p)
}

// Flush implements http.Flusher: nothing is held back.
func (x *exchange) Flush() { x.WriteHeader(http.StatusOK) }

// body is the client's side of an answer.
type body struct {
	*exchange
	stop func() bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) { return b.reader.Read(p) }

// Close implements io.Closer.
func (b *body) Close() error {
	b.stop()
	b.cancel()

	return b.reader.Close()
}
