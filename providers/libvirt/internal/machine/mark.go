package machine

import (
	"encoding/xml"
	"fmt"
	"time"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// MarkNamespace is that of our element in a domain's metadata, MarkPrefix its prefix there. Machines that exist carry it: it never
// changes.
const (
	MarkNamespace = "https://github.com/omni-infra/omni-infra-providers/libvirt/machine/1"
	MarkPrefix    = "omni"
	markElement   = "machine"
)

// Mark is the ownership mark: the element in a domain's metadata that says whose machine it is. The same text begins the seed.
//
// A mark alone is not enough, as cloning a domain copies it: a domain is ours when its UUID is the one that provider id and
// request id give, or that of a machine that was adopted.
type Mark struct {
	XMLName  xml.Name
	Provider string `xml:"provider,attr"`
	Request  string `xml:"request,attr"`
	// Set is the MachineRequestSet, empty for a request without a set.
	Set string `xml:"set,attr,omitempty"`
	// Pool is where the machine's volumes are, but for the disks in DiskPools.
	Pool string `xml:"pool,attr"`
	// Version is that of the provider that made the machine.
	Version string `xml:"version,attr"`
	// Created is when the domain was first defined.
	Created time.Time `xml:"created,attr"`
	// Boot is what an earlier release noted of reboots.
	Boot string `xml:"boot,attr,omitempty"`
	// Rebooting is since when the machine is shut down to be started again; empty when it is not. See RebootingSince.
	Rebooting string `xml:"rebooting,attr,omitempty"`
	// UUID is that of a machine that another program made and this one has adopted, and Volumes are all that belong to it, since
	// their names are that program's. They are empty for a machine of the provider's own making.
	UUID    string      `xml:"uuid,attr,omitempty"`
	Volumes []VolumeRef `xml:"volume"`
	// Autostart is "no" for a machine that does not start with its host; see StartsWithHost.
	Autostart string `xml:"autostart,attr,omitempty"`
	// Making says that its disks may be half made: whatever there is of them has never been used.
	Making bool `xml:"making,attr,omitempty"`
	// DiskPools are the other pools that have a disk of the machine.
	DiskPools []string `xml:"disk-pool,omitempty"`
	// Labels are those of the class.
	Labels []Label `xml:"label,omitempty"`
}

// NewMark returns the mark of a request's machine, made at that time by that version of the provider.
func NewMark(req driver.Request, data ClassData, version string, created time.Time) Mark {
	m := Mark{
		Provider: req.ProviderID, Request: req.RequestID, Set: req.Set, Version: version, Created: created.UTC().Truncate(time.Second),
		Pool: data.StoragePool, DiskPools: data.Pools()[1:], Labels: data.Labels,
	}

	if !data.Autostart {
		m.Autostart = "no"
	}

	return m
}

// SetRebooting says since when the machine is shut down to be started again; the zero time says that it is not.
func (m *Mark) SetRebooting(since time.Time) {
	m.Rebooting = ""

	if !since.IsZero() {
		m.Rebooting = since.UTC().Format(time.RFC3339)
	}
}

// RebootingSince returns since when the machine is shut down to be started again, the zero time when it is not.
func (m Mark) RebootingSince() time.Time {
	since, err := time.Parse(time.RFC3339, m.Rebooting)
	if err != nil {
		return time.Time{}
	}

	return since
}

// StartsWithHost says whether the machine, once switched on, is started with its host.
func (m Mark) StartsWithHost() bool { return m.Autostart != "no" }

// Pools are all pools that have a volume of the machine.
func (m Mark) Pools() []string { return append([]string{m.Pool}, m.DiskPools...) }

// Ref is the request whose machine it is.
func (m Mark) Ref() driver.Ref { return driver.Ref{ProviderID: m.Provider, RequestID: m.Request} }

// Owns says whether a domain or seed with that mark and UUID belongs to its request.
func (m Mark) Owns(uuid string) bool {
	if m.Adopted() {
		return m.UUID == uuid
	}

	return driver.NewIdentity(m.Ref()).UUID == uuid
}

// Adopted says whether another program made the machine.
func (m Mark) Adopted() bool { return m.UUID != "" }

// Element is the mark as the XML element that MarkNamespace names.
func (m Mark) Element() (string, error) {
	m.XMLName = xml.Name{Space: MarkNamespace, Local: markElement}

	out, err := xml.Marshal(m)
	if err != nil {
		return "", fmt.Errorf("encode the mark of %q: %w", m.Ref(), err)
	}

	return string(out), nil
}

// ParseMark reads the element, with or without its namespace: libvirt takes that off when it is asked for the element.
func ParseMark(element string) (Mark, error) {
	var m Mark
	if err := xml.Unmarshal([]byte(element), &m); err != nil {
		return Mark{}, fmt.Errorf("read the ownership mark: %w", err)
	}

	if m.XMLName.Local != markElement {
		return Mark{}, fmt.Errorf("read the ownership mark: got element %q, want %q", m.XMLName.Local, markElement)
	}

	return m, nil
}
