package omni

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	omnisiderolink "github.com/siderolabs/omni/client/pkg/siderolink"
	sideropb "github.com/siderolabs/siderolink/api/siderolink"
	"github.com/siderolabs/siderolink/pkg/wireguard"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	// oldestTalos is what a machine counts as that does not name its version.
	oldestTalos = "1.5.0"
	// linkStatusTimeout is how long a machine waits until its tunnel is ready.
	linkStatusTimeout = 5 * time.Second
	// tunnelPort is the port of the addresses that stand for machines which carry WireGuard over gRPC.
	tunnelPort = 50888
)

var errUnauthorized = status.Error(codes.PermissionDenied, "unauthorized")

// provisionServer is the SideroLink service that machines call to join.
type provisionServer struct {
	sideropb.UnimplementedProvisionServiceServer
	omni *Omni
}

// joining is a machine that wants to join, and what is known of it.
type joining struct {
	req       *sideropb.ProvisionRequest
	version   string
	tunnelled bool
	token     joinToken
	// unique is the node unique token that the machine sent, and stored the one that Omni has for its UUID; nil means none.
	unique, stored *jointoken.NodeUniqueToken
	link           *siderolink.Link // nil if there is none
}

// Provision lets a machine join.
func (s *provisionServer) Provision(ctx context.Context, req *sideropb.ProvisionRequest) (*sideropb.ProvisionResponse, error) {
	m, err := s.examine(ctx, req)
	if err != nil {
		return nil, err
	}

	secure := omnisiderolink.SupportsSecureJoinTokens(m.version)
	mode := s.omni.opts.JoinTokensMode

	switch {
	case mode == JoinTokensStrict && !secure:
		return nil, status.Errorf(codes.FailedPrecondition,
			"Talos version %s is not supported on this Omni instance as '--join-tokens-mode' is set to 'strict'", m.version)
	case mode == JoinTokensLegacyAllowed && !secure && m.stored.HasToken():
		return nil, errUnauthorized
	case mode == JoinTokensLegacy || !secure:
		if !m.token.valid {
			return nil, errUnauthorized
		}

		return s.linked(ctx, m)
	}

	return s.secure(ctx, m)
}

// secure is the flow with node unique tokens.
func (s *provisionServer) secure(ctx context.Context, m *joining) (*sideropb.ProvisionResponse, error) {
	known := m.unique.HasToken() && m.unique.Equal(m.stored)

	switch {
	case !m.token.valid && !known:
		return nil, errUnauthorized
	case !m.unique.HasToken():
		return s.pending(ctx, m, false)
	case m.link == nil || known || !m.stored.HasToken():
		return s.linked(ctx, m)
	case !m.unique.IsSameFingerprint(m.stored):
		s.omni.log("machine %s was claimed by a second machine with the same UUID, which gets another one", m.req.GetNodeUuid())

		return s.pending(ctx, m, true)
	}

	if _, forced := m.link.Metadata().Annotations().Get(siderolink.ForceValidNodeUniqueToken); forced {
		return nil, errUnauthorized
	}

	return s.linked(ctx, m)
}

// examine reads what is known of a machine that wants to join.
func (s *provisionServer) examine(ctx context.Context, req *sideropb.ProvisionRequest) (*joining, error) {
	m := &joining{req: req, version: req.GetTalosVersion(), tunnelled: req.GetWireguardOverGrpc()}

	if m.version == "" {
		m.version = oldestTalos
	}

	if req.GetNodeUuid() == "" {
		return nil, status.Error(codes.InvalidArgument, "node_uuid must not be empty")
	}

	if _, err := wgtypes.ParseKey(req.GetNodePublicKey()); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "node_public_key is not a WireGuard key: %s", err)
	}

	var err error

	if m.token, err = s.omni.checkJoinToken(ctx, req.GetJoinToken()); err != nil {
		return nil, err
	}

	if m.unique, err = jointoken.ParseNodeUniqueToken(req.GetNodeUniqueToken()); err != nil {
		return nil, err
	}

	stored, err := safe.StateGetByID[*siderolink.NodeUniqueToken](ctx, s.omni.state, req.GetNodeUuid())
	if err = ignoreNotFound(err); err != nil {
		return nil, err
	}

	if stored != nil {
		if m.stored, err = jointoken.ParseNodeUniqueToken(stored.TypedSpec().Value.GetToken()); err != nil {
			return nil, err
		}
	}

	if m.link, err = safe.StateGetByID[*siderolink.Link](ctx, s.omni.state, req.GetNodeUuid()); ignoreNotFound(err) != nil {
		return nil, err
	}

	tunnel, err := safe.StateGetByID[*siderolink.GRPCTunnelConfig](ctx, s.omni.state, req.GetNodeUuid())
	if err = ignoreNotFound(err); err != nil {
		return nil, err
	}

	if tunnel != nil {
		m.tunnelled = tunnel.TypedSpec().Value.GetEnabled()
	}

	m.tunnelled = m.tunnelled || s.omni.opts.EnforceGRPCTunnel

	return m, nil
}

