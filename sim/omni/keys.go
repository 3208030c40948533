package omni

import (
	"context"
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/google/uuid"
	"github.com/siderolabs/go-api-signature/pkg/pgp"
	"github.com/siderolabs/go-api-signature/pkg/serviceaccount"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/access"
	"github.com/siderolabs/omni/client/pkg/omni/resources/auth"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	adminName = "admin"
	// keyLifetime is the longest that a service account's key may be valid for.
	keyLifetime = 365 * 24 * time.Hour
)

// CreateProvider registers an infra provider and returns the key of its service account, in the form of the environment
// variable OMNI_SERVICE_ACCOUNT_KEY. It is what "omnictl infraprovider create" does.
func (o *Omni) CreateProvider(ctx context.Context, id string) (key string, err error) {
	if err = o.state.Create(ctx, infra.NewProvider(id)); err != nil {
		return "", fmt.Errorf("create infra provider %q: %w", id, err)
	}

	return o.createServiceAccount(ctx, access.InfraProviderServiceAccountPrefix+id, RoleInfraProvider)
}

// ReplaceProviderKey gives a provider a new key and makes its old ones void at once, as an administrator does after a leak.
func (o *Omni) ReplaceProviderKey(ctx context.Context, id string) (key string, err error) {
	name := access.InfraProviderServiceAccountPrefix + id

	identity, _, err := o.identity(ctx, access.ParseServiceAccountFromName(name).FullID())
	if err != nil {
		return "", fmt.Errorf("find service account %q: %w", name, err)
	}

	old, err := o.publicKeys(ctx, identity.TypedSpec().Value.UserId)
	if err != nil {
		return "", fmt.Errorf("list the keys of service account %q: %w", name, err)
	}

	private, err := generateKey(name, keyLifetime)
	if err != nil {
		return "", err
	}

	public, err := private.ArmorPublic()
	if err != nil {
		return "", fmt.Errorf("encode the public key of service account %q: %w", name, err)
	}

	if _, err = o.renewServiceAccount(ctx, name, public); err != nil {
		return "", fmt.Errorf("renew service account %q: %w", name, err)
	}

	for k := range old.All() {
		if err = o.state.TeardownAndDestroy(ctx, k.Metadata()); err != nil {
			return "", fmt.Errorf("remove an old key of service account %q: %w", name, err)
		}
	}

	return serviceaccount.Encode(name, private)
}

func (o *Omni) createServiceAccount(ctx context.Context, name string, role Role) (key string, err error) {
	private, err := generateKey(name, keyLifetime)
	if err != nil {
		return "", err
	}

	public, err := private.ArmorPublic()
	if err != nil {
		return "", fmt.Errorf("encode the public key of service account %q: %w", name, err)
	}

	if _, err = o.registerServiceAccount(ctx, name, public, role); err != nil {
		return "", fmt.Errorf("create service account %q: %w", name, err)
	}

	return serviceaccount.Encode(name, private)
}

func generateKey(name string, lifetime time.Duration) (*pgp.Key, error) {
	account := access.ParseServiceAccountFromName(name)

	key, err := pgp.GenerateKey(account.BaseName, "omni-sim", account.FullID(), lifetime)
	if err != nil {
		return nil, fmt.Errorf("generate the key of service account %q: %w", name, err)
	}

	return key, nil
}

// registerServiceAccount makes the public key, identity and user of a new service account and returns the key's id.
func (o *Omni) registerServiceAccount(ctx context.Context, name, armored string, role Role) (keyID string, err error) {
	account := access.ParseServiceAccountFromName(name)

	switch {
	case account.BaseName == "":
		return "", status.Error(codes.InvalidArgument, "service account name must not be empty")
	case account.IsInfraProvider && role != RoleInfraProvider:
		return "", status.Errorf(codes.InvalidArgument,
			"infra-provider service accounts must have the role %q", RoleInfraProvider)
	case !account.IsInfraProvider && role == RoleInfraProvider:
		return "", status.Errorf(codes.InvalidArgument,
			"service accounts with role %q must be prefixed with %q", RoleInfraProvider, access.InfraProviderServiceAccountPrefix)
	}

	key, err := parseKey(armored)
	if err != nil {
		return "", err
	}

	user := auth.NewUser(uuid.NewString())
	user.TypedSpec().Value.Role = role.String()

	identity := auth.NewIdentity(account.FullID())
	identity.TypedSpec().Value.UserId = user.Metadata().ID()
	identity.Metadata().Labels().Set(auth.LabelIdentityUserID, user.Metadata().ID())
	identity.Metadata().Labels().Set(auth.LabelIdentityTypeServiceAccount, "")

	if account.IsInfraProvider {
		identity.Metadata().Labels().Set(auth.LabelInfraProvider, "")
	}

	if err = o.state.Create(ctx, identity); err != nil {
		if state.IsConflictError(err) {
			return "", status.Errorf(codes.AlreadyExists, "service account %q already exists", name)
		}

		return "", err
	}

	if err = o.state.Create(ctx, user); err != nil {
		return "", err
	}

	return key.ID, o.registerKey(ctx, key, account.FullID(), user.Metadata().ID(), role)
}

