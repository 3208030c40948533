package conformance

import (
	"context"
	"path"
	"testing"
	"time"

	"github.com/siderolabs/omni/client/pkg/client"
	"google.golang.org/grpc"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
)

// simulatedPace passes on the fake clock.
var simulatedPace = pace{
	patience: patience, longest: 24 * time.Hour, hang: 24 * time.Hour, poll: 50 * time.Millisecond, slowPoll: time.Second,
	boot: 20 * time.Second, shutdown: 5 * time.Second,
}

// simulator is the bench with a simulated Omni, and the provider in this process; on the fake clock the cloud is simulated, too.
type simulator struct{ env *env }

// newSimulation makes a fresh Omni and a fresh cloud.
func newSimulation(t *testing.T, opts Options, setup omni.Options, at pace) *env {
	t.Helper()

	e := newEnv(opts.Provider)
	e.bench, e.pace = simulator{e}, at
	e.foreign, e.writes = map[string]bool{}, ledger.New()
	e.schematics = &schematics{}

	setup.Factory = e.schematics
	setup.Log = func(text string) { e.note("omni: %s", text) }

	var err error

	if e.omni, err = omni.New(setup); err != nil {
		t.Fatalf("conformance suite: %v", err)
	}

	e.tasks.Go(func() {
		if err := e.omni.Run(e.ctx); err != nil {
			panic(err)
		}
	})

	e.state = e.omni.State()
	e.world = &World{omni: e.omni, metas: map[string]talos.Meta{}, exposed: e.watchSecret, pace: at}
	e.subject = opts.New(t, e.world)
	e.ledger = e.subject.Cloud.Ledger()
	e.open(e.ledger)
	e.cloud, e.data = e.subject.Cloud, e.subject.Data

	for name, value := range e.subject.Secrets {
		e.watchSecret(name, value)
	}

	e.key = e.createProvider(e.provider)
	e.follow()

	return e
}

func (s simulator) createProvider(ctx context.Context, id string) (key string, err error) {
	return s.env.omni.CreateProvider(ctx, id)
}

func (s simulator) launch(id, key string) (*process, error) {
	e := s.env

	var l line

	c, err := e.omni.Client(key, client.WithGrpcOpts(
		grpc.WithChainUnaryInterceptor(l.unary, e.recordWrites()), grpc.WithChainStreamInterceptor(l.stream),
	))
	if err != nil {
		return nil, err
	}

	ctx, cancel := context.WithCancel(e.ctx)
	p := &process{terminate: cancel, isolate: l.cut, done: make(chan struct{})}

	p.cut = func() {
		cancel()
		_ = c.Close()
	}

	e.tasks.Go(func() {
		defer close(p.done)

		p.err = e.subject.Run(ctx, Process{ProviderID: id, Key: key, Client: c, State: c.Omni().State(), Logger: e.logger})

		if p.early = ctx.Err() == nil; p.early {
			e.note("provider %s ends by itself: %v", id, p.err)
		}

		p.kill()
	})

	return p, nil
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
