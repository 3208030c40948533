package talos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"go.yaml.in/yaml/v4"
)

// The file names of a NoCloud seed, on a volume and over HTTP.
const (
	metaDataFile      = "meta-data"
	userDataFile      = "user-data"
	networkConfigFile = "network-config"
)

// Serial is what the SMBIOS serial number of a NoCloud machine says. Fields are separated by semicolons.
type Serial struct {
	// URL is where the seed is served, with a final slash; it is empty unless the serial has both ds=nocloud-net and s=http….
	// Talos takes no other spelling: with ds=nocloud it looks for a volume.
	URL        string
	Hostname   string
	InstanceID string
}

// ParseSerial reads a SMBIOS serial number. Any other serial number, say that of a real mainboard, gives the zero value.
func ParseSerial(serial string) Serial {
	var (
		parsed  Serial
		network bool
		base    string
	)

	for option := range strings.SplitSeq(serial, ";") {
		key, value, ok := strings.Cut(option, "=")
		if !ok {
			continue
		}

		switch key {
		case "ds":
			network = network || value == "nocloud-net"
		case "s":
			if u, err := url.Parse(value); err == nil && strings.HasPrefix(u.Scheme, "http") {
				base = value

				if !strings.HasSuffix(u.Path, "/") {
					base += "/"
				}
			}
		case "h":
			parsed.Hostname = value
		case "i":
			parsed.InstanceID = value
		}
	}

	if network {
		parsed.URL = base
	}

	return parsed
}

// MetaData is what a machine takes from the meta-data of its seed.
type MetaData struct {
	Hostname      string `yaml:"hostname,omitempty"`
	LocalHostname string `yaml:"local-hostname,omitempty"`
	InstanceID    string `yaml:"instance-id,omitempty"`
}

// ParseMetaData reads meta-data. As in Talos a document that does not decode is the same as none.
func ParseMetaData(data []byte) MetaData {
	var parsed MetaData

	if yaml.Unmarshal(data, &parsed) != nil {
		return MetaData{}
	}

	return parsed
}

// Seed is a NoCloud seed; a nil document was not there.
type Seed struct {
	MetaData      []byte
	UserData      []byte
	NetworkConfig []byte
}

// ReadSeed reads the seed on a volume. Files that are missing or cannot be read count as not there.
func ReadSeed(volume fs.FS) Seed {
	read := func(name string) []byte {
		file, err := volume.Open(name)
		if err != nil {
			return nil
		}
		defer file.Close() //nolint:errcheck // Only read from.

		data, err := io.ReadAll(io.LimitReader(file, maxConfig))
		if err != nil {
			return nil
		}

		return data
	}

	return Seed{MetaData: read(metaDataFile), UserData: read(userDataFile), NetworkConfig: read(networkConfigFile)}
}

// fetchSeed reads the seed below base. Only user-data has to be readable; when it is not found or empty there is none.
func fetchSeed(ctx context.Context, client *http.Client, base string) (Seed, error) {
	var (
		seed Seed
		err  error
	)

	seed.MetaData, _ = fetch(ctx, client, base+metaDataFile)
	seed.NetworkConfig, _ = fetch(ctx, client, base+networkConfigFile)

	seed.UserData, err = fetch(ctx, client, base+userDataFile)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && len(seed.UserData) == 0) {
		seed.UserData, err = nil, nil
	}

	return seed, err
}

func fetch(ctx context.Context, client *http.Client, address string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}

	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // Only read from.

	switch {
	case response.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("get %s: %s: %w", address, response.Status, fs.ErrNotExist)
	case response.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("get %s: %s", address, response.Status)
	}

	return io.ReadAll(io.LimitReader(response.Body, maxConfig))
}

// networkConfig is the part of network-config whose errors Talos stumbles over.
type networkConfig struct {
	Version   int                 `yaml:"version"`
	Config    []networkV1         `yaml:"config,omitempty"`
	Ethernets map[string]ethernet `yaml:"ethernets,omitempty"`
}

