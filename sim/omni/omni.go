// Package omni is a simulated Omni server: the gRPC services, access rules, signatures and SideroLink joins of the real one
// over an in-memory state, with faults on demand. The real omnictl, the official provider library and any provider work
// against it unchanged. Its README says what is modelled and what is not.
//
// It is served in three ways: in process without sockets (Client, DialMachineAPI), so that a test may fake the clock with
// testing/synctest; on listeners (Serve); and as the program omni-sim. Tests, conformance and omni-sim import it.
package omni

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/compression"
	"go.uber.org/zap"
	"google.golang.org/grpc/test/bufconn"

	"github.com/omni-infra/omni-infra-providers/sim/omni/internal/control"
)

// JoinTokensMode says which machines may join, by the age of their Talos.
type JoinTokensMode string

// The modes of Omni's setting joinTokensMode.
const (
	// JoinTokensStrict refuses Talos older than 1.6, which has no node unique tokens.
	JoinTokensStrict JoinTokensMode = "strict"
	// JoinTokensLegacyAllowed lets old Talos join with the join token alone.
	JoinTokensLegacyAllowed JoinTokensMode = "legacyAllowed"
	// JoinTokensLegacy lets every machine join with the join token alone.
	JoinTokensLegacy JoinTokensMode = "legacy"
)

// Timing has the periods of Omni's own controllers. A zero field means the period of the real one.
type Timing = control.Timing

// Factory stores schematics, as an image factory does.
type Factory interface {
	// EnsureSchematic stores the schematic in its YAML form and returns its id. An error is passed on to the caller of Omni.
	EnsureSchematic(ctx context.Context, raw []byte) (id string, err error)
}

// Defects are known defects of the real Omni v1.9.3, each off unless asked for.
type Defects struct {
	// UnfilteredCache lets every provider read the ProviderJoinConfigs, with their join tokens, and ConfigPatchRequests of all
	// the others by Get and List, as the real server answers these from a cache that knows no owners. Watch is not affected.
	UnfilteredCache bool
	// ProviderRemovalTakesAllSets makes the removal of one provider destroy all MachineRequestSets that users made.
	ProviderRemovalTakesAllSets bool
}

// Options says how the simulated Omni is set up. The zero value is an Omni v1.9.3 as it is after installation, with its EULA
// accepted.
type Options struct {
	// Version is the version that SysVersion tells clients; empty means "1.9.3".
	Version string
	// Name is the name of the instance; empty means "omni-sim".
	Name string
	// APIURL is the address of the API that users are told; empty means "http://127.0.0.1:8099".
	APIURL string
	// MachineAPIURL is the address of the SideroLink API that machines are told; empty means "grpc://127.0.0.1:8090".
	MachineAPIURL string
	// WireGuardEndpoint is the advertised endpoint of the tunnels; empty means "127.0.0.1:50180". Nothing listens there.
	WireGuardEndpoint string
	// EventsPort and LogsPort are the ports for events and kernel logs that machines are told; 0 means 8091 and 8092.
	EventsPort, LogsPort int
	// EnforceGRPCTunnel makes all machines carry WireGuard over gRPC.
	EnforceGRPCTunnel bool

	// JoinTokensMode says which machines may join; empty means JoinTokensStrict.
	JoinTokensMode JoinTokensMode
	// InitialJoinToken is the default join token; empty means a random one.
	InitialJoinToken string
	// MaxMachines limits the machines that may be registered; 0 means no limit.
	MaxMachines int

	// PendingEULA leaves the EULA open, so that every call fails until AcceptEULA.
	PendingEULA bool
	// SuspendedAuth gives every caller the role Reader, infra providers too.
	SuspendedAuth bool

	// Unsigned lets clients name their key instead of signing each call with it, as those of Client and ClientOptions do then. All
	// else about keys is as ever. It is for tests that make very many calls: signatures are a good part of what a call costs.
	Unsigned bool

	// TalosVersions are the versions of Talos that exist, without a leading v, and Extensions the system extensions of each of
	// them; nil means DefaultTalosVersions and DefaultExtensions.
	TalosVersions, Extensions []string
	// Factory stores the schematics that providers create; nil means that only their ids are computed.
	Factory Factory
	// FactoryURL is the image factory that clients are told to download images from; empty means "https://factory.talos.dev".
	FactoryURL string

	// Defects switches on known defects of the real server.
	Defects Defects
	// Timing has the periods of Omni; the zero value is those of the real one.
	Timing Timing

	// Log takes one sentence for each thing that an operator would want to see, with no secret in it; nil means none. It does
	// not block and may be called from several goroutines.
	Log func(text string)
	// Logger takes the log of Omni's controllers; nil means none.
	Logger *zap.Logger
}

