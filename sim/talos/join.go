package talos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/google/uuid"
	pb "github.com/siderolabs/siderolink/api/siderolink"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/omni-infra/omni-infra-providers/sim/talos/meta"
	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

const (
	// provisionTimeout is how long Talos waits for the answer to its provision call.
	provisionTimeout = 30 * time.Second
	// goodbyeTimeout bounds the wait for the last report to arrive.
	goodbyeTimeout = 2 * time.Second
)

// next says what follows the end of a connection.
type next int

const (
	later    next = iota // try again after a pause
	atOnce               // provision again with what META says now
	departed             // the machine has taken its leave
)

// connect provisions the machine and holds its tunnel for as long as it lasts. With departed the error is the order obeyed.
func (b *boot) connect(ctx, doing context.Context, config JoinConfig) (next, error) {
	conn, err := b.machine.Dial(doing, config.Target, config.Roots)
	if err != nil {
		return later, fmt.Errorf("dial %s: %w", config.Target, err)
	}
	defer conn.Close() //nolint:errcheck // Nothing can be done about it.

	address, err := b.provision(doing, conn, config)
	if err != nil {
		return later, fmt.Errorf("provision at %s: %w", config.Target, err)
	}

	tunnel, err := openTunnel(ctx, conn, address)
	if err != nil {
		return later, fmt.Errorf("open tunnel to %s: %w", config.Target, err)
	}
	defer tunnel.close()

	if err = tunnel.send(talosapi.Message{Report: new(b.report(talosapi.StageMaintenance))}); err != nil {
		return later, fmt.Errorf("report to %s: %w", config.Target, err)
	}

	b.log.Info("joined", "address", address)
	b.machine.update(func(s *Status) {
		s.Stage, s.UUID, s.Joined, s.Address, s.Err = talosapi.StageMaintenance, b.uuid(), true, address, nil
	})

	defer b.machine.update(func(s *Status) { s.Joined = false })

	return b.hold(ctx, doing, tunnel)
}

// provision makes the SideroLink call and returns the machine's address in the tunnel.
func (b *boot) provision(doing context.Context, conn *grpc.ClientConn, config JoinConfig) (string, error) {
	ctx, cancel := context.WithTimeout(doing, provisionTimeout)
	defer cancel()

	token, ok := b.machine.Meta.Get(meta.UniqueMachineToken)
	if !ok {
		token = config.UniqueToken
	}

	request := &pb.ProvisionRequest{
		NodeUuid:        b.uuid(),
		NodePublicKey:   b.publicKey,
		NodeUniqueToken: proto.String(token),
		TalosVersion:    proto.String(b.machine.TalosVersion),
	}

	if config.JoinToken != "" {
		request.JoinToken = proto.String(config.JoinToken)
	}

	if config.Tunnel {
		request.WireguardOverGrpc = proto.Bool(true)
	}

	response, err := pb.NewProvisionServiceClient(conn).Provision(ctx, request)
	if err != nil {
		return "", err
	}

	prefix, err := netip.ParsePrefix(response.GetNodeAddressPrefix())
	if err != nil {
		return "", fmt.Errorf("the answer's node_address_prefix: %w", err)
	}

	return prefix.Addr().String(), nil
}

// hold obeys what comes through the tunnel until it ends or the machine leaves.
func (b *boot) hold(ctx, doing context.Context, tunnel *tunnel) (next, error) {
	for {
		select {
		case <-doing.Done():
			return b.goodbye(ctx, context.Cause(doing), tunnel)
		case err := <-tunnel.down:
			return later, fmt.Errorf("the tunnel is down: %w", err)
		case message := <-tunnel.received:
			switch message.Command {
			case talosapi.CommandReboot:
				return b.goodbye(ctx, order{end: EndReboot, stage: talosapi.StageRebooting}, tunnel)
			case talosapi.CommandShutdown:
				return b.goodbye(ctx, order{end: EndPowerOff, stage: talosapi.StageShuttingDown}, tunnel)
			case talosapi.CommandReset:
				return b.goodbye(ctx, order{end: EndReboot, stage: talosapi.StageResetting, wipe: true}, tunnel)
			case talosapi.CommandUniqueToken:
				b.log.Info("unique token received")

				return b.remember(meta.UniqueMachineToken, message.Value)
			case talosapi.CommandUUID:
				b.log.Info("new UUID received", "new", message.Value)

				if _, err := uuid.Parse(message.Value); err != nil {
					return later, fmt.Errorf("obey command %s: %w", message.Command, err)
				}

				return b.remember(meta.UUIDOverride, message.Value)
			default:
				b.log.Warn("unknown command ignored", "command", string(message.Command))
			}
		}
	}
}

