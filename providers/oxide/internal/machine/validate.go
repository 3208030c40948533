package machine

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/blang/semver/v4"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
)

// Limits of the rack that no tag can say.
const (
	mostDistributed = 1023
	// MaxUserData is how many bytes of user data an instance may have, before they are encoded.
	MaxUserData = 32 << 10

	maxName     = 63
	maxHostname = 253
	maxLabel    = 63
)

// oldestTalos is the first release whose NoCloud image boots on a rack as it is.
var oldestTalos = semver.MustParse("1.12.0-alpha.0")

var (
	nameRule = regexp.MustCompile(`^[a-z]([a-zA-Z0-9-]*[a-zA-Z0-9])?$`)
	uuidRule = regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`)
	hostRule = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?$`)
)

type note = func(format string, args ...any)

// Validate checks the rules across fields.
func (c ClassData) Validate() error {
	var errs []error

	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	checkNameOrID(add, "project", c.Project)
	c.validateDisks(add)
	c.validateNetworks(add)
	c.validateExternalIPs(add)
	distinct(add, "anti_affinity_groups", c.AntiAffinityGroups)
	distinct(add, "ssh_keys", c.SSHKeys)

	if err := checkHostname(c.hostname("request")); err != nil {
		add("hostname: got %q: %w", c.Hostname, err)
	}

	for i, patch := range c.ConfigPatches {
		if err := omni.ValidateConfigPatch([]byte(patch)); err != nil {
			add("config_patches[%d]: not a patch of Talos' configuration that Omni takes: %s", i, strings.Join(strings.Fields(err.Error()), " "))
		}
	}

	return errors.Join(errs...)
}

func (c ClassData) validateDisks(add note) {
	for i, disk := range c.Disks {
		if disk.Type != diskLocal && disk.Size > mostDistributed {
			add("disks[%d].size: got %d GiB, but a distributed disk has at most %d", i, disk.Size, mostDistributed)
		}
	}
}

func (c ClassData) validateNetworks(add note) {
	for i, nic := range c.NetworkInterfaces {
		checkName(add, fmt.Sprintf("network_interfaces[%d].vpc_name", i), nic.VPCName)
		checkName(add, fmt.Sprintf("network_interfaces[%d].subnet_name", i), nic.SubnetName)

		if first := c.NetworkInterfaces[0].VPCName; nic.VPCName != first {
			add("network_interfaces[%d].vpc_name: got %q, but network_interfaces[0] is in %q: a machine is in one VPC", i, nic.VPCName, first)
		}

		for j := range i {
			if other := c.NetworkInterfaces[j]; other.SubnetName == nic.SubnetName {
				add("network_interfaces[%d].subnet_name: %q is that of network_interfaces[%d]: each interface needs a subnet of its own", i, nic.SubnetName, j)

				break
			}
		}

		for j, text := range nic.TransitIPs {
			prefix, err := netip.ParsePrefix(text)

			switch {
			case err != nil || prefix != prefix.Masked():
				add("network_interfaces[%d].transit_ips[%d]: got %q, want a network like 10.244.0.0/16", i, j, text)
			case nic.IPConfig == v4 && !prefix.Addr().Is4(), nic.IPConfig == v6 && prefix.Addr().Is4():
				add("network_interfaces[%d].transit_ips[%d]: got %q, but ip_config is %s", i, j, text, nic.IPConfig)
			}
		}
	}
}