// DefaultTalosVersions and DefaultExtensions are what a simulated Omni knows of unless told otherwise.
var (
	DefaultTalosVersions = control.DefaultTalosVersions
	DefaultExtensions    = control.DefaultExtensions
)

const (
	defaultVersion       = "1.9.3"
	defaultName          = "omni-sim"
	defaultAPIURL        = "http://127.0.0.1:8099"
	defaultMachineAPIURL = "grpc://127.0.0.1:8090"
	defaultWireGuard     = "127.0.0.1:50180"
	pipeBuffer           = 1 << 16
)

func (o Options) withDefaults() (Options, error) {
	for _, f := range []struct {
		value    *string
		fallback string
	}{
		{&o.Version, defaultVersion},
		{&o.Name, defaultName},
		{&o.APIURL, defaultAPIURL},
		{&o.MachineAPIURL, defaultMachineAPIURL},
		{&o.WireGuardEndpoint, defaultWireGuard},
	} {
		if *f.value == "" {
			*f.value = f.fallback
		}
	}

	switch o.JoinTokensMode {
	case "":
		o.JoinTokensMode = JoinTokensStrict
	case JoinTokensStrict, JoinTokensLegacyAllowed, JoinTokensLegacy:
	default:
		return o, fmt.Errorf("join tokens mode %q: want %s, %s or %s",
			o.JoinTokensMode, JoinTokensStrict, JoinTokensLegacyAllowed, JoinTokensLegacy)
	}

	if o.MaxMachines < 0 {
		return o, fmt.Errorf("limit of %d machines: want 0 for none, or more", o.MaxMachines)
	}

	return o, nil
}

func (o Options) control(machines control.Machines) control.Options {
	return control.Options{
		Machines:                    machines,
		Log:                         o.Log,
		Logger:                      o.Logger,
		MachineAPIURL:               o.MachineAPIURL,
		WireGuardEndpoint:           o.WireGuardEndpoint,
		EventsPort:                  o.EventsPort,
		LogsPort:                    o.LogsPort,
		EnforceGRPCTunnel:           o.EnforceGRPCTunnel,
		InitialJoinToken:            o.InitialJoinToken,
		ImageFactoryURL:             o.FactoryURL,
		TalosVersions:               o.TalosVersions,
		Extensions:                  o.Extensions,
		ProviderRemovalTakesAllSets: o.Defects.ProviderRemovalTakesAllSets,
		Timing:                      o.Timing,
	}
}

// Omni is a simulated Omni server. All methods may be called from several goroutines.
type Omni struct {
	opts     Options
	state    state.State
	adminKey string

	api, machine *port
	// apiPipe and machinePipe are where in-process clients and machines dial.
	apiPipe, machinePipe *bufconn.Listener

	tunnels    *tunnels
	faults     faults
	unmodelled unmodelled
	breakers   breakers
	records    recordTypes
	verifiers  sync.Map // fingerprint => message.SignatureVerifier

	restarts chan restart
	running  sync.Mutex
}

// New returns an Omni with its first resources and an administrator's service account. It answers nobody until Run is called.
func New(opts Options) (*Omni, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("set up the simulated Omni: %w", err)
	}

	if err = compression.InitConfig(true); err != nil {
		return nil, fmt.Errorf("set up compression of resources: %w", err)
	}

	o := &Omni{
		opts:        opts,
		api:         newPort(),
		machine:     newPort(),
		apiPipe:     bufconn.Listen(pipeBuffer),
		machinePipe: bufconn.Listen(pipeBuffer),
		restarts:    make(chan restart),
	}
	o.state = newState(&o.records)
	o.tunnels = newTunnels(o.state)
	o.api.open()
	o.machine.open()

	ctx := context.Background()

	if err = errors.Join(register(ctx, o.state), o.bootstrap(ctx)); err != nil {
		return nil, fmt.Errorf("write the first resources: %w", err)
	}

	if o.adminKey, err = o.createServiceAccount(ctx, adminName, RoleAdmin); err != nil {
		return nil, err
	}

	return o, nil
}

// State is Omni's state as its own parts see it: everything is allowed.
func (o *Omni) State() state.State { return o.state }

// AdminKey returns the key of a service account with the role Admin, in the form of the environment variable
// OMNI_SERVICE_ACCOUNT_KEY. It is a secret.
func (o *Omni) AdminKey() string { return o.adminKey }

// Endpoint returns the URL of the API that users are told. Clients in process connect to it with ClientOptions.
func (o *Omni) Endpoint() string { return o.opts.APIURL }

// Unmodelled returns the methods and resources that were asked for and are not modelled, each once. A test should find none.
func (o *Omni) Unmodelled() []string { return o.unmodelled.list() }

func (o *Omni) log(format string, args ...any) {
	if o.opts.Log != nil {
		o.opts.Log(fmt.Sprintf(format, args...))
	}
}
