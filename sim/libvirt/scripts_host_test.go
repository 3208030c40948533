package libvirt_test

import (
	"libvirt.org/go/libvirtxml"
)

func scriptHost(s *scene) {
	made[device](s, "look up a device")(s.c.LookupDeviceByName("pci_0000_ff_ff_7"))
	_, err := s.c.GetDomainCapabilities("", "s390x", "", "", 0)
	s.say("capabilities of another architecture", err)
	_, err = s.c.GetDomainCapabilities("", "z80", "", "", 0)
	s.say("capabilities of an unknown architecture", err)
	_, err = s.c.GetDomainCapabilities("", "x86_64", "abacus", "", 0)
	s.say("capabilities of an unknown machine", err)
	_, err = s.c.GetDomainCapabilities("", "x86_64", "q35", "xen", 0)
	s.number("capabilities of another type", err)
	_, err = s.c.GetDomainCapabilities("/bin/none", "x86_64", "q35", "qemu", 0)
	s.number("capabilities of another emulator", err)

	s.capabilities("x86_64", "q35")
	s.capabilities("x86_64", "pc")
	s.capabilities("aarch64", "virt")
}

// capabilities writes down what domains can have.
func (s *scene) capabilities(arch, machine string) {
	text, err := s.c.GetDomainCapabilities("", arch, machine, "qemu", 0)
	doc := read[libvirtxml.DomainCaps](s, text, err)
	s.say("capabilities", err, doc.Path, doc.Domain, doc.Machine, doc.Arch)

	for _, e := range doc.OS.Enums {
		s.say("OS", nil, e.Name, e.Values)
	}

	for _, e := range doc.OS.Loader.Enums {
		s.say("loader", nil, e.Name, e.Values)
	}

	s.say("loaders", nil, doc.OS.Loader.Values)

	for _, mode := range doc.CPU.Modes {
		s.say("processor", nil, mode.Name, mode.Supported)
	}

	for _, e := range doc.Devices.Disk.Enums {
		s.say("disk", nil, e.Name, e.Values)
	}

	s.say("TPM", nil, doc.Devices.TPM.Supported)

	for _, e := range doc.Devices.TPM.Enums {
		s.say("TPM", nil, e.Name, e.Values)
	}
}

func scriptClosing(s *scene) {
	c, err := s.Connect()
	s.say("connect", err)

	_, err = c.LookupDomainByName("a")
	s.say("look up", err)
	got[int](s, "close")(c.Close())

	c, err = s.Connect()
	s.say("connect", err)

	d, err := c.DomainDefineXMLFlags(domainXML("a", ""), 0)
	s.say("define", err)
	s.say("take a reference", c.Ref())
	got[int](s, "close")(c.Close())
	got[int](s, "close")(c.Close())
	s.state(d)
	s.say("free the domain", d.Free())

	c, err = s.Connect()
	s.say("connect", err)

	ids := c.Watch(func(string) {})
	s.say("deregister", c.DomainEventDeregister(ids[0]))
	s.say("deregister again", c.DomainEventDeregister(ids[0]))
	s.say("deregister another one", c.DomainEventDeregister(99))
	got[bool](s, "alive")(c.IsAlive())
	s.say("no close callback", c.UnregisterCloseCallback())
	s.say("close callback", c.RegisterCloseCallback(func() {}))
	s.say("another close callback", c.RegisterCloseCallback(func() {}))
	s.say("take it back", c.UnregisterCloseCallback())
}

func scriptDaemonRestart(s *scene) {
	d := s.define(domainXML("a", ""))
	s.say("create", d.Create())

	closed := make(chan struct{}, 1)
	s.say("close callback", s.c.RegisterCloseCallback(func() { closed <- struct{}{} }))
	s.Restart()
	s.Settle()

	select {
	case <-closed:
		s.say("closed", nil, true)
	default:
		s.say("closed", nil, false)
	}

	got[bool](s, "alive")(s.c.IsAlive())
	_, _, err := d.GetState()
	s.say("state by the old connection", err)
	got[string](s, "name by the old connection")(d.GetName())
	_, err = s.c.LookupDomainByName("a")
	s.say("look up by the old connection", err)
	s.say("free", d.Free())
	s.connect()

	d, err = s.c.LookupDomainByName("a")
	s.say("look up", err)
	s.state(d)
	s.say("destroy", d.Destroy())
}
