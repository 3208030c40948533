// Package omnitest is as much of Omni as the tests of a simulated machine need: it answers the SideroLink calls and shows what
// machines say. It knows one join token and gives every machine the same address. sim/omni is the whole.
package omnitest

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"

	pb "github.com/siderolabs/siderolink/api/siderolink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// Token is the join token, and Address what every machine gets.
const (
	Token   = "t0ken"
	Address = "fdae:41e4:649b:9303::2"
)

// Omni answers the SideroLink calls of machines and notes them.
type Omni struct {
	pb.UnimplementedProvisionServiceServer
	pb.UnimplementedWireGuardOverGRPCServiceServer

	mu       sync.Mutex
	server   *grpc.Server
	listener *bufconn.Listener
	requests []*pb.ProvisionRequest
	refuse   int
	turn     chan struct{}

	// Reports gets what machines report, and Commands what one of them is told next.
	Reports  chan talosapi.Report
	Commands chan talosapi.Message
	// Gone gets the reason of each end of a tunnel; nil means that the machine closed it in order.
	Gone chan error
}

// New starts an Omni that is reached with Dial, without a socket.
func New() *Omni {
	o := &Omni{
		turn:     make(chan struct{}, 1),
		Reports:  make(chan talosapi.Report, 100),
		Commands: make(chan talosapi.Message, 10),
		Gone:     make(chan error, 100),
	}
	o.Start()

	return o
}

// Start starts Omni again after Stop.
func (o *Omni) Start() {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.server, o.listener = grpc.NewServer(), bufconn.Listen(1<<16)
	pb.RegisterProvisionServiceServer(o.server, o)
	pb.RegisterWireGuardOverGRPCServiceServer(o.server, o)

	go o.server.Serve(o.listener) //nolint:errcheck // Ends with Stop.
}

// Serve serves on a listener as well, until Stop.
func (o *Omni) Serve(listener net.Listener) {
	o.mu.Lock()
	server := o.server
	o.mu.Unlock()

	go server.Serve(listener) //nolint:errcheck // Ends with Stop.
}

// Stop ends all connections.
func (o *Omni) Stop() {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.server.Stop()
}

// Dial connects as talos.Machine does.
func (o *Omni) Dial(_ context.Context, target string, _ []string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			o.mu.Lock()
			listener := o.listener
			o.mu.Unlock()

			return listener.DialContext(ctx)
		}))
}

// Provision is the SideroLink call.
func (o *Omni) Provision(_ context.Context, request *pb.ProvisionRequest) (*pb.ProvisionResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.requests = append(o.requests, request)

	if o.refuse > 0 {
		o.refuse--

		return nil, status.Error(codes.Internal, "internal server error")
	}

	if request.GetJoinToken() != Token {
		return nil, status.Error(codes.PermissionDenied, "unauthorized")
	}

	return &pb.ProvisionResponse{
		ServerEndpoint:    []string{"192.0.2.1:50180"},
		ServerPublicKey:   "server",
		ServerAddress:     "fdae:41e4:649b:9303::1",
		NodeAddressPrefix: Address + "/64",
	}, nil
}

// CreateStream is the tunnel.
func (o *Omni) CreateStream(stream pb.WireGuardOverGRPCService_CreateStreamServer) error {
	if values := metadata.ValueFromIncomingContext(stream.Context(), talosapi.AddressKey); len(values) != 1 || values[0] != Address {
		return status.Errorf(codes.InvalidArgument, "%s: %q", talosapi.AddressKey, values)
	}

	// The tunnel before this one has to end first, so that it takes no command that is meant for this one.
	select {
	case o.turn <- struct{}{}:
		defer func() { <-o.turn }()
	case <-stream.Context().Done():
		return stream.Context().Err()
	}

	ended := make(chan error, 1)

	go func() {
		for {
			packet, err := stream.Recv()
			if err != nil {
				ended <- err

				return
			}

			message, err := talosapi.Decode(packet.GetData())
			if err != nil {
				ended <- err

				return
			}

			o.Reports <- *message.Report
		}
	}()

	for {
		select {
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				err = nil
			}

			o.Gone <- err

			return err
		case command := <-o.Commands:
			data, err := talosapi.Encode(command)
			if err != nil {
				return err
			}

			if err = stream.Send(&pb.PeerPacket{Data: data}); err != nil {
				return err
			}
		}
	}
}

// Calls returns the provision calls so far.
func (o *Omni) Calls() []*pb.ProvisionRequest {
	o.mu.Lock()
	defer o.mu.Unlock()

	return append([]*pb.ProvisionRequest(nil), o.requests...)
}

// RefuseNext makes the next n provision calls fail.
func (o *Omni) RefuseNext(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.refuse = n
}

// Await returns the next value of c; within a bubble of testing/synctest ctx bounds it on the fake clock.
func Await[T any](ctx context.Context, t *testing.T, c <-chan T, what string) T {
	t.Helper()

	select {
	case value := <-c:
		return value
	case <-ctx.Done():
		t.Fatalf("no %s: %v", what, context.Cause(ctx))

		panic("not reached")
	}
}
