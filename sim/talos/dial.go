package talos

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// keepaliveTime is the shortest that a gRPC server with default settings takes for no attack, and some.
const keepaliveTime = 6 * time.Minute

// Dial connects to target, grpc://HOST:PORT in plain text or https://HOST:PORT with TLS, where it trusts the system's roots and
// the given PEM certificates. It is what a machine without a Dial of its own uses.
func Dial(_ context.Context, target string, roots []string) (*grpc.ClientConn, error) {
	scheme, host, ok := strings.Cut(target, "://")
	if !ok {
		return nil, fmt.Errorf("%q has no scheme, want grpc or https", target)
	}

	transport := insecure.NewCredentials()

	if scheme == "https" {
		pool, err := x509.SystemCertPool()
		if err != nil {
			pool = x509.NewCertPool()
		}

		for _, root := range roots {
			if !pool.AppendCertsFromPEM([]byte(root)) {
				return nil, errors.New("a trusted root of the machine config is no PEM certificate")
			}
		}

		transport = credentials.NewTLS(&tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12})
	}

	return grpc.NewClient(host,
		grpc.WithTransportCredentials(transport),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepaliveTime}),
	)
}
