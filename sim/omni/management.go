package omni

import (
	"context"
	"fmt"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/management"
	"github.com/siderolabs/omni/client/pkg/access"
	"github.com/siderolabs/omni/client/pkg/jointoken"
	"github.com/siderolabs/omni/client/pkg/omni/resources/auth"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	omnisiderolink "github.com/siderolabs/omni/client/pkg/siderolink"
	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// managementServer is Omni's management service, as far as it is modelled.
type managementServer struct {
	management.UnimplementedManagementServiceServer
	omni *Omni
}

// Omniconfig returns a configuration of omnictl for this Omni.
func (s *managementServer) Omniconfig(ctx context.Context, _ *emptypb.Empty) (*management.OmniconfigResponse, error) {
	who := callerOf(ctx)

	config := map[string]any{
		"context": s.omni.opts.Name,
		"contexts": map[string]any{
			s.omni.opts.Name: map[string]any{
				"url":  s.omni.opts.APIURL,
				"auth": map[string]any{"siderov1": map[string]any{"identity": who.identity}},
			},
		},
	}

	data, err := yaml.Marshal(config)
	if err != nil {
		return nil, fmt.Errorf("encode omniconfig: %w", err)
	}

	return &management.OmniconfigResponse{Omniconfig: data}, nil
}

// CreateServiceAccount makes a service account of a public key.
func (s *managementServer) CreateServiceAccount(
	ctx context.Context, req *management.CreateServiceAccountRequest,
) (*management.CreateServiceAccountResponse, error) {
	who := callerOf(ctx)
	if err := who.require(RoleAdmin); err != nil {
		return nil, err
	}

	role := ParseRole(req.GetRole())

	switch {
	case req.GetUseUserRole():
		role = who.role
	case role.String() != req.GetRole():
		return nil, status.Errorf(codes.InvalidArgument, "unknown role %q", req.GetRole())
	}

	id, err := s.omni.registerServiceAccount(ctx, req.GetName(), req.GetArmoredPgpPublicKey(), role)
	if err != nil {
		return nil, err
	}

	s.omni.log("service account %q was created with role %s", req.GetName(), role)

	return &management.CreateServiceAccountResponse{PublicKeyId: id}, nil
}

// RenewServiceAccount adds a public key to a service account.
func (s *managementServer) RenewServiceAccount(
	ctx context.Context, req *management.RenewServiceAccountRequest,
) (*management.RenewServiceAccountResponse, error) {
	if err := callerOf(ctx).require(RoleAdmin); err != nil {
		return nil, err
	}

	id, err := s.omni.renewServiceAccount(ctx, req.GetName(), req.GetArmoredPgpPublicKey())
	if err != nil {
		return nil, notFound(err)
	}

	return &management.RenewServiceAccountResponse{PublicKeyId: id}, nil
}

// ListServiceAccounts lists the service accounts with their keys.
func (s *managementServer) ListServiceAccounts(ctx context.Context, _ *emptypb.Empty) (*management.ListServiceAccountsResponse, error) {
	if err := callerOf(ctx).require(RoleAdmin); err != nil {
		return nil, err
	}

	identities, err := safe.StateListAll[*auth.Identity](ctx, s.omni.state,
		state.WithLabelQuery(resource.LabelExists(auth.LabelIdentityTypeServiceAccount)))
	if err != nil {
		return nil, err
	}

	resp := &management.ListServiceAccountsResponse{}

	for identity := range identities.All() {
		account, _ := access.ParseServiceAccountFromFullID(identity.Metadata().ID())

		_, role, err := s.omni.identity(ctx, identity.Metadata().ID())
		if err != nil {
			return nil, err
		}

		entry := &management.ListServiceAccountsResponse_ServiceAccount{Name: account.NameWithPrefix(), Role: role.String()}

		keys, err := s.omni.publicKeys(ctx, identity.TypedSpec().Value.GetUserId())
		if err != nil {
			return nil, err
		}

		for key := range keys.All() {
			entry.PgpPublicKeys = append(entry.PgpPublicKeys, &management.ListServiceAccountsResponse_ServiceAccount_PgpPublicKey{
				Id:         key.Metadata().ID(),
				Armored:    string(key.TypedSpec().Value.GetPublicKey()),
				Expiration: key.TypedSpec().Value.GetExpiration(),
				Created:    timestamppb.New(key.Metadata().Created()),
			})
		}

		resp.ServiceAccounts = append(resp.ServiceAccounts, entry)
	}

	return resp, nil
}

// DestroyServiceAccount removes a service account with its keys.
func (s *managementServer) DestroyServiceAccount(ctx context.Context, req *management.DestroyServiceAccountRequest) (*emptypb.Empty, error) {
	if err := callerOf(ctx).require(RoleAdmin); err != nil {
		return nil, err
	}

	if err := s.omni.destroyServiceAccount(ctx, req.GetName()); err != nil {
		return nil, notFound(err)
	}

	s.omni.log("service account %q was destroyed", req.GetName())

	return &emptypb.Empty{}, nil
}

// notFound gives a missing resource its code.
func notFound(err error) error {
	if state.IsNotFoundError(err) {
		return status.Error(codes.NotFound, err.Error())
	}

	return err
}

// CreateJoinToken makes a join token that machines may use.
func (s *managementServer) CreateJoinToken(
	ctx context.Context, req *management.CreateJoinTokenRequest,
) (*management.CreateJoinTokenResponse, error) {
	if err := callerOf(ctx).require(RoleAdmin); err != nil {
		return nil, err
	}

	if req.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "join token name must not be empty")
	}

	id, err := jointoken.Generate()
	if err != nil {
		return nil, err
	}

	token := siderolink.NewJoinToken(id)
	token.TypedSpec().Value.Name = req.GetName()
	token.TypedSpec().Value.ExpirationTime = req.GetExpirationTime()

	if err = s.omni.state.Create(ctx, token); err != nil {
		return nil, err
	}

	s.omni.log("join token %q was created", req.GetName())

	return &management.CreateJoinTokenResponse{Id: id}, nil
}

