package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/books"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// What a client sees of a connection that is lost, and of a server that is not there.
var (
	errReset   = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
)

// abort ends a request without an answer, as a panic that the transport catches.
type abort struct{ err error }

// Handler returns the server as an http.Handler, for a listener outside of this package. The session is as in Transport.
func (s *Server) Handler(session *ledger.Session) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			switch p := recover().(type) {
			case nil:
			case *abort:
				panic(http.ErrAbortHandler)
			default:
				panic(p)
			}
		}()

		s.serve(session, w, r)
	})
}

// serve panics with an *abort where the connection is to be lost.
func (s *Server) serve(session *ledger.Session, w http.ResponseWriter, r *http.Request) {
	if !s.begin() {
		panic(&abort{errRefused})
	}
	defer s.running.Done()

	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()

	if session == nil {
		s.api.ServeHTTP(w, r.WithContext(ctx))

		return
	}

	s.booked(session, w, r.WithContext(ctx))
}

// booked serves a request as a call of the ledger.
func (s *Server) booked(session *ledger.Session, w http.ResponseWriter, r *http.Request) {
	call, err := books.CallOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)

		return
	}

	sent, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		panic(&abort{errReset})
	}

	call.Scan(s.ledger, sent)

	answer := &recorded{header: http.Header{}}
	stream := call.Watches()

	err = session.CallContext(r.Context(), call.Op, call.Object, func() error {
		if s.opts.Latency != nil {
			if err := sleep(r.Context(), s.opts.Latency(call.Op)); err != nil {
				return err
			}
		}

		if stream {
			return nil
		}

		// What has begun is done, even if the client has given up.
		inner := r.Clone(context.WithoutCancel(r.Context()))
		inner.Body = io.NopCloser(bytes.NewReader(sent))
		s.api.ServeHTTP(answer, inner)

		return answer.outcome()
	})

	_, isAnswer := errors.AsType[*outcome](err)
	fault, isFault := errors.AsType[*ledger.FaultError](err)

	switch {
	case isFault:
		answerFault(w, call.AnswerTo(fault, sent))
	case errors.Is(err, ledger.ErrDisconnected):
		panic(&abort{errReset})
	case err != nil && !isAnswer:
		panic(&abort{err})
	case stream:
		inner := r.Clone(r.Context())
		inner.Body = io.NopCloser(bytes.NewReader(sent))
		s.api.ServeHTTP(w, inner)
	default:
		answer.copyTo(w)
	}
}

// outcome is an answer that says no, as the books have it.
type outcome struct {
	code   int
	reason string
}

// Error returns code and reason ("409 AlreadyExists").
func (o *outcome) Error() string { return fmt.Sprintf("%d %s", o.code, o.reason) }

// recorded is an answer that is held back until the call is over.
type recorded struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *recorded) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *recorded) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write implements http.ResponseWriter.
func (a *recorded) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)

	return a.body.Write(p)
}

func (a *recorded) outcome() error {
	if a.status < http.StatusBadRequest {
		return nil
	}

	var status metav1.Status

	_ = json.Unmarshal(a.body.Bytes(), &status) // What is no Status has no reason.

	return &outcome{code: a.status, reason: string(status.Reason)}
}

func (a *recorded) copyTo(w http.ResponseWriter) {
	for k, v := range a.header {
		w.Header()[k] = v
	}

	a.WriteHeader(http.StatusOK)
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes()) // Who does not listen any more does not need to know.
}

// sleep waits for d, or returns ctx's error.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}

	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