// remember stores value in META, so that the next provision call uses it.
func (b *boot) remember(key uint8, value string) (next, error) {
	if err := b.machine.Meta.Set(key, value); err != nil {
		return later, err
	}

	return atOnce, nil
}

// goodbye reports why the machine leaves and, unless power is cut, closes the tunnel in order.
func (b *boot) goodbye(ctx context.Context, reason error, tunnel *tunnel) (next, error) {
	o, ok := ordered(reason)
	if !ok {
		return later, reason
	}

	// A report that cannot be sent any more changes nothing: the machine leaves all the same.
	_ = tunnel.send(talosapi.Message{Report: new(b.report(o.stage))})

	err := b.depart(ctx, reason)

	tunnel.finish(ctx)

	return departed, err
}

// tunnel is the stream that stands for WireGuard. Messages and the error that ended it are received in the background.
type tunnel struct {
	stream   pb.WireGuardOverGRPCService_CreateStreamClient
	cancel   context.CancelFunc
	received chan talosapi.Message
	down     chan error
	done     chan struct{}
}

func openTunnel(ctx context.Context, conn *grpc.ClientConn, address string) (*tunnel, error) {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, talosapi.AddressKey, address))

	stream, err := pb.NewWireGuardOverGRPCServiceClient(conn).CreateStream(ctx)
	if err != nil {
		cancel()

		return nil, err
	}

	t := &tunnel{
		stream:   stream,
		cancel:   cancel,
		received: make(chan talosapi.Message),
		down:     make(chan error, 1),
		done:     make(chan struct{}),
	}

	go t.receive(ctx)

	return t, nil
}

func (t *tunnel) receive(ctx context.Context) {
	defer close(t.done)

	for {
		packet, err := t.stream.Recv()
		if err != nil {
			t.down <- err

			return
		}

		message, err := talosapi.Decode(packet.GetData())
		if err != nil {
			t.down <- err

			return
		}

		select {
		case t.received <- message:
		case <-ctx.Done():
			t.down <- ctx.Err()

			return
		}
	}
}

func (t *tunnel) send(message talosapi.Message) error {
	data, err := talosapi.Encode(message)
	if err != nil {
		return err
	}

	err = t.stream.Send(&pb.PeerPacket{Data: data})
	if errors.Is(err, io.EOF) {
		select { // The reason why nothing can be sent is what Recv returns.
		case err = <-t.down:
		case <-time.After(goodbyeTimeout):
		}
	}

	return err
}

// finish closes the sending side and waits until the other side has read everything.
func (t *tunnel) finish(ctx context.Context) {
	if t.stream.CloseSend() != nil {
		return
	}

	timeout := time.NewTimer(goodbyeTimeout)
	defer timeout.Stop()

	for {
		select {
		case <-t.received: // Too late to obey.
		case <-t.done:
			return
		case <-timeout.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

func (t *tunnel) close() {
	t.cancel()
	<-t.done
}

const (
	firstPause = 500 * time.Millisecond
	lastPause  = time.Minute
)

// pause grows from one failure to the next.
type pause struct{ length time.Duration }

func newPause() *pause { return &pause{length: firstPause} }

// wait waits for the pause, longer or shorter by up to half, and lets it grow.
func (p *pause) wait(ctx context.Context) error {
	length := p.length/2 + rand.N(p.length)
	p.length = min(p.length*3/2, lastPause)

	return sleep(ctx, length)
}
