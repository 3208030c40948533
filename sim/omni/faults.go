package omni

import (
	"context"
	"path"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors that faults often need. As Update's answer, ErrConflict is what a client takes for a lost race.
var (
	ErrConflict    = status.Error(codes.FailedPrecondition, "resource update conflict: injected fault")
	ErrUnavailable = status.Error(codes.Unavailable, "injected fault")
)

// Fault is something that goes wrong with calls. Which calls: all that match every field which is set, from number Nth on,
// Times times. What happens: they wait for Delay and then for Hold, and then are answered with Err, before the call has
// had any effect or, with LoseReply, after it.
type Fault struct {
	// Method is the call's name without its service, as "Update", "CreateSchematicFromRaw" or "Provision"; empty means any.
	Method string
	// Writes leaves out the calls that only read: Get, List and Watch.
	Writes bool
	// Type and ID are those of the resource that a call of the state service is about; empty means any.
	Type, ID string
	// Provider is the id of the infra provider that calls; empty means anybody.
	Provider string
	// Nth is the number of the first matching call that the fault befalls, counted from 1; 0 means 1.
	Nth int
	// Times is how many calls it befalls; 0 means 1, less than 0 all.
	Times int

	// Delay is how long a call waits first.
	Delay time.Duration
	// Hold, if not nil, keeps a call waiting until it is closed or the caller gives up.
	Hold <-chan struct{}
	// Drop leaves a call without an answer until the caller gives up.
	Drop bool
	// Err is the answer, which may be a gRPC status; nil means the call goes on.
	Err error
	// LoseReply lets the call have its effect and then answers with Err, or ErrUnavailable if that is nil.
	LoseReply bool
}

func (f *Fault) matches(method string, t target, who caller) bool {
	name := path.Base(method)

	return (f.Method == "" || f.Method == name) &&
		(!f.Writes || name != "Get" && name != "List" && name != "Watch") &&
		(f.Type == "" || f.Type == t.typ) &&
		(f.ID == "" || f.ID == t.id) &&
		(f.Provider == "" || f.Provider == who.provider)
}

// strike makes the call suffer all but a lost reply.
func (f *Fault) strike(ctx context.Context) error {
	if f.Delay > 0 {
		timer := time.NewTimer(f.Delay)
		defer timer.Stop()

		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}

	if f.Hold != nil {
		select {
		case <-f.Hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}

	if f.Drop {
		<-ctx.Done()

		return ctx.Err()
	}

	if f.LoseReply {
		return nil
	}

	return f.Err
}

func (f *Fault) lost() error {
	if f.Err != nil {
		return f.Err
	}

	return ErrUnavailable
}

// Inject makes calls go wrong from now on until remove is called. Of several faults that match a call, the first that was
// injected befalls it; the others still count it.
func (o *Omni) Inject(f Fault) (remove func()) {
	armed := &armedFault{Fault: f}

	o.faults.mu.Lock()
	defer o.faults.mu.Unlock()

	o.faults.armed = append(o.faults.armed, armed)

	return func() {
		o.faults.mu.Lock()
		defer o.faults.mu.Unlock()

		o.faults.armed = slices.DeleteFunc(o.faults.armed, func(a *armedFault) bool { return a == armed })
	}
}

type armedFault struct {
	Fault
	seen, struck int
}

type faults struct {
	mu    sync.Mutex
	armed []*armedFault
}

// take counts a call and returns the fault that befalls it, or nil.
func (f *faults) take(method string, t target, who caller) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()

	var hit *Fault

	for _, a := range f.armed {
		if !a.matches(method, t, who) {
			continue
		}

		a.seen++

		due := a.seen >= max(a.Nth, 1) && (a.Times < 0 || a.struck < max(a.Times, 1))
		if due && hit == nil {
			a.struck++
			hit = &a.Fault
		}
	}

	return hit
}

func (f *faults) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	fault := f.take(info.FullMethod, targetOf(req), callerOf(ctx))
	if fault == nil {
		return handler(ctx, req)
	}

	if err := fault.strike(ctx); err != nil {
		return nil, err
	}

	resp, err := handler(ctx, req)
	if fault.LoseReply && err == nil {
		return nil, fault.lost()
	}

	return resp, err
}

func (f *faults) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	faulty := &faultyStream{ServerStream: stream, faults: f, method: info.FullMethod}

	err := handler(srv, faulty)
	if fault := faulty.fault.Load(); fault != nil && fault.LoseReply && err == nil {
		return fault.lost()
	}

	return err
}

// faultyStream lets a fault befall a stream when its first message, which says what it is about, has come.
type faultyStream struct {
	grpc.ServerStream
	faults *faults
	method string
	begun  bool
	fault  atomic.Pointer[Fault]
}

// RecvMsg receives the next message.
func (s *faultyStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}

	if s.begun {
		return nil
	}

	s.begun = true

	fault := s.faults.take(s.method, targetOf(m), callerOf(s.Context()))
	if fault == nil {
		return nil
	}

	s.fault.Store(fault)

	return fault.strike(s.Context())
}
