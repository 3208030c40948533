package talos_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/talos"
	"github.com/omni-infra/omni-infra-providers/sim/talos/internal/omnitest"
)

// selfSigned returns a certificate for 127.0.0.1 and its PEM form.
func selfSigned(t *testing.T) (tls.Certificate, string) {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)

	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA:                  true,
		BasicConstraintsValid: true,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)

	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestMachineJoinsOverTLSOnlyWhenItTrustsTheCertificate(t *testing.T) {
	certificate, root := selfSigned(t)

	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	o := omnitest.New()
	t.Cleanup(o.Stop)
	o.Serve(tls.NewListener(listener, &tls.Config{
		Certificates: []tls.Certificate{certificate}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS12,
	}))

	api := fmt.Sprintf("apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: https://%s?jointoken=%s\n", listener.Addr(), omnitest.Token)
	trust := "---\napiVersion: v1alpha1\nkind: TrustedRootsConfig\nname: lab\ncertificates: |\n    " + strings.ReplaceAll(root, "\n", "\n    ") + "\n"

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	failed := make(chan error, 100)
	stranger := &talos.Machine{UUID: id, UserData: []byte(api), Observe: func(s talos.Status) {
		if s.Err != nil {
			failed <- s.Err
		}
	}}
	on, cut := context.WithCancel(ctx)
	ended := make(chan error, 2)

	go func() { ended <- stranger.Run(on) }()

	require.ErrorContains(t, omnitest.Await(ctx, t, failed, "failure"), "certificate signed by unknown authority")
	require.Empty(t, o.Calls())

	friend := &talos.Machine{UUID: id, UserData: []byte(api + trust)}

	go func() { ended <- friend.Run(on) }()

	require.Equal(t, id, omnitest.Await(ctx, t, o.Reports, "report").UUID)

	cut()
	require.ErrorIs(t, omnitest.Await(ctx, t, ended, "end of Run"), context.Canceled)
	require.ErrorIs(t, omnitest.Await(ctx, t, ended, "end of Run"), context.Canceled)
}

func TestTrustedRootThatIsNoCertificateIsAnError(t *testing.T) {
	_, err := talos.Dial(t.Context(), "https://omni.example:443", []string{"PEM"})
	require.ErrorContains(t, err, "no PEM certificate")

	_, err = talos.Dial(t.Context(), "omni.example:443", nil)
	require.ErrorContains(t, err, `"omni.example:443" has no scheme`)
}
