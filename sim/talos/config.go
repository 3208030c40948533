package talos

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"github.com/siderolabs/talos/pkg/machinery/constants"
)

// JoinConfig is what a machine found out about where it belongs.
type JoinConfig struct {
	Endpoint
	// Source says in words where the endpoint was found.
	Source string
	// UniqueToken is the one of the machine config; that of META goes before it.
	UniqueToken string
	// Roots are PEM certificates that the machine config adds to those the machine trusts.
	Roots []string
	// Hostname is empty when no source names one.
	Hostname string
}

// source is one place where a machine config may be; data is nil when there is none.
type source struct {
	name string
	data []byte
}

// FindJoinConfig looks where Talos looks: the machine config out of the image, the kernel argument talos.config.early, the
// platform, the kernel argument talos.config.inline, of which a later one that has a SideroLinkConfig wins; then, when none of
// them says where Omni is, the kernel argument siderolink.api. The result's Target is empty when nothing does.
//
// An error means that Talos would hang in its boot and try again: a seed that cannot be fetched, a machine config that Talos'
// loader refuses. As in Talos the kernel argument works nevertheless: the result is then usable together with the error.
func (m *Machine) FindJoinConfig(ctx context.Context) (JoinConfig, error) {
	found, err := m.findMachineConfig(ctx)
	if found.Target != "" || errors.Is(err, errNoNetwork) {
		return found, redact(err)
	}

	if value := m.Cmdline.First(constants.KernelParamSideroLink); value != "" {
		endpoint, parseErr := ParseEndpoint(value)
		if parseErr != nil {
			return found, errors.Join(redact(err), fmt.Errorf("kernel argument %s: %w", constants.KernelParamSideroLink, parseErr))
		}

		found.Endpoint, found.Source = endpoint, "kernel argument "+constants.KernelParamSideroLink
	}

	return found, redact(err)
}

// errNoNetwork says that the seed's network-config leaves the machine without network.
var errNoNetwork = errors.New("the machine has no network")

func (m *Machine) findMachineConfig(ctx context.Context) (JoinConfig, error) {
	var found JoinConfig

	early, err := m.Cmdline.config(constants.KernelParamConfigEarly)
	if err != nil {
		return found, err
	}

	seed, hostname, err := m.platform(ctx)
	if err != nil {
		return found, err
	}

	found.Hostname = hostname

	if seed.NetworkConfig != nil {
		if err = CheckNetworkConfig(seed.NetworkConfig); err != nil {
			return found, fmt.Errorf("%w: %w", errNoNetwork, err)
		}
	}

	late, err := m.Cmdline.config(constants.KernelParamConfigInline)
	if err != nil {
		return found, err
	}

	for _, source := range []source{
		{"machine config in the image", m.Embedded},
		{"kernel argument " + constants.KernelParamConfigEarly, early},
		{"user data", seed.UserData},
		{"kernel argument " + constants.KernelParamConfigInline, late},
	} {
		if source.data == nil {
			continue
		}

		if err = found.merge(source); err != nil {
			return found, err
		}
	}

	return found, nil
}

// platform returns the seed, and the host name that it or the serial number gives.
func (m *Machine) platform(ctx context.Context) (Seed, string, error) {
	if m.UserData != nil {
		return Seed{UserData: m.UserData}, "", nil
	}

	var (
		seed   Seed
		err    error
		serial = ParseSerial(m.Serial)
	)

	switch {
	case serial.URL != "":
		client := m.HTTP
		if client == nil {
			client = http.DefaultClient
		}

		if seed, err = fetchSeed(ctx, client, serial.URL); err != nil {
			return seed, "", fmt.Errorf("fetch seed named by the serial number: %w", err)
		}
	case m.Volume != nil:
		volume, err := m.Volume()

		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return seed, "", fmt.Errorf("read volume labelled cidata: %w", err)
		default:
			seed = ReadSeed(volume)
		}
	}

	if first, _, _ := bytes.Cut(seed.UserData, []byte("\n")); string(bytes.TrimSpace(first)) == "#cloud-config" {
		seed.UserData = nil // Talos does not read cloud-config and takes it for no config.
	}

	metaData := ParseMetaData(seed.MetaData)

	for _, hostname := range []string{serial.Hostname, metaData.Hostname, metaData.LocalHostname} {
		if hostname != "" {
			return seed, hostname, nil
		}
	}

	return seed, "", nil
}

// merge takes over what the machine config of source says, decoded by Talos' own loader.
func (c *JoinConfig) merge(source source) error {
	data, err := unzip(source.data)
	if err != nil {
		return fmt.Errorf("decode %s: %w", source.name, err)
	}

	provider, err := configloader.NewFromBytes(data)
	if err != nil {
		return fmt.Errorf("decode %s: %w", source.name, err)
	}

	if _, err = provider.Validate(cloudMode{}); err != nil {
		return fmt.Errorf("validate %s: %w", source.name, err)
	}

	c.Roots = append(c.Roots, provider.TrustedRoots().ExtraTrustedRootCertificates()...)

	sideroLink := provider.SideroLink()
	if sideroLink == nil || sideroLink.APIUrl() == nil {
		return nil
	}

	if c.Endpoint, err = ParseEndpoint(sideroLink.APIUrl().String()); err != nil {
		return fmt.Errorf("SideroLinkConfig in %s: %w", source.name, err)
	}

	c.Source, c.UniqueToken = "SideroLinkConfig in "+source.name, sideroLink.UniqueToken()

	return nil
}

func unzip(data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		return data, nil
	}

	reader, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}

	return io.ReadAll(io.LimitReader(reader, maxConfig))
}

// cloudMode is the validation mode of a machine on a cloud platform.
type cloudMode struct{}

func (cloudMode) String() string        { return "cloud" }
func (cloudMode) RequiresInstall() bool { return false }
func (cloudMode) InContainer() bool     { return false }
