package omni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cosi-project/runtime/api/v1alpha1"
	cosiserver "github.com/cosi-project/runtime/pkg/state/protobuf/server"
	"github.com/siderolabs/omni/client/api/omni/management"
	"github.com/siderolabs/omni/client/pkg/client"
	"github.com/siderolabs/omni/client/pkg/constants"
	_ "github.com/siderolabs/proto-codec/codec" // the codec of resources in protobuf form
	sideropb "github.com/siderolabs/siderolink/api/siderolink"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/gzip" // Omni's clients compress every call
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"

	"github.com/omni-infra/omni-infra-providers/sim/omni/internal/control"
)

const (
	// keepaliveMinTime is how often a client may ask whether the connection is alive. Omni's clients ask each minute.
	keepaliveMinTime = 10 * time.Second
	// keepaliveTime and keepaliveTimeout are how soon Omni asks and gives up, so that the tunnel of a machine whose power is
	// cut ends.
	keepaliveTime    = 20 * time.Second
	keepaliveTimeout = 10 * time.Second
)

// Run serves in-process clients and machines and runs Omni's controllers until ctx ends, and returns nil then. All that it
// started has ended when it returns. An Omni runs once.
func (o *Omni) Run(ctx context.Context) error {
	if !o.running.TryLock() {
		return errors.New("run the simulated Omni: it ran already")
	}

	eg, ctx := errgroup.WithContext(ctx)

	eg.Go(func() error { return o.accept(ctx, o.api, o.apiPipe) })
	eg.Go(func() error { return o.accept(ctx, o.machine, o.machinePipe) })
	eg.Go(func() error { return o.live(ctx) })

	if err := eg.Wait(); err != nil {
		return fmt.Errorf("run the simulated Omni: %w", err)
	}

	return nil
}

// Serve lets clients in through api and machines through machine until ctx ends, closes both with their connections and
// returns nil then. The listeners carry HTTP/2 without TLS; see TLS for one with. Run has to run as well: connections
// wait until it does, and are refused when it has ended.
func (o *Omni) Serve(ctx context.Context, api, machine net.Listener) error {
	eg, ctx := errgroup.WithContext(ctx)

	eg.Go(func() error { return o.accept(ctx, o.api, api) })
	eg.Go(func() error { return o.accept(ctx, o.machine, machine) })

	if err := eg.Wait(); err != nil {
		return fmt.Errorf("serve the simulated Omni: %w", err)
	}

	return nil
}

func (o *Omni) accept(ctx context.Context, p *port, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()

	if err := p.accept(ctx, l); ctx.Err() == nil {
		return fmt.Errorf("accept on %s: %w", l.Addr(), err)
	}

	return nil
}

// Client returns the real Omni client, connected in process. An empty key makes a client that does not sign. The caller
// closes it. It needs Run to run.
func (o *Omni) Client(key string, opts ...client.Option) (*client.Client, error) {
	c, err := client.New(o.opts.APIURL, append(o.ClientOptions(key), opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to the simulated Omni: %w", err)
	}

	return c, nil
}

// ClientOptions are what an Omni client needs to connect in process to Endpoint, for libraries that make their own client.
func (o *Omni) ClientOptions(key string) []client.Option {
	opts := []client.Option{client.WithGrpcOpts(
		grpc.WithResolvers(literal{}),
		grpc.WithChainUnaryInterceptor(plainUnary), grpc.WithChainStreamInterceptor(plainStream),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return o.apiPipe.DialContext(ctx) }),
	)}

	switch {
	case key == "":
		return opts
	case o.opts.Unsigned:
		return append(opts, client.WithGrpcOpts(unsigned(key)...))
	default:
		return append(opts, client.WithServiceAccount(key))
	}
}

// plainUnary and plainStream take back that the client compresses: between two goroutines that costs more than all the rest.
func plainUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return invoke(ctx, method, req, reply, cc, append(opts, grpc.UseCompressor(encoding.Identity))...)
}

func plainStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return stream(ctx, desc, cc, method, append(opts, grpc.UseCompressor(encoding.Identity))...)
}

// literal is a gRPC resolver that looks no name up, in the place of the one that does.
type literal struct{}

// Scheme returns the scheme of addresses without one.
func (literal) Scheme() string { return "dns" }

// Build tells the connection its own target as the address.
func (literal) Build(target resolver.Target, cc resolver.ClientConn, _ resolver.BuildOptions) (resolver.Resolver, error) {
	return literal{}, cc.UpdateState(resolver.State{Addresses: []resolver.Address{{Addr: target.Endpoint()}}})
}

// ResolveNow does nothing: the address does not change.
func (literal) ResolveNow(resolver.ResolveNowOptions) {}

