package talos_test

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

const address = "fdae:41e4:649b:9303::2"

// omni answers the SideroLink calls of machines and notes them.
type omni struct {
	pb.UnimplementedProvisionServiceServer
	pb.UnimplementedWireGuardOverGRPCServiceServer

	// token is the join token that it takes.
	token string

	mu       sync.Mutex
	server   *grpc.Server
	listener *bufconn.Listener
	requests []*pb.ProvisionRequest
	refuse   int

	reports  chan talosapi.Report
	commands chan talosapi.Message
	// gone gets the reason of each end of a tunnel; nil means that the machine closed it in order.
	gone chan error
}

func newOmni() *omni {
	o := &omni{
		token:    "t0ken",
		reports:  make(chan talosapi.Report, 100),
		commands: make(chan talosapi.Message, 10),
		gone:     make(chan error, 100),
	}
	o.start()

	return o
}

func (o *omni) start() {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.server, o.listener = grpc.NewServer(), bufconn.Listen(1<<16)
	pb.RegisterProvisionServiceServer(o.server, o)
	pb.RegisterWireGuardOverGRPCServiceServer(o.server, o)

	go o.server.Serve(o.listener) //nolint:errcheck // Ends with stop.
}

func (o *omni) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.server.Stop()
}

func (o *omni) dial(_ context.Context, target string, _ []string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			o.mu.Lock()
			listener := o.listener
			o.mu.Unlock()

			return listener.DialContext(ctx)
		}))
}

func (o *omni) Provision(_ context.Context, request *pb.ProvisionRequest) (*pb.ProvisionResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.requests = append(o.requests, request)

	if o.refuse > 0 {
		o.refuse--

		return nil, status.Error(codes.Internal, "internal server error")
	}

	if request.GetJoinToken() != o.token {
		return nil, status.Error(codes.PermissionDenied, "unauthorized")
	}

	return &pb.ProvisionResponse{
		ServerEndpoint:    []string{"192.0.2.1:50180"},
		ServerPublicKey:   "server",
		ServerAddress:     "fdae:41e4:649b:9303::1",
		NodeAddressPrefix: address + "/64",
	}, nil
}

func (o *omni) CreateStream(stream pb.WireGuardOverGRPCService_CreateStreamServer) error {
	if values := metadata.ValueFromIncomingContext(stream.Context(), talosapi.AddressKey); len(values) != 1 || values[0] != address {
		return status.Errorf(codes.InvalidArgument, "%s: %q", talosapi.AddressKey, values)
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

			o.reports <- *message.Report
		}
	}()

	for {
		select {
		case err := <-ended:
			if errors.Is(err, io.EOF) {
				err = nil
			}

			o.gone <- err

			return err
		case command := <-o.commands:
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

func (o *omni) calls() []*pb.ProvisionRequest {
	o.mu.Lock()
	defer o.mu.Unlock()

	return append([]*pb.ProvisionRequest(nil), o.requests...)
}

func (o *omni) refuseNext(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.refuse = n
}

// await returns the next value of c; within a bubble of testing/synctest ctx bounds it on the fake clock.
func await[T any](ctx context.Context, t *testing.T, c <-chan T, what string) T {
	t.Helper()

	select {
	case value := <-c:
		return value
	case <-ctx.Done():
		t.Fatalf("no %s: %v", what, context.Cause(ctx))

		panic("not reached")
	}
}
