package machine

import (
	"fmt"

	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// ClaimXML describes a domain that is no more than the request's claim on its names: with the mark, and nothing that could run. It
// is defined before any volume is made.
func ClaimXML(req driver.Request, data ClassData, h Host, m Mark) (string, error) {
	n := NamesOf(req.Ref)

	element, err := m.Element()
	if err != nil {
		return "", err
	}

	domain := libvirtxml.Domain{
		Type:     h.Type,
		Name:     n.Domain,
		UUID:     req.Identity.UUID,
		Title:    "Omni machine " + req.RequestID + " (its disks are being made)",
		Metadata: &libvirtxml.DomainMetadata{XML: element},
		Memory:   &libvirtxml.DomainMemory{Value: uint(data.Memory), Unit: "MiB"},
		VCPU:     &libvirtxml.DomainVCPU{Value: 1},
		OS:       &libvirtxml.DomainOS{Type: &libvirtxml.DomainOSType{Arch: ArchName(data.Arch), Machine: Board(data.Arch), Type: "hvm"}},
	}

	out, err := domain.Marshal()
	if err != nil {
		return "", fmt.Errorf("describe the claim of %q: %w", req.Ref, err)
	}

	return out, nil
}
