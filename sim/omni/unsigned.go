package omni

import (
	"context"

	"github.com/siderolabs/go-api-signature/pkg/serviceaccount"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// keyNameHeader carries the fingerprint of the caller's key where calls are not signed.
const keyNameHeader = "x-omni-sim-key"

// unsigned returns what makes a client name its key in each call. A key that cannot be read names nobody.
func unsigned(key string) []grpc.DialOption {
	name := ""
	if account, err := serviceaccount.Decode(key); err == nil {
		name = account.Key.Fingerprint()
	}

	named := func(ctx context.Context) context.Context {
		return metadata.AppendToOutgoingContext(ctx, keyNameHeader, name)
	}

	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			return invoke(named(ctx), method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return stream(named(ctx), desc, cc, method, opts...)
		}),
	}
}