// spec makes the SideroLink side of a machine that joins for the first time.
func (m *joining) spec() (*specs.SiderolinkSpec, error) {
	subnet, err := wireguard.GenerateRandomNodeAddr(wireguard.NetworkPrefix(""))
	if err != nil {
		return nil, fmt.Errorf("choose the machine's address: %w", err)
	}

	spec := &specs.SiderolinkSpec{
		NodeSubnet:    subnet.String(),
		NodePublicKey: m.req.GetNodePublicKey(),
		Connected:     true,
	}

	return spec, m.route(spec)
}

// route gives a machine that carries WireGuard over gRPC a virtual address.
func (m *joining) route(spec *specs.SiderolinkSpec) error {
	spec.VirtualAddrport = ""

	if !m.tunnelled {
		return nil
	}

	virtual, err := wireguard.GenerateRandomNodeAddr(wireguard.VirtualNetworkPrefix())
	if err != nil {
		return fmt.Errorf("choose the machine's virtual address: %w", err)
	}

	spec.VirtualAddrport = netip.AddrPortFrom(virtual.Addr(), tunnelPort).String()

	return nil
}

// label copies what the join token was made for.
func (m *joining) label(r resource.Resource) {
	if !m.token.valid {
		return
	}

	if m.token.provider != "" {
		r.Metadata().Labels().Set(omni.LabelInfraProviderID, m.token.provider)
	}

	if m.token.request != "" {
		r.Metadata().Labels().Set(omni.LabelMachineRequest, m.token.request)
	}
}

// pending lets a machine in as far as it needs to get a unique token, or another UUID if its own is taken.
func (s *provisionServer) pending(ctx context.Context, m *joining, conflict bool) (*sideropb.ProvisionResponse, error) {
	spec, err := m.spec()
	if err != nil {
		return nil, err
	}

	machine := siderolink.NewPendingMachine(m.req.GetNodePublicKey(), spec)

	_, err = safe.StateModifyWithResult(ctx, s.omni.state, machine, func(r *siderolink.PendingMachine) error {
		r.Metadata().Labels().Set(omni.MachineUUID, m.req.GetNodeUuid())
		m.label(r)

		if conflict {
			r.Metadata().Annotations().Set(siderolink.PendingMachineUUIDConflict, "")
		}

		if subnet := r.TypedSpec().Value.GetNodeSubnet(); subnet != "" {
			spec.NodeSubnet = subnet
		}

		r.TypedSpec().Value = spec

		return nil
	})
	if err != nil {
		return nil, err
	}

	return s.answer(ctx, machine, spec)
}

// linked registers a machine, or lets a registered one in again.
func (s *provisionServer) linked(ctx context.Context, m *joining) (*sideropb.ProvisionResponse, error) {
	if err := s.checkProvider(ctx, m); err != nil {
		return nil, err
	}

	link, err := s.ensureLink(ctx, m)
	if err != nil {
		return nil, err
	}

	if m.unique.HasToken() {
		token := siderolink.NewNodeUniqueToken(m.req.GetNodeUuid())

		if err = safe.StateModify(ctx, s.omni.state, token, func(r *siderolink.NodeUniqueToken) error {
			r.TypedSpec().Value.Token = m.req.GetNodeUniqueToken()

			return nil
		}); err != nil {
			return nil, err
		}
	}

	if m.token.valid && m.token.id != "" {
		usage := siderolink.NewJoinTokenUsage(m.req.GetNodeUuid())

		if err = safe.StateModify(ctx, s.omni.state, usage, func(r *siderolink.JoinTokenUsage) error {
			r.TypedSpec().Value.TokenId = m.token.id

			return nil
		}); err != nil {
			return nil, err
		}
	}

	return s.answer(ctx, link, link.TypedSpec().Value)
}

