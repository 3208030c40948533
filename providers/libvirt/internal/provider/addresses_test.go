package provider

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connectiontest"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// hostWithMachine is a hypervisor with one running machine of a provider "libvirt", made from its interfaces and its agent's state.
func hostWithMachine(t *testing.T, name string, agent bool, interfaces string) (*sim.Hypervisor, hypervisor.Config, driver.Ref) {
	t.Helper()

	h := sim.New(sim.Options{Hostname: name, Boot: func(ctx context.Context, g sim.Guest) {
		g.Agent(agent)
		<-ctx.Done()
	}})
	require.NoError(t, h.AddNetwork(`<network><name>outside</name><forward mode='bridge'/><bridge name='br0'/></network>`))

	ref := driver.Ref{ProviderID: "libvirt", RequestID: "on-" + name}
	element, err := machine.Mark{Provider: ref.ProviderID, Request: ref.RequestID, Pool: "default"}.Element()
	require.NoError(t, err)

	c, err := h.Connect()
	require.NoError(t, err)

	dom, err := c.DomainDefineXML(fmt.Sprintf(`<domain type='kvm'><name>m</name><uuid>%s</uuid><memory unit='MiB'>512</memory><metadata>%s</metadata>
		<os><type arch='x86_64' machine='q35'>hvm</type></os><devices>%s
		<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel></devices></domain>`, driver.NewIdentity(ref).UUID, element, interfaces))
	require.NoError(t, err)
	require.NoError(t, dom.Create())
	require.NoError(t, dom.Free())

	_, err = c.Close()
	require.NoError(t, err)

	return h, hypervisor.Config{Name: name, Config: connection.Config{Open: connectiontest.Open(h.Client()), CallTimeout: 10 * time.Second}}, ref
}

// withAgent is a connection whose guests say what the simulated ones cannot: which addresses they have where libvirt gives none.
type withAgent struct{ connection.Connect }

func (c withAgent) LookupDomainByUUIDString(uuid string) (connection.Domain, error) {
	dom, err := c.Connect.LookupDomainByUUIDString(uuid)

	return agentDomain{dom}, err
}

type agentDomain struct{ connection.Domain }

func (d agentDomain) GetXMLDesc(flags libvirt.DomainXMLFlags) (string, error) {
	desc, err := d.Domain.GetXMLDesc(flags)

	return strings.Replace(desc, "name='org.qemu.guest_agent.0'", "name='org.qemu.guest_agent.0' state='connected'", 1), err
}

func (d agentDomain) ListAllInterfaceAddresses(libvirt.DomainInterfaceAddressesSource) ([]libvirt.DomainInterface, error) {
	return []libvirt.DomainInterface{
		{Name: "lo", Hwaddr: "00:00:00:00:00:00", Addrs: []libvirt.DomainIPAddress{{Addr: "127.0.0.1"}}},
		{Name: "eth0", Hwaddr: "52:54:00:00:00:02", Addrs: []libvirt.DomainIPAddress{{Addr: "10.1.2.3"}, {Addr: "fe80::1"}, {Addr: "fd00::3"}, {Addr: "what"}}},
	}, nil
}

const (
	leased  = `<interface type='network'><mac address='52:54:00:00:00:01'/><source network='default'/></interface>`
	bridged = `<interface type='bridge'><mac address='52:54:00:00:00:02'/><source bridge='br0'/></interface>`
	outside = `<interface type='network'><mac address='52:54:00:00:00:03'/><source network='outside'/></interface>`
)

func TestAddressesComeFromLeasesAndElseFromTheAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, configA, refA := hostWithMachine(t, "a", false, leased+bridged+outside)
		defer a.Close()

		b, configB, refB := hostWithMachine(t, "b", true, bridged)
		defer b.Close()

		open := configB.Open
		configB.Open = func(uri string) (connection.Connect, error) {
			c, err := open(uri)

			return withAgent{c}, err
		}

		d := New(Config{Hosts: []hypervisor.Config{configA, configB}})
		defer d.Close()

		time.Sleep(time.Minute)

		told, err := d.Addresses(t.Context(), "libvirt")
		require.NoError(t, err)
		require.Len(t, told[refA], 3)

		nic := told[refA][0]
		assert.Equal(t, "52:54:00:00:00:01", nic.MAC)
		assert.Equal(t, "lease", nic.Source)
		require.Len(t, nic.IPs, 1)
		assert.True(t, nic.IPs[0].IsPrivate())

		for i, mac := range []string{"52:54:00:00:00:02", "52:54:00:00:00:03"} {
			assert.Equal(t, driver.Interface{MAC: mac, Missing: "no guest agent"}, told[refA][i+1], "libvirt has no DHCP server there")
		}

		assert.Equal(t, []driver.Interface{{
			MAC: "52:54:00:00:00:02", Source: "agent", IPs: []netip.Addr{netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("fd00::3")},
		}}, told[refB], "what every interface has, and the loopback, is left out")

		none, err := d.Addresses(t.Context(), "another")
		require.NoError(t, err)
		assert.Empty(t, none)

		// A host that hangs says nothing of its own machines alone.
		b.Freeze()

		told, err = d.Addresses(t.Context(), "libvirt")
		require.NotNil(t, driver.UnseenOf(err))
		assert.Contains(t, driver.UnseenOf(err).Places, "b")
		assert.Len(t, told[refA], 3)
		assert.NotContains(t, told, refB)
		b.Thaw()
	})
}
