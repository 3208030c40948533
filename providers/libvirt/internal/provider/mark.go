package provider

import (
	"encoding/xml"
	"fmt"
	"time"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// The namespace of our element in a domain's metadata. Machines that exist carry it: it never changes.
const (
	markNamespace = "https://github.com/omni-infra/omni-infra-providers/libvirt/machine/1"
	markPrefix    = "omni"
	markElement   = "machine"
)

// mark is the ownership mark: the element in a domain's metadata that says whose machine it is. The same text ends the seed.
//
// A mark alone is not enough, as cloning a domain copies it: a domain is ours when its UUID is the one that provider id and
// request id give.
type mark struct {
	XMLName  xml.Name
	Provider string `xml:"provider,attr"`
	Request  string `xml:"request,attr"`
	// Set is the MachineRequestSet, empty for a request without a set.
	Set string `xml:"set,attr,omitempty"`
	// Pool is where the machine's volumes are.
	Pool string `xml:"pool,attr"`
	// Version is that of the provider that made the machine.
	Version string `xml:"version,attr"`
	// Created is when the domain was first defined.
	Created time.Time `xml:"created,attr"`
	// Boot is new after each reboot that the provider has made; libvirt numbers starts only.
	Boot string `xml:"boot,attr,omitempty"`
}

func (m mark) ref() driver.Ref { return driver.Ref{ProviderID: m.Provider, RequestID: m.Request} }

// owns says whether a domain or seed with that mark and UUID belongs to its request.
func (m mark) owns(uuid string) bool { return driver.NewIdentity(m.ref()).UUID == uuid }

func (m mark) element() (string, error) {
	m.XMLName = xml.Name{Space: markNamespace, Local: markElement}

	out, err := xml.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("encode the mark of %q: %w", m.ref(), err)
	}

	return string(out), nil
}

// parseMark reads the element, with or without its namespace: libvirt takes that off when it is asked for the element.
func parseMark(element string) (mark, error) {
	var m mark
	if err := xml.Unmarshal([]byte(element), &m); err != nil {
		return mark{}, fmt.Errorf("read the ownership mark: %w", err)
	}

	if m.XMLName.Local != markElement {
		return mark{}, fmt.Errorf("read the ownership mark: got element %q, want %q", m.XMLName.Local, markElement)
	}

	return m, nil
}