// checkProvider refuses machines of a provider that is gone or going.
func (s *provisionServer) checkProvider(ctx context.Context, m *joining) error {
	id := m.token.provider

	if m.link != nil {
		id, _ = m.link.Metadata().Labels().Get(omni.LabelInfraProviderID)
	}

	if id == "" {
		return nil
	}

	provider, err := s.omni.state.Get(ctx, infra.NewProvider(id).Metadata())
	if ignoreNotFound(err) != nil {
		return err
	}

	if err != nil || provider.Metadata().Phase() != resource.PhaseRunning {
		return status.Error(codes.NotFound, "the infra provider is being deleted or doesn't exist")
	}

	return nil
}

func (s *provisionServer) ensureLink(ctx context.Context, m *joining) (*siderolink.Link, error) {
	if m.link == nil {
		return s.createLink(ctx, m)
	}

	if m.link.Metadata().Phase() == resource.PhaseTearingDown {
		return nil, status.Error(codes.AlreadyExists,
			"the machine with the same UUID is already registered in Omni and is in the tearing down phase")
	}

	return safe.StateUpdateWithConflicts(ctx, s.omni.state, m.link.Metadata(), func(r *siderolink.Link) error {
		spec := r.TypedSpec().Value
		spec.NodePublicKey = m.req.GetNodePublicKey()

		return m.route(spec)
	})
}

func (s *provisionServer) createLink(ctx context.Context, m *joining) (*siderolink.Link, error) {
	if limit := s.omni.opts.MaxMachines; limit > 0 {
		links, err := safe.StateListAll[*siderolink.Link](ctx, s.omni.state)
		if err != nil {
			return nil, err
		}

		if links.Len() >= limit {
			return nil, status.Errorf(codes.ResourceExhausted,
				"machine registration limit reached: %d/%d machines registered", links.Len(), limit)
		}
	}

	spec, err := m.spec()
	if err != nil {
		return nil, err
	}

	link := siderolink.NewLink(m.req.GetNodeUuid(), spec)
	m.label(link)

	if m.unique.HasToken() {
		link.Metadata().Annotations().Set(omni.CreatedWithUniqueToken, "")
	}

	if err = s.omni.state.Create(ctx, link); err != nil {
		return nil, err
	}

	s.omni.log("machine %s joined%s", m.req.GetNodeUuid(), m.describe())

	return link, nil
}

func (m *joining) describe() string {
	switch {
	case m.token.request != "":
		return fmt.Sprintf(" for request %q of provider %q", m.token.request, m.token.provider)
	case m.token.provider != "":
		return fmt.Sprintf(" by way of provider %q", m.token.provider)
	default:
		return ""
	}
}

// answer waits until the machine's tunnel is ready and tells it where.
func (s *provisionServer) answer(
	ctx context.Context, r resource.Resource, spec *specs.SiderolinkSpec,
) (*sideropb.ProvisionResponse, error) {
	waitCtx, cancel := context.WithTimeout(ctx, linkStatusTimeout)
	defer cancel()

	if _, err := s.omni.state.WatchFor(waitCtx, siderolink.NewLinkStatus(r).Metadata(), state.WithCondition(
		func(ls resource.Resource) (bool, error) { return !resource.IsTombstone(ls), nil },
	)); err != nil {
		return nil, status.Error(codes.Internal, "internal server error")
	}

	config, err := safe.StateGetByID[*siderolink.Config](ctx, s.omni.state, siderolink.ConfigID)
	if err != nil {
		return nil, err
	}

	endpoint := config.TypedSpec().Value.GetAdvertisedEndpoint()
	if spec.GetVirtualAddrport() != "" {
		endpoint = spec.GetVirtualAddrport()
	}

	return &sideropb.ProvisionResponse{
		ServerEndpoint:    sideropb.MakeEndpoints(endpoint),
		ServerPublicKey:   config.TypedSpec().Value.GetPublicKey(),
		NodeAddressPrefix: spec.GetNodeSubnet(),
		ServerAddress:     config.TypedSpec().Value.GetServerAddress(),
		GrpcPeerAddrPort:  spec.GetVirtualAddrport(),
	}, nil
}