// renewServiceAccount adds a public key to a service account and returns the key's id.
func (o *Omni) renewServiceAccount(ctx context.Context, name, armored string) (keyID string, err error) {
	identity, role, err := o.identity(ctx, access.ParseServiceAccountFromName(name).FullID())
	if err != nil {
		return "", fmt.Errorf("find service account %q: %w", name, err)
	}

	key, err := parseKey(armored)
	if err != nil {
		return "", err
	}

	return key.ID, o.registerKey(ctx, key, identity.Metadata().ID(), identity.TypedSpec().Value.UserId, role)
}

// identity returns an identity and the role of its user.
func (o *Omni) identity(ctx context.Context, email string) (*auth.Identity, Role, error) {
	identity, err := safe.StateGetByID[*auth.Identity](ctx, o.state, email)
	if err != nil {
		return nil, RoleNone, err
	}

	user, err := safe.StateGetByID[*auth.User](ctx, o.state, identity.TypedSpec().Value.UserId)
	if err != nil {
		return nil, RoleNone, err
	}

	return identity, ParseRole(user.TypedSpec().Value.Role), nil
}

func parseKey(armored string) (access.PublicKey, error) {
	key, err := access.ValidatePGPPublicKey(
		[]byte(armored),
		pgp.WithMaxAllowedLifetime(keyLifetime),
		pgp.WithValidEmailAsName(false),
	)
	if err != nil {
		return access.PublicKey{}, status.Error(codes.InvalidArgument, err.Error())
	}

	return key, nil
}

func (o *Omni) registerKey(ctx context.Context, key access.PublicKey, email, userID string, role Role) error {
	public := auth.NewPublicKey(key.ID)
	public.Metadata().Labels().Set(auth.LabelPublicKeyUserID, userID)

	spec := public.TypedSpec().Value
	spec.PublicKey = key.Data
	spec.Expiration = timestamppb.New(key.Expiration)
	spec.Confirmed = true
	spec.Identity = &specs.Identity{Email: email}
	spec.Role = role.String()
	spec.Type = specs.PublicKeySpec_PGP

	if err := o.state.Create(ctx, public); err != nil {
		if state.IsConflictError(err) {
			return status.Errorf(codes.AlreadyExists, "public key %q is already registered", key.ID)
		}

		return err
	}

	return nil
}

// destroyServiceAccount removes a service account with its keys.
func (o *Omni) destroyServiceAccount(ctx context.Context, name string) error {
	identity, _, err := o.identity(ctx, access.ParseServiceAccountFromName(name).FullID())
	if err != nil {
		return fmt.Errorf("find service account %q: %w", name, err)
	}

	userID := identity.TypedSpec().Value.UserId

	keys, err := o.publicKeys(ctx, userID)
	if err != nil {
		return err
	}

	for key := range keys.All() {
		if err = o.state.TeardownAndDestroy(ctx, key.Metadata()); err != nil {
			return err
		}
	}

	if err = o.state.TeardownAndDestroy(ctx, identity.Metadata()); err != nil {
		return err
	}

	return o.state.TeardownAndDestroy(ctx, auth.NewUser(userID).Metadata())
}

func (o *Omni) publicKeys(ctx context.Context, userID string) (safe.List[*auth.PublicKey], error) {
	return safe.StateListAll[*auth.PublicKey](ctx, o.state,
		state.WithLabelQuery(resource.LabelEqual(auth.LabelPublicKeyUserID, userID)))
}

// AcceptEULA accepts Omni's end-user license agreement in the name of a person. A second call changes nothing.
func (o *Omni) AcceptEULA(ctx context.Context, name, email string) error {
	acceptance := auth.NewEulaAcceptance()
	acceptance.TypedSpec().Value.AcceptedByName = name
	acceptance.TypedSpec().Value.AcceptedByEmail = email

	if err := o.state.Create(ctx, acceptance); err != nil && !state.IsConflictError(err) {
		return fmt.Errorf("accept the EULA: %w", err)
	}

	return nil
}
