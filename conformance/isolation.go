package conformance

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// line is the connection of one process to Omni, which can be cut.
type line struct {
	mu    sync.Mutex
	isCut bool
	// next numbers the calls under way, and cancels end them.
	next    int
	cancels map[int]context.CancelFunc
}

var errCut = status.Error(codes.Unavailable, "the process is cut off from Omni")

// cut ends all calls under way and refuses others, or lets calls through again.
func (l *line) cut(on bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.isCut = on

	if on {
		for _, cancel := range l.cancels {
			cancel()
		}
	}
}

// begin returns the context of a call. done is called when the call is over.
func (l *line) begin(ctx context.Context) (_ context.Context, done func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.isCut {
		return nil, nil, errCut
	}

	if l.cancels == nil {
		l.cancels = map[int]context.CancelFunc{}
	}

	ctx, cancel := context.WithCancel(ctx)
	id := l.next
	l.next++
	l.cancels[id] = cancel

	return ctx, func() {
		cancel()

		l.mu.Lock()
		defer l.mu.Unlock()

		delete(l.cancels, id)
	}, nil
}

func (l *line) unary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, done, err := l.begin(ctx)
	if err != nil {
		return err
	}
	defer done()

	return l.says(invoke(ctx, method, req, reply, conn, opts...))
}

// says returns what the process gets to know of a call that ended with err.
func (l *line) says(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	if err != nil && l.isCut {
		return errCut
	}

	return err
}

// stream ends a stream with its context: nobody closes one of Omni's in another way.
func (l *line) stream(
	ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	ctx, done, err := l.begin(ctx)
	if err != nil {
		return nil, err
	}

	stream, err := open(ctx, desc, conn, method, opts...)
	if err != nil {
		done()

		return nil, err
	}

	context.AfterFunc(stream.Context(), done)

	return lineStream{stream, l}, nil
}

type lineStream struct {
	grpc.ClientStream
	line *line
}

// RecvMsg receives the next message.
func (s lineStream) RecvMsg(m any) error { return s.line.says(s.ClientStream.RecvMsg(m)) }
