package omni

import (
	"context"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/go-api-signature/pkg/message"
	"github.com/siderolabs/omni/client/pkg/access"
	"github.com/siderolabs/omni/client/pkg/omni/resources/auth"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Role is what a caller may do; a later one may do all that an earlier one may.
type Role int

// The roles of Omni.
const (
	RoleNone Role = iota
	RoleInfraProvider
	RoleReader
	RoleOperator
	RoleAdmin
)

var roleNames = [...]string{"None", "InfraProvider", "Reader", "Operator", "Admin"}

// String returns the role's name on the wire.
func (r Role) String() string { return roleNames[r] }

// ParseRole returns the role of that name, RoleNone if there is none.
func ParseRole(name string) Role {
	for i, known := range roleNames {
		if known == name {
			return Role(i)
		}
	}

	return RoleNone
}

// caller is who makes a call.
type caller struct {
	identity string
	role     Role
	// provider is the id of the infra provider whose service account it is, or empty.
	provider string
}

type callerKey struct{}

// callerOf returns who makes the call; without a caller nothing is allowed.
func callerOf(ctx context.Context) caller {
	c, _ := ctx.Value(callerKey{}).(caller)

	return c
}

// require returns an error unless the caller has at least the role.
func (c caller) require(role Role) error {
	if c.role < role {
		return status.Errorf(codes.PermissionDenied, "unauthorized: access denied: insufficient role: %q", c.role)
	}

	return nil
}

var errInvalidSignature = status.Error(codes.Unauthenticated, "invalid signature")

// authenticate checks the signature of a call, whose form is that of module go-api-signature: the metadata carries a
// timestamp, a JSON payload naming method and headers, and a PGP signature of the payload. Whatever is wrong, the answer is
// the same. The name in the signature is not trusted: the key says who the caller is.
func (o *Omni) authenticate(ctx context.Context, method string) (context.Context, error) {
	md, _ := metadata.FromIncomingContext(ctx)

	if name := md.Get(keyNameHeader); o.opts.Unsigned && len(name) == 1 {
		who, _, err := o.keyOwner(ctx, name[0])
		if err != nil {
			return nil, errInvalidSignature
		}

		return context.WithValue(ctx, callerKey{}, who), nil
	}

	// The library's parser takes four words for granted.
	if values := md.Get(message.SignatureHeaderKey); len(values) == 0 || len(strings.Split(values[0], " ")) != 4 {
		return nil, errInvalidSignature
	}

	msg := message.NewGRPC(md, method)

	signature, err := msg.Signature()
	if err != nil {
		return nil, errInvalidSignature
	}

	who, verifier, err := o.keyOwner(ctx, signature.KeyFingerprint)
	if err != nil || msg.VerifySignature(verifier) != nil {
		return nil, errInvalidSignature
	}

	return context.WithValue(ctx, callerKey{}, who), nil
}

func (o *Omni) keyOwner(ctx context.Context, fingerprint string) (caller, message.SignatureVerifier, error) {
	key, err := safe.StateGetByID[*auth.PublicKey](ctx, o.state, fingerprint)
	if err != nil {
		return caller{}, nil, err
	}

	spec := key.TypedSpec().Value

	if !spec.GetConfirmed() || !spec.GetExpiration().AsTime().After(time.Now()) {
		return caller{}, nil, errInvalidSignature
	}

	identity, userRole, err := o.identity(ctx, spec.GetIdentity().GetEmail())
	if err != nil {
		return caller{}, nil, err
	}

	verifier, ok := o.verifiers.Load(fingerprint)
	if !ok {
		if verifier, err = auth.GetSignatureVerifier(key); err != nil {
			return caller{}, nil, err
		}

		o.verifiers.Store(fingerprint, verifier)
	}

	who := caller{identity: identity.Metadata().ID(), role: min(userRole, ParseRole(spec.GetRole()))}

	if o.opts.SuspendedAuth {
		who.role = RoleReader
	}

	if account, isAccount := access.ParseServiceAccountFromFullID(who.identity); isAccount && account.IsInfraProvider {
		who.provider = account.BaseName
	}

	return who, verifier.(message.SignatureVerifier), nil //nolint:forcetypeassert // only verifiers are stored
}

// public reports whether a call is one that anybody may make: to learn how to log in and to accept the EULA.
func public(req any) bool {
	t := targetOf(req)

	return t.verb == verbRead && (t.typ == auth.AuthConfigType || t.typ == auth.EulaAcceptanceType) ||
		t.verb == verbCreate && t.typ == auth.EulaAcceptanceType
}

func (o *Omni) checkEULA(ctx context.Context) error {
	_, err := o.state.Get(ctx, auth.NewEulaAcceptance().Metadata())

	switch {
	case err == nil:
		return nil
	case state.IsNotFoundError(err):
		return status.Errorf(codes.FailedPrecondition, "EULA has not been accepted; please accept it first: %s/eula", o.opts.APIURL)
	default:
		return err
	}
}

func (o *Omni) admit(ctx context.Context, method string) (context.Context, error) {
	if err := o.checkEULA(ctx); err != nil {
		return nil, err
	}

	return o.authenticate(ctx, method)
}

func (o *Omni) authUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	admitted, err := o.admit(ctx, info.FullMethod)
	if err != nil {
		if !public(req) {
			return nil, err
		}

		admitted = ctx
	}

	return handler(admitted, req)
}

func (o *Omni) authStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := o.admit(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}

	return handler(srv, &contextStream{ServerStream: stream, ctx: ctx})
}

// contextStream is a stream with another context.
type contextStream struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream has its context as a method
}

// Context returns the stream's context.
func (s *contextStream) Context() context.Context { return s.ctx }
