package control

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// Machines is what Omni knows of machines through their SideroLink tunnels. Machines are named by their SideroLink address
// (the address part of a Link's or PendingMachine's node_subnet, in netip's form), as two machines may claim one UUID.
// Every method may be called from several goroutines.
type Machines interface {
	// Report returns the last report that came through the tunnel of the machine, nil if none came, and whether the tunnel
	// is up now. The report of a tunnel that has ended is kept.
	Report(address string) (report *talosapi.Report, up bool)
	// Command sends a command with its value and returns once it is on its way, or an error if there is no tunnel.
	Command(ctx context.Context, address string, command talosapi.Command, value string) error
	// Subscribe has changed called with the address of each machine whose tunnel went up or down or that sent a report, until
	// cancel is called. The function changed does not block. Changes before the call are not repeated.
	Subscribe(changed func(address string)) (cancel func())
}

// Options says how the simulated Omni is set up. The zero value is an Omni that no machine has a tunnel to.
type Options struct {
	// Machines gives access to the machines; nil means that none ever has a tunnel.
	Machines Machines
	// Log takes one sentence for each thing that an operator of Omni would want to see; nil means none. It does not block and
	// may be called from several goroutines. No sentence has a secret in it.
	Log func(text string)
	// Logger takes the log of the controllers themselves, but for that of join tokens; nil means none.
	Logger *zap.Logger

	// MachineAPIURL is the advertised URL of the SideroLink provision service; empty means "grpc://127.0.0.1:8090".
	MachineAPIURL string
	// WireGuardEndpoint is the advertised endpoint of the tunnels; empty means "127.0.0.1:50180".
	WireGuardEndpoint string
	// EventsPort and LogsPort are the ports on Omni's SideroLink address for events and kernel logs; 0 means 8091 and 8092.
	EventsPort, LogsPort int
	// EnforceGRPCTunnel makes all machines carry WireGuard over gRPC.
	EnforceGRPCTunnel bool
	// ImageFactoryURL is the image factory that clients are pointed to; empty means "https://factory.talos.dev".
	ImageFactoryURL string
	// InitialJoinToken is the default join token; empty means a random one.
	InitialJoinToken string
	// TalosVersions are the versions of Talos that exist, without a leading v, and Extensions the system extensions of each of
	// them; nil means DefaultTalosVersions and DefaultExtensions.
	TalosVersions, Extensions []string

	// ProviderRemovalTakesAllSets copies a defect of Omni v1.9.3: removal of a provider destroys every request set that a
	// user made, whichever provider it is for. Without it only the sets of the removed provider go.
	ProviderRemovalTakesAllSets bool

	// Timing has the periods of Omni; the zero value is those of the real one.
	Timing Timing
}

// Timing has the periods of Omni. A zero field means its default.
type Timing struct {
	// LinkRequeue is how long a machine request's link is waited for before it is looked for again; default 5 s.
	LinkRequeue time.Duration
	// ResetTimeout is how long Omni tries to reset Talos on a machine that is taken out; default 10 s.
	ResetTimeout time.Duration
	// Heartbeat is the age from which on a provider's last heartbeat counts as lost; default 31 s.
	Heartbeat time.Duration
	// PeerPoll is how often links are looked at; default 30 s.
	PeerPoll time.Duration
	// PeerGrace is how long after the start links are not looked at; default 60 s.
	PeerGrace time.Duration
	// PeerDown is how long after the end of its tunnel a machine counts as disconnected; default 275 s.
	PeerDown time.Duration
	// PendingMachine is how long a pending machine is kept after its last update; default 30 s.
	PendingMachine time.Duration
}

// DefaultTalosVersions and DefaultExtensions are what a simulated Omni knows of unless told otherwise.
var (
	DefaultTalosVersions = []string{"1.12.6", "1.13.4", "1.13.5"}
	DefaultExtensions    = []string{
		"siderolabs/hello-world-service", "siderolabs/iscsi-tools", "siderolabs/qemu-guest-agent", "siderolabs/util-linux-tools",
	}
)
