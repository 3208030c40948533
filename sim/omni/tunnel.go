package omni

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	sideropb "github.com/siderolabs/siderolink/api/siderolink"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// commandBacklog is how many commands may wait for a machine to take them.
const commandBacklog = 16

var (
	errPeerReplaced   = status.Error(codes.Aborted, "peer replaced")
	errPeerNotAllowed = status.Error(codes.PermissionDenied, "peer not allowed")
	errPeerRemoved    = status.Error(codes.Aborted, "peer removed")
)

// tunnels are the machines' SideroLink tunnels. Where a real machine sends WireGuard packets over gRPC, a simulated one sends
// the messages of package talosapi. It implements control.Machines.
type tunnels struct {
	sideropb.UnimplementedWireGuardOverGRPCServiceServer
	state state.State

	mu          sync.Mutex
	up          map[string]*tunnel
	reports     map[string]*talosapi.Report
	subscribers map[int]func(string)
	next        int
}

type tunnel struct {
	commands chan talosapi.Message
	end      context.CancelCauseFunc
}

func newTunnels(st state.State) *tunnels {
	return &tunnels{
		state:       st,
		up:          map[string]*tunnel{},
		reports:     map[string]*talosapi.Report{},
		subscribers: map[int]func(string){},
	}
}

// Report returns the last report of the machine with the address, nil if none came, and whether its tunnel is up.
func (t *tunnels) Report(address string) (report *talosapi.Report, up bool) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if r := t.reports[address]; r != nil {
		clone := *r
		report = &clone
	}

	return report, t.up[address] != nil
}

// Command sends a command to the machine with the address.
func (t *tunnels) Command(ctx context.Context, address string, command talosapi.Command, value string) error {
	t.mu.Lock()
	machine := t.up[address]
	t.mu.Unlock()

	if machine == nil {
		return fmt.Errorf("send %s to machine %s: no tunnel", command, address)
	}

	select {
	case machine.commands <- talosapi.Message{Command: command, Value: value}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("send %s to machine %s: %w", command, address, ctx.Err())
	}
}

// Subscribe has changed called with the address of each machine whose tunnel or report changes.
func (t *tunnels) Subscribe(changed func(address string)) (cancel func()) {
	t.mu.Lock()
	defer t.mu.Unlock()

	id := t.next
	t.next++
	t.subscribers[id] = changed

	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()

		delete(t.subscribers, id)
	}
}

// notify tells the subscribers of a change. It is not called with the mutex held, as they may ask for the report.
func (t *tunnels) notify(address string) {
	t.mu.Lock()
	subscribers := slices.Collect(maps.Values(t.subscribers))
	t.mu.Unlock()

	for _, changed := range subscribers {
		changed(address)
	}
}

// CreateStream is a machine's tunnel: it is up as long as the stream.
func (t *tunnels) CreateStream(stream sideropb.WireGuardOverGRPCService_CreateStreamServer) error {
	address, err := t.peer(stream.Context())
	if err != nil {
		return err
	}

	ctx, end := context.WithCancelCause(stream.Context())
	defer end(nil)

	machine := &tunnel{commands: make(chan talosapi.Message, commandBacklog), end: end}

	t.open(address, machine)
	defer t.close(address, machine)

	go func() { end(t.receive(address, stream)) }()

	for {
		select {
		case <-ctx.Done():
			if err := context.Cause(ctx); !errors.Is(err, io.EOF) {
				return err
			}

			return nil // The machine closed its side in order.
		case command := <-machine.commands:
			data, err := talosapi.Encode(command)
			if err != nil {
				return err
			}

			if err = stream.Send(&sideropb.PeerPacket{Data: data}); err != nil {
				return err
			}
		}
	}
}

// peer returns the address of the machine that opens a stream, if it is one that may.
func (t *tunnels) peer(ctx context.Context) (string, error) {
	md, _ := metadata.FromIncomingContext(ctx)

	values := md.Get(talosapi.AddressKey)
	if len(values) == 0 {
		return "", status.Errorf(codes.InvalidArgument, "metadata %s is missing: want the machine's SideroLink address", talosapi.AddressKey)
	}

	address, err := parseAddress(values[0])
	if err != nil {
		return "", status.Errorf(codes.InvalidArgument, "metadata %s is %q: want the machine's SideroLink address",
			talosapi.AddressKey, values[0])
	}

	allowed, err := t.allowed(ctx, address)
	if err != nil {
		return "", err
	}

	if !allowed {
		return "", errPeerNotAllowed
	}

	return address, nil
}

