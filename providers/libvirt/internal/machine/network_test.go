package machine

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

const lab = `<network>
  <name>lab</name>
  <forward mode='nat'/>
  <bridge name='virbr1' stp='on' delay='0'/>
  <ip address='192.168.150.1' netmask='255.255.255.240'>
    <dhcp>
      <range start='192.168.150.2' end='192.168.150.10'/>
      <host mac='52:54:00:AA:00:01' name='printer' ip='192.168.150.14'/>
    </dhcp>
  </ip>
  <ip family='ipv6' address='fd00::1' prefix='64'><dhcp><range start='fd00::10' end='fd00::20'/></dhcp></ip>
</network>`

const vlans = `<network><name>vlans</name><forward mode='bridge'/><bridge name='ovsbr0'/><virtualport type='openvswitch'/>
  <portgroup name='vlan-10' default='yes'><vlan><tag id='10'/></vlan></portgroup><portgroup name='vlan-20'><vlan><tag id='20'/></vlan></portgroup></network>`

func parsed(t *testing.T, desc string) Network {
	t.Helper()

	n, err := ParseNetwork(desc)
	require.NoError(t, err)

	return n
}

func TestNetworksAreReadFromTheirDescriptions(t *testing.T) {
	addr := netip.MustParseAddr

	require.Equal(t, Network{
		Name: "lab", Subnet: netip.MustParsePrefix("192.168.150.0/28"), Gateway: addr("192.168.150.1"),
		Ranges:   []AddressRange{{addr("192.168.150.2"), addr("192.168.150.10")}},
		Reserved: []Reservation{{Network: "lab", MAC: "52:54:00:aa:00:01", Name: "printer", Address: addr("192.168.150.14")}},
	}, parsed(t, lab))
	require.Equal(t, Network{Name: "vlans", Portgroups: []string{"vlan-10", "vlan-20"}, TagsVLANs: true}, parsed(t, vlans))
	require.Equal(t, Network{Name: "x"}, parsed(t, `<network><name>x</name><ip address='10.0.0.1' prefix='0'><dhcp/></ip></network>`))

	_, err := ParseNetwork("<domain/>")
	require.Error(t, err)
}

func TestWhatANetworkCannotDoIsSaidWithItsField(t *testing.T) {
	for _, test := range []struct{ network, nic, want string }{
		{lab, "{}", ""},
		{lab, "{portgroup: vlan-10}", `network_interfaces[0].portgroup: network "lab" has no port group "vlan-10"`},
		{vlans, "{portgroup: vlan-30}", `network_interfaces[0].portgroup: network "vlans" has no port group "vlan-30"; it has vlan-10, vlan-20`},
		{vlans, "{portgroup: vlan-20}", ""},
		{vlans, "{vlan: 7}", ""},
		{lab, "{vlan: 7}", `network_interfaces[0].vlan: network "lab" does not lie on Open vSwitch`},
		{vlans, "{dhcp_reservation: true}", `network_interfaces[0].dhcp_reservation: network "vlans" has no DHCP server`},
		{lab, "{dhcp_reservation: true}", ""},
		{lab, "{dhcp_reservation: true, dhcp_address: 192.168.150.5}", ""},
		{lab, "{dhcp_reservation: true, dhcp_address: 192.168.150.14}", "network_interfaces[0].dhcp_address: 192.168.150.14 is kept for 52:54:00:aa:00:01 printer"},
		{lab, "{dhcp_reservation: true, dhcp_address: 192.168.150.1}", "network_interfaces[0].dhcp_address: got 192.168.150.1, want an address of a machine in 192.168.150.0/28"},
		{lab, "{dhcp_reservation: true, dhcp_address: 192.168.150.15}", "want an address of a machine"},
		{lab, "{dhcp_reservation: true, dhcp_address: 192.168.150.0}", "want an address of a machine"},
		{lab, "{dhcp_reservation: true, dhcp_address: 10.0.0.1}", "want an address of a machine"},
	} {
		err := decode(t, "network_interfaces: ["+test.nic+"]").CheckNetwork(0, parsed(t, test.network), nil)

		if test.want == "" {
			require.NoError(t, err, test.nic)

			continue
		}

		require.ErrorContains(t, err, test.want)
		require.Equal(t, driver.KindTerminal, driver.KindOf(err))
	}

	// Its own entry is not in a machine's way.
	n := parsed(t, lab)
	data := decode(t, "network_interfaces: [{dhcp_reservation: true, dhcp_address: 192.168.150.14}]")
	require.NoError(t, data.CheckNetwork(0, n, n.Reserved))
}

