package talos

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/url"
	"regexp"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// maxConfig bounds what a machine reads as configuration from anywhere.
const maxConfig = 4 << 20

// Cmdline is a kernel command line.
type Cmdline string

// Get returns the values of the parameter called name in the order they stand in; a parameter without "=" has the value "".
func (c Cmdline) Get(name string) []string {
	var values []string

	for field := range strings.FieldsSeq(string(c)) {
		if key, value, _ := strings.Cut(field, "="); key == name {
			values = append(values, value)
		}
	}

	return values
}

// First returns the first value of the parameter called name, or "".
func (c Cmdline) First(name string) string {
	if values := c.Get(name); len(values) > 0 {
		return values[0]
	}

	return ""
}

// config returns the machine config that the parameter called name carries: all its values joined, base64 of zstd. It returns
// nil when there is no such parameter.
func (c Cmdline) config(name string) ([]byte, error) {
	values := c.Get(name)
	if len(values) == 0 {
		return nil, nil
	}

	packed, err := base64.StdEncoding.DecodeString(strings.Join(values, ""))
	if err != nil {
		return nil, fmt.Errorf("decode kernel argument %s: %w", name, err)
	}

	reader, err := zstd.NewReader(bytes.NewReader(packed), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxConfig))
	if err != nil {
		return nil, fmt.Errorf("decode kernel argument %s: %w", name, err)
	}
	defer reader.Close()

	data, err := io.ReadAll(io.LimitReader(reader, maxConfig))
	if err != nil {
		return nil, fmt.Errorf("decode kernel argument %s: %w", name, err)
	}

	return data, nil
}

// Endpoint is a SideroLink API address, taken apart.
type Endpoint struct {
	// Target is where to dial, as grpc://HOST:PORT for plain text or https://HOST:PORT for TLS.
	Target string
	// JoinToken is a secret.
	JoinToken string
	// Tunnel asks for WireGuard over gRPC.
	Tunnel bool
}

var hasScheme = regexp.MustCompile(`^[a-zA-Z]+://`)

// ParseEndpoint takes apart the value of the kernel argument siderolink.api or of SideroLinkConfig's apiUrl. As in Talos a
// missing scheme means grpc, and https without a port means 443. The error does not repeat the value, which holds a secret.
func ParseEndpoint(value string) (Endpoint, error) {
	if !hasScheme.MatchString(value) {
		value = "grpc://" + value
	}

	parsed, err := url.Parse(value)
	if err != nil {
		return Endpoint{}, errors.New("siderolink.api is not a URL")
	}

	host := parsed.Host

	switch {
	case parsed.Hostname() == "":
		return Endpoint{}, errors.New("siderolink.api names no host, want grpc://HOST:PORT or https://HOST[:PORT]")
	case parsed.Scheme == "https" && parsed.Port() == "":
		host += ":443"
	case parsed.Scheme != "https" && parsed.Scheme != "grpc":
		return Endpoint{}, fmt.Errorf("siderolink.api has the scheme %q, want grpc or https", parsed.Scheme)
	}

	tunnel := parsed.Query().Get("grpc_tunnel")

	return Endpoint{
		Target:    parsed.Scheme + "://" + host,
		JoinToken: parsed.Query().Get("jointoken"),
		Tunnel:    tunnel == "true" || tunnel == "y",
	}, nil
}

var secrets = regexp.MustCompile(`(?i)((?:jointoken|uniqueToken)["']?\s*[=:]\s*)[^&\s"']+`)

// redact returns err without the tokens that its text may quote from a machine config.
func redact(err error) error {
	if err == nil || !secrets.MatchString(err.Error()) {
		return err
	}

	return errors.New(secrets.ReplaceAllString(err.Error(), "$1***"))
}