func (c ClassData) validateExternalIPs(add note) {
	ephemeral := map[string]int{}
	names := map[string]int{}

	for i, ip := range c.ExternalIPs {
		field := fmt.Sprintf("external_ips[%d]", i)

		if ip.Pool != "" {
			checkNameOrID(add, field+".pool", ip.Pool)

			if ip.IPVersion != "" {
				add("%s.ip_version: got %q, but pool is %q, which has a version of its own: want one of the two", field, ip.IPVersion, ip.Pool)
			}
		}

		if ip.IPVersion != "" && !c.has(ip.IPVersion) {
			add("%s.ip_version: got %q, but no network interface has an address of that version: want ip_config %s or %s", field, ip.IPVersion,
				ip.IPVersion, dualStack)
		}

		switch {
		case ip.Kind == Ephemeral && ip.Name != "":
			add("%s.name: got %q, but an ephemeral address has no name: want kind floating", field, ip.Name)
		case ip.Name != "" && (ip.Pool != "" || ip.IPVersion != ""):
			add("%s.name: got %q, a floating IP that exists, whose pool is what it is: want neither pool nor ip_version", field, ip.Name)
		}

		if ip.Name != "" {
			checkNameOrID(add, field+".name", ip.Name)

			if j, ok := names[ip.Name]; ok {
				add("%s.name: %q is that of external_ips[%d]", field, ip.Name, j)
			}

			names[ip.Name] = i
		}

		if ip.Kind == Ephemeral {
			if j, ok := ephemeral[ip.Pool+"/"+ip.IPVersion]; ok {
				add("%s: external_ips[%d] is the same already: a machine has one ephemeral address of each IP version", field, j)
			}

			ephemeral[ip.Pool+"/"+ip.IPVersion] = i
		}
	}

	if len(ephemeral) > 2 {
		add("external_ips: got %d ephemeral addresses: a machine has at most two, one of each IP version", len(ephemeral))
	}
}

// has says whether an interface has an address of that IP version.
func (c ClassData) has(version string) bool {
	return slices.ContainsFunc(c.NetworkInterfaces, func(nic NetworkInterface) bool { return nic.IPConfig == version || nic.IPConfig == dualStack })
}

func distinct(add note, field string, names []string) {
	seen := map[string]int{}

	for i, name := range names {
		checkNameOrID(add, fmt.Sprintf("%s[%d]", field, i), name)

		if j, ok := seen[name]; ok {
			add("%s[%d]: %q is that of %s[%d]", field, i, name, field, j)
		}

		seen[name] = i
	}
}

const nameWords = "letters, digits and dashes, a lower-case letter first and no dash last, at most 63"

func checkName(add note, field, name string) {
	if !validName(name) {
		add("%s: got %q, which is no name on a rack: want %s", field, name, nameWords)
	}
}

func checkNameOrID(add note, field, name string) {
	if !validName(name) && !uuidRule.MatchString(name) {
		add("%s: got %q, which is neither a name on a rack nor an id: want %s", field, name, nameWords)
	}
}

func validName(name string) bool {
	return len(name) <= maxName && nameRule.MatchString(name) && !uuidRule.MatchString(name)
}

// hostname is that of a request's machine.
func (c ClassData) hostname(requestID string) string {
	return strings.ReplaceAll(c.Hostname, placeholder, requestID)
}

func checkHostname(name string) error {
	if len(name) > maxHostname {
		return fmt.Errorf("hostname %q has %d characters: want at most %d", name, len(name), maxHostname)
	}

	for label := range strings.SplitSeq(name, ".") {
		if len(label) > maxLabel || !hostRule.MatchString(label) {
			return fmt.Errorf("hostname %q: want between its dots letters, digits and dashes, no dash first or last, at most %d of them", name, maxLabel)
		}
	}

	return nil
}

// CheckRequest refuses requests whose machine could not have its names.
func (c ClassData) CheckRequest(requestID, talosVersion string) error {
	if err := checkHostname(c.hostname(requestID)); err != nil {
		return fmt.Errorf("request id %q: %w", requestID, err)
	}

	version, err := semver.ParseTolerant(talosVersion)
	if err != nil {
		return fmt.Errorf("talos version %q is not valid: want a version like v1.13.5", talosVersion)
	}

	if version.LT(oldestTalos) {
		return fmt.Errorf("talos version %s does not boot on an Oxide rack: want v1.12.0 or later", talosVersion)
	}

	return nil
}

// CheckUserData refuses a join configuration that the rack would not take.
func CheckUserData(text string) error {
	if len(text) > MaxUserData {
		return fmt.Errorf("the join configuration has %d bytes, and an instance takes %d bytes of user data", len(text), MaxUserData)
	}

	return nil
}

// CheckImage refuses a boot disk that the image does not fit on. size is the image's, in bytes.
func (c ClassData) CheckImage(size uint64) error {
	if need := (size + 1<<30 - 1) >> 30; uint64(c.BootDiskSize) < need {
		return fmt.Errorf("boot_disk_size: got %d GiB, but the Talos image has %d GiB: want %d or more", c.BootDiskSize, need, need)
	}

	return nil
}
