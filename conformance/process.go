package conformance

import (
	"context"
	"path"
	"sync"
	"time"

	"github.com/siderolabs/omni/client/pkg/client"
	"google.golang.org/grpc"
)

const (
	// restartTime passes between the death of a process and the start of the next one.
	restartTime = 5 * time.Second
	// endTime is how long a process may take to end.
	endTime = 10 * time.Second
)

// process is one life of the provider.
type process struct {
	cancel context.CancelFunc
	client *client.Client
	dying  sync.Once

	done chan struct{}
	// err is what Run returned, and early says that nobody had ended it. Both are set before done is closed.
	err   error
	early bool
}

// start runs the provider.
func (e *env) start() {
	p := e.launch(e.provider, e.key)

	e.mu.Lock()
	e.proc = p
	e.mu.Unlock()
}

// launch starts a process of a provider.
func (e *env) launch(id, key string) *process {
	c, err := e.omni.Client(key, client.WithGrpcOpts(grpc.WithChainUnaryInterceptor(e.recordWrites())))
	if err != nil {
		panic(err)
	}

	ctx, cancel := context.WithCancel(e.ctx)
	p := &process{cancel: cancel, client: c, done: make(chan struct{})}

	e.note("provider %s starts", id)

	e.tasks.Go(func() {
		defer close(p.done)

		p.err = e.subject.Run(ctx, Process{ProviderID: id, Key: key, Client: c, State: c.Omni().State(), Logger: e.logger})

		if p.early = ctx.Err() == nil; p.early {
			e.note("provider %s ends by itself: %v", id, p.err)
		}

		p.kill()
	})

	return p
}

// recordWrites returns what puts the calls of one process that write to Omni into the books, where a crash can befall them.
func (e *env) recordWrites() grpc.UnaryClientInterceptor {
	session := e.writes.Session()

	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		name := path.Base(method)
		if name == "Get" {
			return invoke(ctx, method, req, reply, conn, opts...)
		}

		return session.Call(name, "", func() error { return invoke(ctx, method, req, reply, conn, opts...) })
	}
}

// kill ends the process as a crash does: all its connections are cut at once.
func (p *process) kill() {
	p.dying.Do(func() {
		p.cancel()
		_ = p.client.Close()
	})
}

// crash kills the provider now, and starts it again a little later.
func (e *env) crash() {
	p := e.process()
	p.kill()
	e.ledger.Disconnect()
	e.writes.Disconnect()
	e.note("the provider is dead")

	e.tasks.Go(func() {
		<-p.done

		if sleep(e.ctx, restartTime) == nil {
			e.start()
		}
	})
}

// stop ends the provider in order, which it has to do promptly and without an error.
func (e *env) stop() {
	p := e.process()
	p.cancel()

	select {
	case <-p.done:
	case <-time.After(endTime):
		e.fail("the provider ends within "+endTime.String()+" when its context does", "it still runs")
	}

	if p.err != nil {
		e.fail("the provider ends without an error when its context does", "%v", p.err)
	}

	e.note("provider %s has ended", e.provider)
}

// restart ends the provider in order and starts it again.
func (e *env) restart() {
	e.stop()
	time.Sleep(restartTime)
	e.start()
}

func (e *env) process() *process {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.proc
}

// ended reports whether the provider ended though nobody wanted it to.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return p.early
	default:
		return false
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
