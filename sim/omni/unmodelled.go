package omni

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// unmodelled remembers what was asked for and is not modelled, so that no such call passes unseen.
type unmodelled struct {
	mu    sync.Mutex
	names []string
}

func (u *unmodelled) add(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if !slices.Contains(u.names, name) {
		u.names = append(u.names, name)
	}
}

func (u *unmodelled) list() []string {
	u.mu.Lock()
	defer u.mu.Unlock()

	return slices.Clone(u.names)
}

// refuse remembers name and returns the error for it.
func (u *unmodelled) refuse(name string) error {
	u.add(name)

	return status.Errorf(codes.Unimplemented, "the simulated Omni does not model %s", name)
}

func (u *unmodelled) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	resp, err := handler(ctx, req)
	if status.Code(err) == codes.Unimplemented {
		return nil, u.refuse(info.FullMethod)
	}

	return resp, err
}

func (u *unmodelled) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	err := handler(srv, stream)
	if status.Code(err) == codes.Unimplemented {
		return u.refuse(info.FullMethod)
	}

	return err
}

// unknown answers calls of services that are not registered.
func (u *unmodelled) unknown(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(stream)

	return u.refuse(method)
}

// recovered turns a panic of a handler into an error, as one bad call must not end the server.
func recovered(method string, err *error) {
	if p := recover(); p != nil {
		*err = status.Errorf(codes.Internal, "panic in %s: %s", method, fmt.Sprint(p))
	}
}

func recoverUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer recovered(info.FullMethod, &err)

	return handler(ctx, req)
}

func recoverStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer recovered(info.FullMethod, &err)

	return handler(srv, stream)
}