// Close does nothing.
func (literal) Close() {}

// DialMachineAPI returns a connection to the SideroLink services, in process. The caller closes it. It needs Run to run.
func (o *Omni) DialMachineAPI(opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	opts = append(opts,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(
			func(ctx context.Context, _ string) (net.Conn, error) { return o.machinePipe.DialContext(ctx) },
		),
	)

	conn, err := grpc.NewClient("passthrough:omni-sim", opts...)
	if err != nil {
		return nil, fmt.Errorf("connect to the simulated Omni's machine API: %w", err)
	}

	return conn, nil
}

// restart asks for a restart: the servers stay down for a time.
type restart struct {
	down time.Duration
	done chan error
}

// Restart ends Omni as a crash does and starts it again after the time down: every stream is cut, and what is only in memory
// is lost, as health, connections and machines that wait for their unique token. It returns when Omni is up again.
func (o *Omni) Restart(ctx context.Context, down time.Duration) error {
	r := restart{down: down, done: make(chan error, 1)}

	select {
	case o.restarts <- r:
	case <-ctx.Done():
		return fmt.Errorf("restart the simulated Omni: %w", ctx.Err())
	}

	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the simulated Omni to be up: %w", ctx.Err())
	}
}

// PartitionAPI cuts all clients off from Omni, or lets them reach it again.
func (o *Omni) PartitionAPI(on bool) { o.api.setCut(on) }

// PartitionMachines cuts all machines off from Omni, or lets them reach it again.
func (o *Omni) PartitionMachines(on bool) { o.machine.setCut(on) }

// live runs one life of Omni after the other until ctx ends.
func (o *Omni) live(ctx context.Context) error {
	var begun chan<- error // of the restart that began this life, nil for the first one

	for {
		life, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)

		go func() { ended <- o.life(life, begun) }()

		select {
		case err := <-ended:
			cancel()

			return err
		case r := <-o.restarts:
			cancel()

			if err := errors.Join(<-ended, o.rest(ctx, r.down)); err != nil {
				r.done <- err

				return err
			}

			begun = r.done
		}
	}
}

// rest is the time between two lives.
func (o *Omni) rest(ctx context.Context, down time.Duration) error {
	o.tunnels.forget()

	if err := wipeEphemeral(ctx, o.state); err != nil {
		return err
	}

	timer := time.NewTimer(down)
	defer timer.Stop()

	select {
	case <-timer.C:
		return o.bootstrap(ctx)
	case <-ctx.Done():
		return nil
	}
}

// life serves and runs the controllers until ctx ends.
func (o *Omni) life(ctx context.Context, begun chan<- error) error {
	eg, ctx := errgroup.WithContext(ctx)

	o.api.open()
	o.machine.open()

	eg.Go(func() error { return o.tunnels.run(ctx) })
	eg.Go(func() error { return control.Run(ctx, o.state, o.opts.control(o.tunnels)) })
	eg.Go(func() error { return o.api.serve(ctx, o.apiServer()) })
	eg.Go(func() error { return o.machine.serve(ctx, o.machineServer()) })

	if begun != nil {
		begun <- nil
	}

	return eg.Wait()
}

func (o *Omni) apiServer() *grpc.Server {
	s := o.server(
		[]grpc.UnaryServerInterceptor{o.authUnary, o.faults.unary},
		[]grpc.StreamServerInterceptor{o.authStream, o.faults.stream},
	)

	v1alpha1.RegisterStateServer(s, cosiserver.NewState(o.newGate()))
	management.RegisterManagementServiceServer(s, &managementServer{omni: o})

	return s
}

func (o *Omni) machineServer() *grpc.Server {
	s := o.server(
		[]grpc.UnaryServerInterceptor{o.faults.unary},
		[]grpc.StreamServerInterceptor{o.faults.stream},
	)

	sideropb.RegisterProvisionServiceServer(s, &provisionServer{omni: o})
	sideropb.RegisterWireGuardOverGRPCServiceServer(s, o.tunnels)

	return s
}

func (o *Omni) server(unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor) *grpc.Server {
	return grpc.NewServer(
		grpc.ChainUnaryInterceptor(append([]grpc.UnaryServerInterceptor{recoverUnary, o.unmodelled.unary}, unary...)...),
		grpc.ChainStreamInterceptor(append([]grpc.StreamServerInterceptor{recoverStream, o.unmodelled.stream}, stream...)...),
		grpc.UnknownServiceHandler(o.unmodelled.unknown),
		grpc.MaxRecvMsgSize(constants.GRPCMaxMessageSize),
		grpc.MaxSendMsgSize(constants.GRPCMaxMessageSize),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMinTime, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.WaitForHandlers(true),
	)
}