func TestReservedAddressesAreFreeAndStay(t *testing.T) {
	n := parsed(t, lab)
	id := testRequest().Identity
	r := decode(t, "network_interfaces: [{network_name: lab, dhcp_reservation: true}]").Reservations(id)[0]
	require.Equal(t, Reservation{Network: "lab", MAC: id.MAC(0).String(), Name: "workers-x7k2p"}, r)

	// Outside of the range first, from the end, without the one that is taken.
	first, err := n.Choose(r, nil)
	require.NoError(t, err)
	require.Equal(t, "192.168.150.13", first.Address.String())

	element, err := first.XML()
	require.NoError(t, err)
	require.Equal(t, `<host mac="`+r.MAC+`" name="workers-x7k2p" ip="192.168.150.13"><lease expiry="10" unit="minutes"></lease></host>`, element)

	n.Reserved = append(n.Reserved, first)
	again, err := n.Choose(r, nil)
	require.NoError(t, err)
	require.Equal(t, first, again)

	// Every machine gets another one, until there is none.
	seen := map[netip.Addr]bool{first.Address: true}
	leased := []netip.Addr{netip.MustParseAddr("192.168.150.9"), netip.MustParseAddr("192.168.150.12")}

	for i := 1; ; i++ {
		other, err := n.Choose(Reservation{Network: "lab", MAC: id.MAC(i).String()}, leased)
		if err != nil {
			require.Equal(t, driver.KindCapacity, driver.KindOf(err))
			require.ErrorContains(t, err, `network "lab" has no address left`)

			break
		}

		require.True(t, n.Subnet.Contains(other.Address))
		require.False(t, seen[other.Address], other.Address)
		require.NotContains(t, leased, other.Address)
		require.NotEqual(t, n.Gateway, other.Address)

		seen[other.Address] = true
		n.Reserved = append(n.Reserved, other)
	}

	// .2 to .13 but for two leases.
	require.Len(t, seen, 10)
}

func TestReservationsHaveANameOfTheirOwnInEachNetwork(t *testing.T) {
	id := testRequest().Identity
	got := decode(t, "network_interfaces: [{dhcp_reservation: true}, {}, {dhcp_reservation: true, physical_address: '52-54-00-00-00-AA'}, {network_name: lab, dhcp_reservation: true, dhcp_address: 10.0.0.9}]").Reservations(id)

	require.Equal(t, map[int]Reservation{
		0: {Network: "default", MAC: id.MAC(0).String(), Name: id.Hostname},
		2: {Network: "default", MAC: "52:54:00:00:00:aa", Name: id.Hostname + "-2"},
		3: {Network: "lab", MAC: id.MAC(3).String(), Name: id.Hostname, Address: netip.MustParseAddr("10.0.0.9")},
	}, got)
}

func TestReservationsAreFoundWithoutTheClass(t *testing.T) {
	id := testRequest().Identity
	n := Network{Reserved: []Reservation{
		{MAC: id.MAC(0).String(), Name: "renamed"},
		{MAC: id.MAC(15).String(), Name: id.Hostname + "-15"},
		{MAC: "52:54:00:00:00:01", Name: id.Hostname},
		{MAC: "52:54:00:00:00:02", Name: id.Hostname},
		{MAC: "52:54:00:00:00:03", Name: "somebody"},
		{MAC: "52:54:00:00:00:04", Name: id.Hostname + "-1"},
	}}

	require.Equal(t, []Reservation{n.Reserved[0], n.Reserved[1]}, OwnReservations(id, n, nil))
	require.Equal(t, []Reservation{n.Reserved[0], n.Reserved[1], n.Reserved[2], n.Reserved[5]},
		OwnReservations(id, n, []string{"52:54:00:00:00:01", "52:54:00:00:00:03", "52:54:00:00:00:04"}))
}

func FuzzNetwork(f *testing.F) {
	f.Add(lab)
	f.Add(vlans)
	f.Fuzz(func(t *testing.T, desc string) {
		n, err := ParseNetwork(desc)
		if err != nil {
			return
		}

		if r, err := n.Choose(Reservation{Network: n.Name, MAC: "52:54:00:00:00:01"}, nil); err == nil {
			_, err := r.XML()
			require.NoError(t, err)
		}
	})
}
