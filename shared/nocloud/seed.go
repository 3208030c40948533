// Package nocloud makes the NoCloud seed that Talos reads at its first boot: who the machine is, how its network is set up and
// how it joins Omni. Providers hand the seed over as a small ISO image, over HTTP, or document by document.
//
// The documents are those that Talos' nocloud platform looks for, in its spelling:
// https://cloudinit.readthedocs.io/en/latest/reference/datasources/nocloud.html.
package nocloud

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// The documents of a seed, by the names under which Talos looks for them.
const (
	MetaData      = "meta-data"
	UserData      = "user-data"
	NetworkConfig = "network-config"
)

// MaxUserData is the largest user data that a seed takes, in bytes. Clouds that carry user data in their own API have smaller
// limits and check them themselves.
const MaxUserData = 1 << 20

// Config is what one machine is told.
type Config struct {
	// Hostname is the machine's name, the request's id. It is the instance id too: the seed of a machine never changes.
	Hostname string
	// UserData is the Talos configuration with which the machine joins Omni. It is secret.
	UserData string
	// Interfaces are the network interfaces to configure. An interface that is not listed gets its address by DHCP, so an empty
	// list is DHCP everywhere.
	Interfaces []Interface
}

// Seed holds the finished documents. It contains the join token, so it prints as a placeholder.
type Seed struct {
	metaData, userData, networkConfig []byte
}

// New makes the seed of one machine. The same config gives the same bytes. A config that no machine could boot with is a
// Terminal error that names the field and shows no user data.
func New(config Config) (Seed, error) {
	if err := CheckHostname(config.Hostname); err != nil {
		return Seed{}, fmt.Errorf("make the NoCloud seed: %w", err)
	}

	if err := checkUserData(config.UserData); err != nil {
		return Seed{}, driver.Terminalf("make the NoCloud seed of %q: %w", config.Hostname, err)
	}

	network, err := networkConfig(config.Interfaces)
	if err != nil {
		return Seed{}, driver.Terminalf("make the NoCloud seed of %q: %w", config.Hostname, err)
	}

	meta, err := yaml.Marshal(struct {
		InstanceID string `yaml:"instance-id"`
		Hostname   string `yaml:"local-hostname"`
	}{config.Hostname, config.Hostname})
	if err != nil {
		return Seed{}, fmt.Errorf("encode %s: %w", MetaData, err)
	}

	return Seed{metaData: meta, userData: []byte(config.UserData), networkConfig: network}, nil
}

// Document returns the document of that name, MetaData, UserData or NetworkConfig, and whether there is one.
func (s Seed) Document(name string) ([]byte, bool) {
	switch name {
	case MetaData:
		return s.metaData, true
	case UserData:
		return s.userData, true
	case NetworkConfig:
		return s.networkConfig, true
	default:
		return nil, false
	}
}

// ISO returns the seed as an ISO 9660 image with the label "cidata", by which Talos finds it.
func (s Seed) ISO() []byte {
	return isoImage("cidata", []isoFile{
		{name: MetaData, data: s.metaData},
		{name: NetworkConfig, data: s.networkConfig},
		{name: UserData, data: s.userData},
	})
}

// String hides the join token from careless formatting.
func (Seed) String() string { return "[NoCloud seed]" }

// GoString hides the join token from careless formatting.
func (s Seed) GoString() string { return s.String() }

// SMBIOSSerial returns the SMBIOS system serial number that tells Talos to fetch its seed from the folder at base, an HTTP
// or HTTPS URL. The serial number can be read by everyone who sees the machine's definition: base must hold no secret.
func SMBIOSSerial(base string) (string, error) {
	u, err := url.Parse(base)

	switch {
	case err != nil:
		// The whole error would repeat the URL, which may hold a password.
		return "", fmt.Errorf("parse the seed's URL: %w", errors.Unwrap(err))
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", fmt.Errorf("seed URL %q: want http://HOST/PATH/ or https://HOST/PATH/", u.Redacted())
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Contains(base, ";"):
		return "", fmt.Errorf("seed URL %q: user, query, fragment and semicolons cannot be passed on in a serial number", u.Redacted())
	}

	return "ds=nocloud-net;s=" + strings.TrimSuffix(base, "/") + "/", nil
}

var label = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

// CheckHostname holds a name to RFC 1123 and returns a Terminal error for one that breaks it: Talos would refuse its whole
// network configuration. Drivers call it before they make anything.
func CheckHostname(name string) error {
	for part := range strings.SplitSeq(name, ".") {
		if !label.MatchString(part) || len(name) > 253 {
			return driver.Terminalf("hostname %q: want letters, digits and dashes, at most 63 in a part, no dash at either end", name)
		}
	}

	return nil
}

// checkUserData refuses what Talos would take for no configuration at all: it would boot and wait for ever.
func checkUserData(data string) error {
	first, _, _ := strings.Cut(data, "\n")

	switch first = strings.TrimSpace(first); {
	case strings.TrimSpace(data) == "":
		return fmt.Errorf("user data is empty: want a Talos configuration, without it the machine cannot join")
	case first == "#cloud-config", first == "#include":
		return fmt.Errorf("user data begins with %q: want a Talos configuration, Talos does not read cloud-init's", first)
	case len(data) > MaxUserData:
		return fmt.Errorf("user data has %d bytes: want at most %d", len(data), MaxUserData)
	default:
		return nil
	}
}
