package driver

import (
	"crypto/sha256"
	"fmt"
	"net"

	"github.com/google/uuid"
)

// namespace is the UUIDv5 namespace of all derived machine UUIDs. It is part of the contract with machines that exist:
// another value would lose them.
var namespace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/omni-infra/omni-infra-providers"))

// Identity is what the library derives for a machine from provider id and request id, the same in every process and version.
type Identity struct {
	// UUID is a UUIDv5 in lower-case canonical form; clouds that can set the SMBIOS UUID set this one.
	UUID string
	// Hostname is the request's id.
	Hostname string

	ref Ref
}

// NewIdentity derives the identity of ref's machine.
func NewIdentity(ref Ref) Identity {
	return Identity{
		UUID:     uuid.NewSHA1(namespace, []byte(ref.String())).String(),
		Hostname: ref.RequestID,
		ref:      ref,
	}
}

// MAC returns the hardware address of network interface number index: locally administered, unicast, and stable.
func (id Identity) MAC(index int) net.HardwareAddr {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/nic/%d", id.ref, index))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&^0x01 | 0x02

	return mac
}

// CanonicalUUID returns s in lower-case canonical form, or an error for anything that is not a UUID of one machine: the
// values that firmware vendors ship on every board are refused.
func CanonicalUUID(s string) (string, error) {
	id, err := uuid.Parse(s)
	if err != nil {
		return "", fmt.Errorf("parse machine UUID %q: %w", s, err)
	}

	switch canonical := id.String(); canonical {
	case "00000000-0000-0000-0000-000000000000",
		"ffffffff-ffff-ffff-ffff-ffffffffffff",
		"03000200-0400-0500-0006-000700080009":
		return "", fmt.Errorf("machine UUID %q is a placeholder that many machines share; a UUID of its own is needed", canonical)
	default:
		return canonical, nil
	}
}
