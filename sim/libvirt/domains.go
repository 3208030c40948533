package libvirt

import (
	"cmp"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"libvirt.org/go/libvirt"
)

// DomainDefineXML defines a domain, or defines one anew that has the same name and UUID.
func (c *Connect) DomainDefineXML(xml string) (*Domain, error) {
	return c.define("Connect.DomainDefineXML", xml, 0)
}

// DomainDefineXMLFlags is DomainDefineXML, and checks the document strictly when the flags say so.
func (c *Connect) DomainDefineXMLFlags(xml string, flags libvirt.DomainDefineFlags) (*Domain, error) {
	return c.define("Connect.DomainDefineXMLFlags", xml, flags)
}

func (c *Connect) define(op, xml string, flags libvirt.DomainDefineFlags) (*Domain, error) {
	return call(c, request{op: op, object: nameIn(xml), body: xml}, func() (*Domain, error) {
		m, err := c.h.defineLocked(xml, flags&libvirt.DOMAIN_DEFINE_VALIDATE != 0)
		if err != nil {
			return nil, err
		}

		return c.h.domainHandleLocked(c, m), nil
	})
}

// DomainCreateXML starts a domain that lasts until it is switched off. One that is defined runs with this description once.
func (c *Connect) DomainCreateXML(xml string, flags libvirt.DomainCreateFlags) (*Domain, error) {
	return call(c, request{op: "Connect.DomainCreateXML", object: nameIn(xml), body: xml}, func() (*Domain, error) {
		m, err := c.h.createTransientLocked(xml, flags)
		if err != nil {
			return nil, err
		}

		return c.h.domainHandleLocked(c, m), nil
	})
}

// LookupDomainByName returns a handle of the domain of that name.
func (c *Connect) LookupDomainByName(name string) (*Domain, error) {
	return call(c, request{op: "Connect.LookupDomainByName", object: name}, func() (*Domain, error) {
		m := c.h.domainNamedLocked(name)
		if m == nil {
			return nil, failure(libvirt.ERR_NO_DOMAIN, libvirt.FROM_QEMU, "Domain not found: no domain with matching name '%s'", name)
		}

		return c.h.domainHandleLocked(c, m), nil
	})
}

// LookupDomainByUUIDString returns a handle of the domain of that UUID.
func (c *Connect) LookupDomainByUUIDString(id string) (*Domain, error) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return nil, invalidUUID(libvirt.FROM_DOMAIN)
	}

	return c.lookupDomain("Connect.LookupDomainByUUIDString", parsed.String())
}

// LookupDomainByUUID returns a handle of the domain of that UUID, in 16 bytes.
func (c *Connect) LookupDomainByUUID(id []byte) (*Domain, error) {
	parsed, err := uuid.FromBytes(id)
	if err != nil {
		return nil, invalidUUID(libvirt.FROM_DOMAIN)
	}

	return c.lookupDomain("Connect.LookupDomainByUUID", parsed.String())
}

func (c *Connect) lookupDomain(op, id string) (*Domain, error) {
	return call(c, request{op: op, object: id}, func() (*Domain, error) {
		m, ok := c.h.domains[id]
		if !ok {
			return nil, failure(libvirt.ERR_NO_DOMAIN, libvirt.FROM_QEMU, "Domain not found: no domain with matching uuid '%s'", id)
		}

		return c.h.domainHandleLocked(c, m), nil
	})
}

// LookupDomainById returns a handle of the domain that is on and has that id.
func (c *Connect) LookupDomainById(id uint32) (*Domain, error) { //nolint:revive // libvirt calls it so.
	return call(c, request{op: "Connect.LookupDomainById"}, func() (*Domain, error) {
		for _, m := range c.h.domains {
			if m.id == int(id) {
				return c.h.domainHandleLocked(c, m), nil
			}
		}

		return nil, failure(libvirt.ERR_NO_DOMAIN, libvirt.FROM_QEMU, "Domain not found: no domain with matching id %d", id)
	})
}

