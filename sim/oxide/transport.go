package oxide

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Transport returns an http.RoundTripper that takes the calls of one process to the rack without a socket, whatever host they
// are for. A session is that of one process; nil makes one. Calls whose connection breaks fail with ledger.ErrDisconnected.
func (r *Rack) Transport(session *ledger.Session) http.RoundTripper {
	if session == nil {
		session = r.ledger.Session()
	}

	return &transport{rack: r, session: session}
}

type transport struct {
	rack    *Rack
	session *ledger.Session
}

// RoundTrip makes one call, in the goroutine of the caller.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close() //nolint:errcheck // As a RoundTripper has to.
	}

	if err := req.Context().Err(); err != nil {
		return nil, err
	}

	out, err := t.rack.answer(t.session, req)
	if err != nil {
		return nil, err
	}

	return &http.Response{
		Status: strconv.Itoa(out.status) + " " + http.StatusText(out.status), StatusCode: out.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: out.header, ContentLength: int64(len(out.body)), Body: io.NopCloser(bytes.NewReader(out.body)), Request: req,
	}, nil
}

// Handler returns the API for clients behind a socket. All of them are one process to the books. A call whose connection breaks
// is aborted.
func (r *Rack) Handler() http.Handler {
	session := r.ledger.Session()

	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		out, err := r.answer(session, req)
		if err != nil {
			panic(http.ErrAbortHandler)
		}

		for key, values := range out.header {
			w.Header()[key] = values
		}

		w.WriteHeader(out.status)
		_, _ = w.Write(out.body) // Who does not listen any more does not need to know.
	})
}

// answer finds the operation of a request and answers it.
func (r *Rack) answer(session *ledger.Session, req *http.Request) (*reply, error) {
	found, path := operations.find(req)
	if found == nil {
		return r.unmodelled(req), nil
	}

	return r.serve(session, req, found, path)
}

// unmodelled answers a call that is not part of the API or not modelled. The books have it as something that is left, so that no
// test that uses it passes by chance.
func (r *Rack) unmodelled(req *http.Request) *reply {
	r.ledger.Made(ledger.Object{Kind: "unmodelled call", ID: fmt.Sprintf("%s %s", req.Method, req.URL.Path)})

	r.mu.Lock()
	defer r.mu.Unlock()

	return written(r.newID(), 0, nil, &refusal{status: http.StatusNotFound, message: "Not Found"})
}
