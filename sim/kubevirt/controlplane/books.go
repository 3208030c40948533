package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/books"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Faults are the kinds of faults that Transport has Kubernetes' words for, besides those that the ledger plays by itself.
var Faults = books.Faults()

// Transport puts the calls that one process of a client makes to an API server into a ledger, and lets befall them there what the
// ledger has in mind: lost replies, outages, the client's death, and faults in Kubernetes' own words. The books are those that the
// simulated server keeps (package apiserver): a call is named by its verb, as access rules have it, and the resource with its subresource,
// "create virtualmachines" or "update virtualmachines/restart", an apply is a patch, and a watch is one call, whose answer is that it
// has begun.
//
// What a client sends is looked through for secrets, except what it puts into Secrets.
type Transport struct {
	// Next reaches the API server.
	Next http.RoundTripper
	// Session is that of the process.
	Session *ledger.Session
	// Ledger has the session.
	Ledger *ledger.Ledger
}

// most bounds what is read of one answer: lists of all objects of a test are far from it.
const most = 64 << 20

// RoundTrip makes a call with its record and its faults.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	c, err := books.CallOf(req)
	if err != nil {
		return nil, err
	}

	body, err := t.read(req, c)
	if err != nil {
		return nil, err
	}

	// A slow call may be answered when nobody waits any more.
	var got atomic.Pointer[http.Response]

	err = t.Session.CallContext(req.Context(), c.Op, c.Object, func() error {
		resp, err := t.answer(req, c, body) //nolint:bodyclose // It is the caller's, or closed below.
		got.Store(resp)

		return err
	})

	resp := got.Load()

	if err == nil {
		return resp, nil
	}

	if resp != nil {
		_ = resp.Body.Close() // Nobody reads it.
	}

	if fault, ok := errors.AsType[*ledger.FaultError](err); ok {
		return response(req, c.AnswerTo(fault, body)), nil
	}

	if errors.Is(err, ledger.ErrDisconnected) {
		return nil, broken
	}

	return nil, err
}

func response(req *http.Request, a books.Answer) *http.Response {
	return &http.Response{
		Status: fmt.Sprintf("%d %s", a.Code, http.StatusText(a.Code)), StatusCode: a.Code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.Header, Body: io.NopCloser(bytes.NewReader(a.Body)), ContentLength: int64(len(a.Body)), Request: req,
	}
}

// broken is what the network says of a connection that was there.
var broken = &net.OpError{Op: "read", Net: "tcp", Err: os.NewSyscallError("read", syscall.ECONNRESET)}

// read takes the request's body, so that it can be sent whenever the call has its effect.
func (t *Transport) read(req *http.Request, c books.Call) ([]byte, error) {
	if req.Body == nil {
		return nil, nil
	}

	body, err := io.ReadAll(req.Body)
	if err := errors.Join(err, req.Body.Close()); err != nil {
		return nil, err
	}

	c.Scan(t.Ledger, body)

	return body, err
}

// answer makes the call. Its answer is read to the end, as the reply is not lost once it is here, but for a watch.
func (t *Transport) answer(req *http.Request, c books.Call, body []byte) (*http.Response, error) {
	ctx := req.Context()
	if !c.Watches() {
		// A call that was sent has its effect even if its caller has gone meanwhile.
		ctx = context.WithoutCancel(ctx)
	}

	sent := req.Clone(ctx)
	if body != nil {
		sent.Body = io.NopCloser(bytes.NewReader(body))
	}

	resp, err := t.Next.RoundTrip(sent)
	if err != nil || c.Watches() {
		return resp, err
	}

	text, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return nil, err
	}

	resp.Body = io.NopCloser(bytes.NewReader(text))

	return resp, nil
}

// CloseIdleConnections passes on what http.Client asks for.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.Next.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// WrappedRoundTripper lets client-go find the network's own transport.
func (t *Transport) WrappedRoundTripper() http.RoundTripper { return t.Next }