// ListAllDomains returns handles of the domains that the flags pick: of each group of flags one has to fit, and a group of which
// none is given fits all.
func (c *Connect) ListAllDomains(flags libvirt.ConnectListAllDomainsFlags) ([]Domain, error) {
	return call(c, request{op: "Connect.ListAllDomains"}, func() ([]Domain, error) {
		var out []Domain

		for _, m := range c.h.domainsLocked() {
			if !m.fits(flags) {
				continue
			}

			if m.hidden > 0 {
				m.hidden--

				continue
			}

			out = append(out, *c.h.domainHandleLocked(c, m))
		}

		return out, nil
	})
}

// domainsLocked returns all domains by their names.
func (h *Hypervisor) domainsLocked() []*machine {
	return slices.SortedFunc(maps.Values(h.domains), func(a, b *machine) int { return cmp.Compare(a.name, b.name) })
}

// fits says whether the flags of a list pick the domain.
func (m *machine) fits(flags libvirt.ConnectListAllDomainsFlags) bool {
	running := m.state == libvirt.DOMAIN_RUNNING
	paused := m.state == libvirt.DOMAIN_PAUSED
	off := m.state == libvirt.DOMAIN_SHUTOFF

	for _, group := range []map[libvirt.ConnectListAllDomainsFlags]bool{
		{libvirt.CONNECT_LIST_DOMAINS_ACTIVE: m.active(), libvirt.CONNECT_LIST_DOMAINS_INACTIVE: !m.active()},
		{libvirt.CONNECT_LIST_DOMAINS_PERSISTENT: m.persistent(), libvirt.CONNECT_LIST_DOMAINS_TRANSIENT: !m.persistent()},
		{
			libvirt.CONNECT_LIST_DOMAINS_RUNNING: running, libvirt.CONNECT_LIST_DOMAINS_PAUSED: paused,
			libvirt.CONNECT_LIST_DOMAINS_SHUTOFF: off, libvirt.CONNECT_LIST_DOMAINS_OTHER: !running && !paused && !off,
		},
		{libvirt.CONNECT_LIST_DOMAINS_MANAGEDSAVE: m.managedSave, libvirt.CONNECT_LIST_DOMAINS_NO_MANAGEDSAVE: !m.managedSave},
		{libvirt.CONNECT_LIST_DOMAINS_AUTOSTART: m.autostart, libvirt.CONNECT_LIST_DOMAINS_NO_AUTOSTART: !m.autostart},
		{libvirt.CONNECT_LIST_DOMAINS_HAS_SNAPSHOT: len(m.snapshots) > 0, libvirt.CONNECT_LIST_DOMAINS_NO_SNAPSHOT: len(m.snapshots) == 0},
		{
			libvirt.CONNECT_LIST_DOMAINS_HAS_CHECKPOINT: len(m.checkpoints) > 0,
			libvirt.CONNECT_LIST_DOMAINS_NO_CHECKPOINT:  len(m.checkpoints) == 0,
		},
	} {
		asked, fits := false, false

		for flag, is := range group {
			asked = asked || flags&flag != 0
			fits = fits || flags&flag != 0 && is
		}

		if asked && !fits {
			return false
		}
	}

	return true
}

func invalidUUID(from libvirt.ErrorDomain) error {
	return failure(libvirt.ERR_INVALID_ARG, from, "Invalid UUID")
}

// newUUID draws a UUID; the host's draws are the same in every run.
func (h *Hypervisor) newUUID() string {
	h.random++

	return uuid.NewSHA1(uuid.NameSpaceOID, []byte(h.opts.Hostname+hex.EncodeToString([]byte{byte(h.random), byte(h.random >> 8)}))).String()
}

// nameIn finds the name in a document, for the books.
func nameIn(xml string) string {
	_, rest, _ := strings.Cut(xml, "<name>")
	name, _, _ := strings.Cut(rest, "</name>")

	return name
}
