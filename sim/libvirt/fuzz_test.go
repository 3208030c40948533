package libvirt_test

import (
	"testing"

	real "libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// connected is a host without a fake clock, whose calls take no time.
func connected(t *testing.T) (*libvirt.Hypervisor, *libvirt.Connect) {
	t.Helper()

	h := libvirt.New(libvirt.Options{})
	t.Cleanup(h.Close)

	c, err := h.Connect()
	if err != nil {
		t.Fatal(err)
	}

	return h, c
}

// A document is refused, or what it makes can be looked at, started and taken away again.
func FuzzDomain(f *testing.F) {
	f.Add(withSeed)
	f.Add(domainXML("a", diskXML("/x", "qcow2", "vda")))
	f.Add(withOS(domainXML("a", "<interface type='user'/>"), efiOff))
	f.Add("<domain/>")
	f.Fuzz(func(t *testing.T, doc string) {
		_, c := connected(t)

		d, err := c.DomainDefineXMLFlags(doc, real.DOMAIN_DEFINE_VALIDATE)
		if err != nil {
			return
		}

		text, err := d.GetXMLDesc(0)
		if err != nil {
			t.Fatal(err)
		}

		if _, err := c.DomainDefineXML(text); err != nil {
			t.Fatalf("define what was returned: %v\n%s", err, text)
		}

		if d.Create() == nil {
			if err := d.Destroy(); err != nil {
				t.Fatal(err)
			}
		}

		if err := d.UndefineFlags(real.DOMAIN_UNDEFINE_NVRAM); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzVolume(f *testing.F) {
	f.Add(volumeXML("a", "qcow2", 1<<20), []byte("QFI\xfb\x00\x00\x00\x03"))
	f.Add(volumeXML("a", "raw", 1), qcow2(1<<20, "/x"))
	f.Fuzz(func(t *testing.T, doc string, content []byte) {
		_, c := connected(t)

		p, err := c.LookupStoragePoolByName("default")
		if err != nil {
			t.Fatal(err)
		}

		v, err := p.StorageVolCreateXML(doc, 0)
		if err != nil {
			return
		}

		_ = send(c, v, content) // There may be none.

		if _, err := v.GetXMLDesc(0); err != nil {
			t.Fatal(err)
		}

		if err := v.Delete(0); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzMetadata(f *testing.F) {
	f.Add("<m a='1'><n xmlns='urn:n'/>text</m>", "o", "urn:o")
	f.Fuzz(func(t *testing.T, text, key, uri string) {
		_, c := connected(t)

		d, err := c.DomainDefineXML(domainXML("a", ""))
		if err != nil {
			t.Fatal(err)
		}

		if d.SetMetadata(real.DOMAIN_METADATA_ELEMENT, text, key, uri, 0) != nil {
			return
		}

		if _, err := d.GetXMLDesc(0); err != nil {
			t.Fatal(err)
		}

		if err := d.Create(); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzNetwork(f *testing.F) {
	f.Add(networkXML("a", ""), "<host mac='52:00:00:00:00:01' ip='192.168.150.11'/>")
	f.Fuzz(func(t *testing.T, doc, host string) {
		_, c := connected(t)

		n, err := c.NetworkDefineXML(doc)
		if err != nil {
			return
		}

		if err := n.Create(); err != nil {
			return
		}

		_ = n.Update(real.NETWORK_UPDATE_COMMAND_ADD_LAST, real.NETWORK_SECTION_IP_DHCP_HOST, -1, host, 0)

		if _, err := n.GetXMLDesc(0); err != nil {
			t.Fatal(err)
		}
	})
}