// parseAddress takes an address alone, with a port or with the length of its prefix.
func parseAddress(value string) (string, error) {
	if prefix, err := netip.ParsePrefix(value); err == nil {
		return prefix.Addr().String(), nil
	}

	if addrPort, err := netip.ParseAddrPort(value); err == nil {
		return addrPort.Addr().String(), nil
	}

	addr, err := netip.ParseAddr(value)

	return addr.String(), err
}

// subnetAddress returns the address part of a Link's subnet.
func subnetAddress(subnet string) string {
	address, err := parseAddress(subnet)
	if err != nil {
		return ""
	}

	return address
}

// allowed reports whether a machine has that address, be it registered or pending.
func (t *tunnels) allowed(ctx context.Context, address string) (bool, error) {
	links, err := safe.StateListAll[*siderolink.Link](ctx, t.state)
	if err != nil {
		return false, err
	}

	for link := range links.All() {
		if subnetAddress(link.TypedSpec().Value.GetNodeSubnet()) == address {
			return true, nil
		}
	}

	pending, err := safe.StateListAll[*siderolink.PendingMachine](ctx, t.state)
	if err != nil {
		return false, err
	}

	for machine := range pending.All() {
		if subnetAddress(machine.TypedSpec().Value.GetNodeSubnet()) == address {
			return true, nil
		}
	}

	return false, nil
}

func (t *tunnels) receive(address string, stream sideropb.WireGuardOverGRPCService_CreateStreamServer) error {
	for {
		packet, err := stream.Recv()
		if err != nil {
			return err
		}

		message, err := talosapi.Decode(packet.GetData())
		if err != nil {
			return status.Errorf(codes.InvalidArgument, "not a simulated machine: %s", err)
		}

		if message.Report == nil {
			return status.Errorf(codes.InvalidArgument, "machine sent command %q: want reports only", message.Command)
		}

		t.mu.Lock()
		t.reports[address] = message.Report
		t.mu.Unlock()

		t.notify(address)
	}
}

func (t *tunnels) open(address string, machine *tunnel) {
	t.mu.Lock()

	if old := t.up[address]; old != nil {
		old.end(errPeerReplaced)
	}

	t.up[address] = machine
	t.mu.Unlock()

	t.notify(address)
}

func (t *tunnels) close(address string, machine *tunnel) {
	t.mu.Lock()
	replaced := t.up[address] != machine

	if !replaced {
		delete(t.up, address)
	}

	t.mu.Unlock()

	if !replaced {
		t.notify(address)
	}
}

// forget drops all that is known of machines, as a restart does.
func (t *tunnels) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()

	clear(t.reports)
}

// run ends the tunnels of machines that are removed from Omni until ctx ends.
func (t *tunnels) run(ctx context.Context) error {
	events := make(chan state.Event)

	for _, kind := range []resource.Kind{
		siderolink.NewLink("", nil).Metadata(), siderolink.NewPendingMachine("", nil).Metadata(),
	} {
		if err := t.state.WatchKind(ctx, kind, events); err != nil {
			return fmt.Errorf("watch %s: %w", kind.Type(), err)
		}
	}

	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-events:
			switch event.Type {
			case state.Errored:
				return fmt.Errorf("watch machines: %w", event.Error)
			case state.Destroyed:
				t.remove(event.Resource)
			case state.Created, state.Updated, state.Bootstrapped, state.Noop:
			}
		}
	}
}

func (t *tunnels) remove(r resource.Resource) {
	var subnet string

	switch machine := r.(type) {
	case *siderolink.Link:
		subnet = machine.TypedSpec().Value.GetNodeSubnet()
	case *siderolink.PendingMachine:
		subnet = machine.TypedSpec().Value.GetNodeSubnet()
	}

	address := subnetAddress(subnet)

	t.mu.Lock()
	defer t.mu.Unlock()

	delete(t.reports, address)

	if machine := t.up[address]; machine != nil {
		machine.end(errPeerRemoved)
	}
}
