package libvirt_test

import (
	"fmt"

	real "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

const networkText1 = `<network><name>%s</name>%s<ip address='192.168.150.1' netmask='255.255.255.0'><dhcp>
<range start='192.168.150.10' end='192.168.150.99'/></dhcp></ip></network>`

func networkXML(name, more string) string { return fmt.Sprintf(networkText1, name, more) }

func scriptNetworks(s *scene) {
	n := made[network](s, "define")(s.c.NetworkDefineXML(networkXML("a", "<uuid>"+uuid1+"</uuid>")))
	got[bool](s, "active")(n.IsActive())
	got[bool](s, "persistent")(n.IsPersistent())
	got[bool](s, "autostart")(n.GetAutostart())
	got[string](s, "bridge")(n.GetBridgeName())
	_, err := n.GetDHCPLeases()
	s.say("leases", err)
	s.say("destroy while off", n.Destroy())
	made[network](s, "define again")(s.c.NetworkDefineXML(networkXML("a", "<uuid>"+uuid1+"</uuid>")))
	made[network](s, "define without UUID")(s.c.NetworkDefineXML(networkXML("a", "")))
	made[network](s, "define with another UUID")(s.c.NetworkDefineXML(networkXML("a", "<uuid>"+uuid2+"</uuid>")))
	made[network](s, "define with another name")(s.c.NetworkDefineXML(networkXML("b", "<uuid>"+uuid1+"</uuid>")))
	made[network](s, "define without name")(s.c.NetworkDefineXML("<network/>"))
	made[network](s, "look up")(s.c.LookupNetworkByName("a"))
	made[network](s, "look up another one")(s.c.LookupNetworkByName("none"))
	made[network](s, "look up by UUID")(s.c.LookupNetworkByUUIDString(uuid2))
	s.say("create", n.Create())
	s.say("create again", n.Create())
	s.say("set autostart", n.SetAutostart(true))
	got[bool](s, "autostart")(n.GetAutostart())

	leases, err := n.GetDHCPLeases()
	s.say("leases", err, len(leases))
	s.say("undefine while active", n.Undefine())
	got[bool](s, "persistent")(n.IsPersistent())
	s.say("undefine again", n.Undefine())
	s.say("destroy", n.Destroy())
	_, err = n.IsActive()
	s.say("active", err)

	bridged := made[network](s, "define one on a bridge")(s.c.NetworkDefineXML("<network><name>lan</name><forward mode='bridge'/><bridge name='br0'/></network>"))
	got[string](s, "bridge")(bridged.GetBridgeName())

	hosted := made[network](s, "define one on an interface")(s.c.NetworkDefineXML(
		"<network><name>direct</name><forward mode='bridge'><interface dev='eth0'/></forward></network>"))
	_, err = hosted.GetBridgeName()
	s.say("bridge", err)
	_, err = s.c.NetworkDefineXML("<network><name>b</name><forward mode='bridge'/><bridge name='br0'/><portgroup name='p'><vlan><tag id='42'/></vlan></portgroup></network>")
	s.say("VLAN on a plain bridge", err)

	switched := made[network](s, "VLAN on Open vSwitch")(s.c.NetworkDefineXML("<network><name>b</name><forward mode='bridge'/><bridge name='br0'/>" +
		"<virtualport type='openvswitch'/><portgroup name='p' default='yes'><vlan><tag id='42'/></vlan></portgroup></network>"))
	text, err := switched.GetXMLDesc(0)
	doc := read[libvirtxml.Network](s, text, err)
	s.say("port groups", err, doc.PortGroups[0].Name, doc.PortGroups[0].Default, doc.PortGroups[0].VLAN.Tags[0].ID)
}

func scriptDHCPHosts(s *scene) {
	const (
		section = real.NETWORK_SECTION_IP_DHCP_HOST
		add     = real.NETWORK_UPDATE_COMMAND_ADD_LAST
		modify  = real.NETWORK_UPDATE_COMMAND_MODIFY
		remove  = real.NETWORK_UPDATE_COMMAND_DELETE
		both    = real.NETWORK_UPDATE_AFFECT_LIVE | real.NETWORK_UPDATE_AFFECT_CONFIG
	)

	host := func(mac, name, ip string) string {
		return fmt.Sprintf("<host mac='%s' name='%s' ip='%s'/>", mac, name, ip)
	}
	n := made[network](s, "define")(s.c.NetworkDefineXML(networkXML("a", "")))
	hosts := func() {
		for _, flags := range []real.NetworkXMLFlags{0, real.NETWORK_XML_INACTIVE} {
			text, err := n.GetXMLDesc(flags)
			doc := read[libvirtxml.Network](s, text, err)

			var out []string
			for _, h := range doc.IPs[0].DHCP.Hosts {
				out = append(out, h.MAC+"="+h.IP)
			}

			s.say("hosts", err, out)
		}
	}

	s.say("add live while off", n.Update(add, section, -1, host("52:00:00:00:00:01", "one", "192.168.150.11"), real.NETWORK_UPDATE_AFFECT_LIVE))
	s.say("add while off", n.Update(add, section, -1, host("52:00:00:00:00:01", "one", "192.168.150.11"), real.NETWORK_UPDATE_AFFECT_CONFIG))
	s.say("create", n.Create())
	hosts()
	s.say("add it again", n.Update(add, section, -1, host("52:00:00:00:00:01", "one", "192.168.150.11"), both))
	s.say("add the same MAC", n.Update(add, section, -1, "<host mac='52:00:00:00:00:01' ip='192.168.150.12'/>", both))
	s.say("add the same IP", n.Update(add, section, -1, "<host mac='52:00:00:00:00:02' ip='192.168.150.11'/>", both))
	s.say("add the same name", n.Update(add, section, -1, host("52:00:00:00:00:03", "one", "192.168.150.13"), both))
	s.say("add another one", n.Update(add, section, -1, "<host mac='52:00:00:00:00:02' ip='192.168.150.12'/>", both))
	s.say("add a live one", n.Update(add, section, -1, "<host mac='52:00:00:00:00:04' ip='192.168.150.14'/>", 0))
	hosts()
	s.say("add an address of another network", n.Update(add, section, -1, "<host mac='52:00:00:00:00:05' ip='10.0.0.5'/>", real.NETWORK_UPDATE_AFFECT_CONFIG))
	s.say("change", n.Update(modify, section, -1, host("52:00:00:00:00:02", "two", "192.168.150.22"), both))
	s.say("change what is not there", n.Update(modify, section, -1, host("52:00:00:00:00:09", "two", "192.168.150.29"), both))
	hosts()
	s.say("delete by MAC", n.Update(remove, section, -1, "<host mac='52:00:00:00:00:02'/>", both))
	s.say("delete it again", n.Update(remove, section, -1, "<host mac='52:00:00:00:00:02'/>", both))
	s.say("delete with another IP", n.Update(remove, section, -1, "<host mac='52:00:00:00:00:01' ip='192.168.150.99'/>", both))
	s.say("delete by IP", n.Update(remove, section, -1, "<host ip='192.168.150.11'/>", both))
	s.number("delete nothing", n.Update(remove, section, -1, "<host/>", both))
	s.number("what is no XML", n.Update(add, section, -1, "<host", both))
	hosts()
	s.say("destroy", n.Destroy())

	plain := made[network](s, "define one without DHCP")(s.c.NetworkDefineXML("<network><name>b</name><ip address='192.168.151.1' netmask='255.255.255.0'/></network>"))
	s.say("add", plain.Update(add, section, -1, "<host mac='52:00:00:00:00:02' ip='192.168.151.12'/>", real.NETWORK_UPDATE_AFFECT_CONFIG))
	s.say("add to the first address", plain.Update(add, section, 0, "<host mac='52:00:00:00:00:02' ip='192.168.151.12'/>", real.NETWORK_UPDATE_AFFECT_CONFIG))
}

func scriptAddresses(s *scene) {
	n := made[network](s, "define")(s.c.NetworkDefineXML(networkXML("a", "")))
	s.say("create", n.Create())

	d := s.define(domainXML("a", "<interface type='network'><source network='a'/></interface>"))
	s.say("create", d.Create())

	addresses, err := d.ListAllInterfaceAddresses(real.DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE)
	s.say("leases of a guest without software", err, len(addresses))
	_, err = d.ListAllInterfaceAddresses(real.DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT)
	s.say("agent without channel", err)
	s.say("destroy", d.Destroy())

	d = s.define(domainXML("b", "<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"))
	s.say("create", d.Create())
	_, err = d.ListAllInterfaceAddresses(real.DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT)
	s.say("agent that does not run", err)
	s.say("shut down by agent", d.ShutdownFlags(real.DOMAIN_SHUTDOWN_GUEST_AGENT))
	s.say("reboot by agent", d.Reboot(real.DOMAIN_REBOOT_GUEST_AGENT))
	s.state(d)
}