type networkV1 struct {
	Type    string   `yaml:"type"`
	Address []string `yaml:"address,omitempty"`
	Subnets []struct {
		Type    string `yaml:"type"`
		Address string `yaml:"address,omitempty"`
		Netmask string `yaml:"netmask,omitempty"`
		Gateway string `yaml:"gateway,omitempty"`
	} `yaml:"subnets,omitempty"`
}

type ethernet struct {
	Addresses   []string `yaml:"addresses,omitempty"`
	Gateway4    string   `yaml:"gateway4,omitempty"`
	Gateway6    string   `yaml:"gateway6,omitempty"`
	NameServers struct {
		Addresses []string `yaml:"addresses,omitempty"`
	} `yaml:"nameservers,omitempty"`
	Routes []struct {
		To  string `yaml:"to,omitempty"`
		Via string `yaml:"via,omitempty"`
	} `yaml:"routes,omitempty"`
}

// CheckNetworkConfig says why Talos could not use data as network-config. With such a document its platform network controller
// fails over and over; a simulated machine that is given one stays without network.
func CheckNetworkConfig(data []byte) error {
	var keys map[string]any
	if err := yaml.Unmarshal(data, &keys); err != nil {
		return fmt.Errorf("decode network-config: %w", err)
	}

	var config networkConfig

	// cloud-init's own wrapper is accepted for either version.
	if _, ok := keys["network"]; ok {
		var wrapped struct {
			Network networkConfig `yaml:"network"`
		}

		if err := yaml.Unmarshal(data, &wrapped); err != nil {
			return fmt.Errorf("decode network-config: %w", err)
		}

		config = wrapped.Network
	} else if err := yaml.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("decode network-config: %w", err)
	}

	switch config.Version {
	case 1:
		return checkNetworkV1(config.Config)
	case 2:
		for name, ethernet := range config.Ethernets {
			if err := ethernet.check(); err != nil {
				return fmt.Errorf("network-config: ethernets.%s: %w", name, err)
			}
		}

		return nil
	default:
		return fmt.Errorf("network-config has version %d, want 1 or 2 at its top level", config.Version)
	}
}

func checkNetworkV1(entries []networkV1) error {
	for i, entry := range entries {
		for _, address := range entry.Address {
			if _, err := netip.ParseAddr(address); err != nil && entry.Type == "nameserver" {
				return fmt.Errorf("network-config: config[%d].address: %w", i, err)
			}
		}

		for j, subnet := range entry.Subnets {
			if subnet.Type != "static" && subnet.Type != "static6" {
				continue
			}

			if _, err := netip.ParsePrefix(subnet.Address); err != nil {
				if err = parseAddresses(subnet.Address, subnet.Netmask); err != nil {
					return fmt.Errorf("network-config: config[%d].subnets[%d]: %w", i, j, err)
				}
			}

			if subnet.Gateway != "" {
				if err := parseAddresses(subnet.Gateway); err != nil {
					return fmt.Errorf("network-config: config[%d].subnets[%d].gateway: %w", i, j, err)
				}
			}
		}
	}

	return nil
}

func (e *ethernet) check() error {
	for _, address := range e.Addresses {
		if _, err := netip.ParsePrefix(address); err != nil {
			return fmt.Errorf("addresses: %w", err)
		}
	}

	for _, gateway := range []string{e.Gateway4, e.Gateway6} {
		if gateway != "" {
			if err := parseAddresses(gateway); err != nil {
				return fmt.Errorf("gateway: %w", err)
			}
		}
	}

	if err := parseAddresses(e.NameServers.Addresses...); err != nil {
		return fmt.Errorf("nameservers: %w", err)
	}

	for _, route := range e.Routes {
		if err := parseAddresses(route.Via); err != nil {
			return fmt.Errorf("routes: via: %w", err)
		}

		if _, err := netip.ParsePrefix(route.To); err != nil && route.To != "default" {
			return fmt.Errorf("routes: to: %w", err)
		}
	}

	return nil
}

func parseAddresses(addresses ...string) error {
	for _, address := range addresses {
		if _, err := netip.ParseAddr(address); err != nil {
			return err
		}
	}

	return nil
}