// GetMachineJoinConfig returns how a machine joins with a join token, the default one if none is named.
func (s *managementServer) GetMachineJoinConfig(
	ctx context.Context, req *management.GetMachineJoinConfigRequest,
) (*management.GetMachineJoinConfigResponse, error) {
	if err := callerOf(ctx).require(RoleOperator); err != nil {
		return nil, err
	}

	api, err := safe.StateGetByID[*siderolink.APIConfig](ctx, s.omni.state, siderolink.ConfigID)
	if err != nil {
		return nil, err
	}

	token := req.GetJoinToken()

	if token == "" {
		standard, err := safe.StateGetByID[*siderolink.DefaultJoinToken](ctx, s.omni.state, siderolink.DefaultJoinTokenID)
		if err != nil {
			return nil, err
		}

		token = standard.TypedSpec().Value.GetTokenId()
	}

	spec := api.TypedSpec().Value

	join, err := omnisiderolink.NewJoinOptions(
		omnisiderolink.WithJoinToken(token),
		omnisiderolink.WithMachineAPIURL(spec.GetMachineApiAdvertisedUrl()),
		omnisiderolink.WithEventSinkPort(int(spec.GetEventsPort())),
		omnisiderolink.WithLogServerPort(int(spec.GetLogsPort())),
		omnisiderolink.WithGRPCTunnel(req.GetUseGrpcTunnel() || spec.GetEnforceGrpcTunnel()),
	)
	if err != nil {
		return nil, fmt.Errorf("make join config: %w", err)
	}

	config, err := join.RenderJoinConfig()
	if err != nil {
		return nil, fmt.Errorf("make join config: %w", err)
	}

	return &management.GetMachineJoinConfigResponse{KernelArgs: join.GetKernelArgs(), Config: string(config)}, nil
}

// MachinePowerOff asks Talos on a machine to shut down.
func (s *managementServer) MachinePowerOff(
	ctx context.Context, req *management.MachinePowerOffRequest,
) (*management.MachinePowerOffResponse, error) {
	if err := callerOf(ctx).require(RoleOperator); err != nil {
		return nil, err
	}

	link, err := safe.StateGetByID[*siderolink.Link](ctx, s.omni.state, req.GetMachineId())
	if err != nil {
		return nil, notFound(err)
	}

	address := subnetAddress(link.TypedSpec().Value.GetNodeSubnet())
	if err = s.omni.tunnels.Command(ctx, address, talosapi.CommandShutdown, ""); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}

	return &management.MachinePowerOffResponse{}, nil
}

// MachinePowerOn switches a machine of a static provider on. The others have nobody who could do it.
func (s *managementServer) MachinePowerOn(
	ctx context.Context, req *management.MachinePowerOnRequest,
) (*management.MachinePowerOnResponse, error) {
	if err := callerOf(ctx).require(RoleOperator); err != nil {
		return nil, err
	}

	machine, err := safe.StateGetByID[*omni.Machine](ctx, s.omni.state, req.GetMachineId())
	if err != nil {
		return nil, notFound(err)
	}

	if _, static := machine.Metadata().Labels().Get(omni.LabelIsManagedByStaticInfraProvider); !static {
		return nil, status.Error(codes.FailedPrecondition,
			"machine is not managed by a static infra provider, power on the machine manually")
	}

	return nil, status.Error(codes.Unimplemented, "static providers")
}
