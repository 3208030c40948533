package omni

import (
	"context"
	"fmt"

	"github.com/siderolabs/image-factory/pkg/schematic"
	"github.com/siderolabs/omni/client/api/omni/management"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// CreateSchematicFromRaw stores a schematic in its YAML form, in the factory if there is one. Errors of the factory and of the
// YAML have no code, as those of the real one.
func (s *managementServer) CreateSchematicFromRaw(
	ctx context.Context, req *management.CreateSchematicFromRawRequest,
) (*management.CreateSchematicResponse, error) {
	switch who := callerOf(ctx); who.role {
	case RoleInfraProvider, RoleOperator, RoleAdmin:
	case RoleNone, RoleReader:
		return nil, status.Errorf(codes.PermissionDenied, "unauthorized: access denied: insufficient role: %q", who.role)
	}

	parsed, err := schematic.Unmarshal(req.GetRawSchematic())
	if err != nil {
		return nil, fmt.Errorf("failed to unmarshal raw schematic: %w", err)
	}

	id, err := parsed.ID()
	if err != nil {
		return nil, fmt.Errorf("failed to compute schematic id: %w", err)
	}

	if s.omni.opts.Factory != nil {
		raw, err := parsed.Marshal()
		if err != nil {
			return nil, fmt.Errorf("failed to marshal schematic: %w", err)
		}

		if id, err = s.omni.opts.Factory.EnsureSchematic(ctx, raw); err != nil {
			return nil, fmt.Errorf("failed to create schematic: %w", err)
		}
	}

	return &management.CreateSchematicResponse{SchematicId: id}, nil
}

// CreateSchematic is for users, not for providers; only that refusal is modelled.
func (s *managementServer) CreateSchematic(
	ctx context.Context, _ *management.CreateSchematicRequest,
) (*management.CreateSchematicResponse, error) {
	if err := callerOf(ctx).require(RoleReader); err != nil {
		return nil, err
	}

	return nil, status.Error(codes.Unimplemented, "schematics for users")
}
