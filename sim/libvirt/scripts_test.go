package libvirt_test

import (
	"encoding/xml"
	"fmt"
	"strings"

	real "libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// scripts are what the simulation and a real libvirtd are asked alike.
var scripts = []struct {
	name string
	run  func(*scene)
}{
	{"define", scriptDefine},
	{"define-refused", scriptDefineRefused},
	{"define-fills-in", scriptDefineFillsIn},
	{"validate", scriptValidate},
	{"power", scriptPower},
	{"power-off-domain", scriptPowerOff},
	{"power-button-ignored", scriptPowerButtonIgnored},
	{"undefine-running", scriptUndefineRunning},
	{"transient", scriptTransient},
	{"metadata", scriptMetadata},
	{"autostart", scriptAutostart},
	{"managed-save", scriptManagedSave},
	{"snapshots", scriptSnapshots},
	{"snapshot-of-running", scriptSnapshotOfRunning},
	{"checkpoints", scriptCheckpoints},
	{"nvram", scriptNVRAM},
	{"secure-boot", scriptSecureBoot},
	{"tpm", scriptTPM},
	{"arm64", scriptARM64},
	{"start-refused", scriptStartRefused},
	{"disk-in-use", scriptDiskInUse},
	{"stale-domain", scriptStaleDomain},
	{"lists", scriptLists},
	{"pools", scriptPools},
	{"stale-pool", scriptStalePool},
	{"volumes", scriptVolumes},
	{"volumes-refused", scriptVolumesRefused},
	{"overlays", scriptOverlays},
	{"hidden-files", scriptHiddenFiles},
	{"upload", scriptUpload},
	{"upload-sparse", scriptUploadSparse},
	{"upload-under-way", scriptUploadUnderWay},
	{"upload-qcow2", scriptUploadQcow2},
	{"upload-refused", scriptUploadRefused},
	{"resize", scriptResize},
	{"clone", scriptClone},
	{"busy-pool", scriptBusyPool},
	{"networks", scriptNetworks},
	{"dhcp-hosts", scriptDHCPHosts},
	{"addresses", scriptAddresses},
	{"host", scriptHost},
	{"closing", scriptClosing},
	{"daemon-restart", scriptDaemonRestart},
}

// The domains of the scripts boot nothing and are emulated.
const (
	uuid1 = "11111111-2222-4333-8444-555555555555"
	uuid2 = "11111111-2222-4333-8444-666666666666"
)

// domainXML is a domain with devices and other elements.
func domainXML(name, devices string, more ...string) string {
	return fmt.Sprintf(`<domain type='qemu'><name>%s</name><memory unit='MiB'>32</memory>%s
<os><type arch='x86_64' machine='q35'>hvm</type></os><features><acpi/></features><devices>%s</devices></domain>`, name, strings.Join(more, ""), devices)
}

func diskXML(path, format, target string) string {
	return fmt.Sprintf(`<disk type='file' device='disk'><driver name='qemu' type='%s'/><source file='%s'/><target dev='%s' bus='virtio'/></disk>`,
		format, path, target)
}

func (s *scene) define(xml string) domain {
	return made[domain](s, "define")(s.c.DomainDefineXMLFlags(xml, real.DOMAIN_DEFINE_VALIDATE))
}

// read parses a document of libvirt's.
func read[T any](s *scene, text string, err error) *T {
	doc := new(T)
	if err == nil {
		err = xml.Unmarshal([]byte(text), doc)
	}

	if err != nil {
		s.say("read", err)
	}

	return doc
}

func readDomain(s *scene, text string, err error) *libvirtxml.Domain {
	doc := &libvirtxml.Domain{}
	if err == nil {
		err = doc.Unmarshal(text)
	}

	if err != nil {
		s.say("read", err)
	}

	return doc
}

func scriptDefine(s *scene) {
	d := s.define(domainXML("a", "", "<uuid>"+uuid1+"</uuid>"))
	got[string](s, "name")(d.GetName())
	got[string](s, "uuid")(d.GetUUIDString())
	_, err := d.GetID()
	s.say("id", err)
	s.state(d)
	got[bool](s, "active")(d.IsActive())
	got[bool](s, "persistent")(d.IsPersistent())
	got[bool](s, "updated")(d.IsUpdated())
	got[uint64](s, "memory")(d.GetMaxMemory())

	made[domain](s, "define the same name and UUID")(s.c.DomainDefineXMLFlags(domainXML("a", "", "<uuid>"+uuid1+"</uuid>"), 0))
	made[domain](s, "define the same name without UUID")(s.c.DomainDefineXMLFlags(domainXML("a", ""), 0))
	made[domain](s, "define the same name with another UUID")(s.c.DomainDefineXMLFlags(domainXML("a", "", "<uuid>"+uuid2+"</uuid>"), 0))
	made[domain](s, "define the same UUID with another name")(s.c.DomainDefineXMLFlags(domainXML("b", "", "<uuid>"+uuid1+"</uuid>"), 0))
	made[domain](s, "look up name")(s.c.LookupDomainByName("a"))
	made[domain](s, "look up another name")(s.c.LookupDomainByName("b"))
	made[domain](s, "look up UUID")(s.c.LookupDomainByUUIDString(strings.ToUpper(uuid1)))
	made[domain](s, "look up another UUID")(s.c.LookupDomainByUUIDString(uuid2))
	made[domain](s, "look up what is no UUID")(s.c.LookupDomainByUUIDString("a"))
	made[domain](s, "look up id")(s.c.LookupDomainByID(99))
	s.say("undefine", d.Undefine())
	s.say("undefine again", d.Undefine())
	made[domain](s, "look up name")(s.c.LookupDomainByName("a"))
}

func scriptDefineRefused(s *scene) {
	try := func(what, xml string) {
		_, err := s.c.DomainDefineXMLFlags(xml, 0)
		s.say(what, err)
	}

	_, err := s.c.DomainDefineXMLFlags("<domain", 0)
	s.number("no XML", err)
	_, err = s.c.DomainDefineXMLFlags("<other/>", 0)
	s.number("another document", err)
	try("no type", "<domain><name>a</name></domain>")
	try("no name", "<domain type='qemu'><memory>1024</memory><os><type>hvm</type></os></domain>")
	try("no memory", "<domain type='qemu'><name>a</name><os><type>hvm</type></os></domain>")
	try("no OS", "<domain type='qemu'><name>a</name><memory>1024</memory></domain>")
	try("bad UUID", domainXML("a", "", "<uuid>1234</uuid>"))
	try("slash in name", domainXML("a/b", ""))
	try("unknown unit", "<domain type='qemu'><name>a</name><memory unit='MeB'>1024</memory><os><type>hvm</type></os></domain>")
	try("another type", strings.Replace(domainXML("a", ""), "type='qemu'", "type='xen'", 1))
	try("another architecture", strings.NewReplacer("x86_64", "s390x", "q35", "s390-ccw-virtio", "<acpi/>", "").Replace(domainXML("a", "")))
	try("another architecture's board", strings.Replace(domainXML("a", ""), "q35", "virt", 1))
	try("arm64 on a board of amd64", strings.Replace(domainXML("a", ""), "x86_64", "aarch64", 1))
	try("arm64 with ACPI without UEFI", strings.NewReplacer("x86_64", "aarch64", "q35", "virt").Replace(domainXML("a", "")))
	try("unknown architecture", strings.Replace(domainXML("a", ""), "x86_64", "z80", 1))
	try("unknown machine", strings.Replace(domainXML("a", ""), "q35", "abacus", 1))
	try("two disks in one place", domainXML("a", diskXML("/x", "raw", "vda")+diskXML("/y", "raw", "vda")))
	try("disk without target", domainXML("a", "<disk type='file' device='disk'><source file='/x'/></disk>"))
	try("boot order twice", domainXML("a", strings.ReplaceAll(diskXML("/x", "raw", "vda")+diskXML("/y", "raw", "vdb"), "</disk>", "<boot order='1'/></disk>")))
	try("boot order and boot device", strings.Replace(domainXML("a", strings.ReplaceAll(diskXML("/x", "raw", "vda"), "</disk>", "<boot order='1'/></disk>")),
		"</os>", "<boot dev='hd'/></os>", 1))
	try("bad MAC", domainXML("a", "<interface type='user'><mac address='1:2'/></interface>"))
	try("multicast MAC", domainXML("a", "<interface type='user'><mac address='01:00:00:00:00:01'/></interface>"))
	try("same MAC twice", domainXML("twice", strings.Repeat("<interface type='user'><mac address='52:00:00:00:00:01'/></interface>", 2)))
	try("interface without network", domainXML("a", "<interface type='network'/>"))
	try("UUID of SMBIOS that differs", domainXML("a", "", "<uuid>"+uuid1+"</uuid><sysinfo type='smbios'><system><entry name='uuid'>"+uuid2+"</entry></system></sysinfo>"))
}

func scriptDefineFillsIn(s *scene) {
	d := s.define(domainXML("a", diskXML("/var/lib/libvirt/images/a.qcow2", "qcow2", "vda")+
		"<disk type='file' device='cdrom'><source file='/var/lib/libvirt/images/a.iso'/><target dev='sda' bus='sata'/></disk>"+
		"<interface type='user'/><interface type='network'><source network='default'/><mac address='52:00:00:00:AB:CD'/><model type='virtio'/></interface>",
		"<vcpu>2</vcpu>"))
	text, err := d.GetXMLDesc(0)
	doc := readDomain(s, text, err)

	s.say("type", nil, doc.Type)
	s.say("memory", nil, doc.Memory.Value, doc.Memory.Unit, doc.CurrentMemory.Value, doc.CurrentMemory.Unit)
	s.say("processors", nil, doc.VCPU.Value, doc.VCPU.Placement)
	s.say("machine", nil, doc.OS.Type.Arch, doc.OS.Type.Machine, doc.OS.BootDevices)
	s.say("actions", nil, doc.OnPoweroff, doc.OnReboot, doc.OnCrash)
	s.say("clock", nil, doc.Clock.Offset)
	s.say("emulator", nil, doc.Devices.Emulator)

	for _, disk := range doc.Devices.Disks {
		s.say("disk", nil, disk.Device, disk.Driver.Name, disk.Driver.Type, disk.Source.File.File, disk.Target.Dev, disk.Target.Bus, disk.ReadOnly != nil)
	}

	for _, nic := range doc.Devices.Interfaces {
		s.say("interface", nil, nic.MAC.Address, nic.Model.Type)
	}

	s.say("balloon", nil, doc.Devices.MemBalloon.Model)
	s.say("processor", nil, doc.CPU.Mode, doc.CPU.Match, doc.CPU.Check, doc.CPU.Model.Value, doc.CPU.Model.Fallback)

	d = s.define(domainXML("b", strings.ReplaceAll(diskXML("/x", "raw", "vda"), "</disk>", "<boot order='1'/></disk>"),
		"<title>t</title><metadata><o:m xmlns:o='urn:o' a='1'/></metadata><cpu mode='maximum'/>"))
	text, err = d.GetXMLDesc(0)
	doc = readDomain(s, text, err)
	s.say("title", nil, doc.Title)
	s.say("boot devices", nil, doc.OS.BootDevices, doc.Devices.Disks[0].Boot.Order)
	s.say("processor", nil, doc.CPU.Mode)

	s.define(domainXML("c", "", "<uuid>"+strings.ToUpper(uuid1)+"</uuid>"))
	d = made[domain](s, "look up")(s.c.LookupDomainByName("c"))
	id, err := d.GetUUIDString()
	s.say("the UUID is as given", err, id == uuid1)
}

func scriptValidate(s *scene) {
	try := func(what, xml string) {
		_, err := s.c.DomainDefineXMLFlags(xml, real.DOMAIN_DEFINE_VALIDATE)
		s.number(what, err)
	}

	try("unknown element", domainXML("a", "", "<bogus/>"))
	try("unknown element of a device", domainXML("a", "<disk type='file' device='disk'><bogus/><target dev='vda' bus='virtio'/></disk>"))
	try("unknown attribute", domainXML("a", "", "<vcpu bogus='1'>1</vcpu>"))
	try("anything in metadata", domainXML("a", "", "<metadata><x:any xmlns:x='urn:x' a='b'><x:more/></x:any></metadata>"))

	d := made[domain](s, "unknown element unchecked")(s.c.DomainDefineXMLFlags(domainXML("b", "", "<bogus/>"), 0))
	text, err := d.GetXMLDesc(0)
	s.say("it is lost", err, strings.Contains(text, "bogus"))
}

func scriptPower(s *scene) {
	d := s.define(domainXML("a", ""))
	s.say("create", d.Create())
	s.state(d)
	id, err := d.GetID()
	s.say("id", err, id > 0)
	got[bool](s, "active")(d.IsActive())
	s.say("create again", d.Create())
	s.say("create again with flags", d.CreateWithFlags(0))
	made[domain](s, "create transient of the same name")(s.c.DomainCreateXML(domainXML("a", ""), 0))
	s.say("resume while it runs", d.Resume())
	s.say("suspend", d.Suspend())
	s.state(d)
	s.say("suspend again", d.Suspend())
	s.say("create while paused", d.Create())
	s.say("resume", d.Resume())
	s.state(d)
	s.say("resume again", d.Resume())
	s.say("wake", d.PMWakeup(0))
	s.say("reset", d.Reset(0))
	s.state(d)
	s.say("shut down by agent", d.ShutdownFlags(real.DOMAIN_SHUTDOWN_GUEST_AGENT))
	s.say("reboot by agent", d.Reboot(real.DOMAIN_REBOOT_GUEST_AGENT))
	s.say("destroy", d.Destroy())
	s.state(d)
	_, err = d.GetID()
	s.say("id", err)
	s.say("create paused", d.CreateWithFlags(real.DOMAIN_START_PAUSED))
	s.state(d)
	s.say("reset while paused", d.Reset(0))
	s.state(d)
	s.say("destroy gracefully", d.DestroyFlags(real.DOMAIN_DESTROY_GRACEFUL))
	s.state(d)
	s.say("create again", d.Create())
	s.define(strings.Replace(domainXML("a", "", "<uuid>"+uuidOf(s, d)+"</uuid>"), ">32<", ">48<", 1))
	got[bool](s, "updated")(d.IsUpdated())
	text, err := d.GetXMLDesc(0)
	s.say("what runs", err, readDomain(s, text, err).Memory.Value)
	text, err = d.GetXMLDesc(real.DOMAIN_XML_INACTIVE)
	s.say("the definition", err, readDomain(s, text, err).Memory.Value)
	s.say("destroy", d.Destroy())
	got[uint64](s, "memory")(d.GetMaxMemory())
}

func uuidOf(s *scene, d domain) string {
	id, err := d.GetUUIDString()
	if err != nil {
		s.say("uuid", err)
	}

	return id
}

func scriptPowerOff(s *scene) {
	d := s.define(domainXML("a", ""))
	s.say("destroy", d.Destroy())
	s.say("destroy gracefully", d.DestroyFlags(real.DOMAIN_DESTROY_GRACEFUL))
	s.say("shut down", d.Shutdown())
	s.say("reboot", d.Reboot(0))
	s.say("reset", d.Reset(0))
	s.say("suspend", d.Suspend())
	s.say("resume", d.Resume())
	s.say("wake", d.PMWakeup(0))
	s.say("managed save", d.ManagedSave(0))
	_, err := d.ListAllInterfaceAddresses(real.DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE)
	s.say("addresses", err)
	s.state(d)
}

func scriptPowerButtonIgnored(s *scene) {
	d := s.define(domainXML("a", ""))
	s.say("create", d.Create())
	s.say("shut down", d.Shutdown())
	s.state(d)
	s.say("shut down by ACPI", d.ShutdownFlags(real.DOMAIN_SHUTDOWN_ACPI_POWER_BTN))
	s.say("reboot", d.Reboot(0))
	s.say("reboot by ACPI", d.Reboot(real.DOMAIN_REBOOT_ACPI_POWER_BTN))
	s.state(d)
	s.say("suspend", d.Suspend())
	s.say("shut down while paused", d.Shutdown())
	s.say("reboot while paused", d.Reboot(0))
	s.state(d)
	s.say("resume", d.Resume())
	s.state(d)
	s.say("destroy", d.Destroy())
	s.say("undefine", d.Undefine())
}

func scriptUndefineRunning(s *scene) {
	d := s.define(domainXML("a", ""))
	s.say("create", d.Create())
	s.say("undefine", d.Undefine())
	got[bool](s, "persistent")(d.IsPersistent())
	s.state(d)
	s.say("undefine again", d.Undefine())
	s.say("autostart", d.SetAutostart(true))
	s.say("destroy", d.Destroy())
	_, _, err := d.GetState()
	s.say("state", err)
	made[domain](s, "look up")(s.c.LookupDomainByName("a"))
}

func scriptTransient(s *scene) {
	d := made[domain](s, "create")(s.c.DomainCreateXML(domainXML("a", "", "<uuid>"+uuid1+"</uuid>"), 0))
	s.state(d)
	got[bool](s, "persistent")(d.IsPersistent())
	made[domain](s, "create again")(s.c.DomainCreateXML(domainXML("a", "", "<uuid>"+uuid1+"</uuid>"), 0))
	made[domain](s, "create with another UUID")(s.c.DomainCreateXML(domainXML("a", "", "<uuid>"+uuid2+"</uuid>"), 0))
	s.say("undefine", d.Undefine())
	s.say("autostart", d.SetAutostart(true))
	s.say("managed save", d.ManagedSave(0))
	s.say("metadata of the definition", d.SetMetadata(real.DOMAIN_METADATA_TITLE, "t", "", "", real.DOMAIN_AFFECT_CONFIG))
	s.define(domainXML("a", "", "<uuid>"+uuid1+"</uuid>"))
	got[bool](s, "persistent")(d.IsPersistent())
	s.say("destroy", d.Destroy())
	s.state(d)
	s.say("undefine", d.Undefine())
	d = made[domain](s, "create paused")(s.c.DomainCreateXML(domainXML("a", ""), real.DOMAIN_START_PAUSED))
	s.state(d)
	s.say("destroy", d.Destroy())
	made[domain](s, "look up")(s.c.LookupDomainByName("a"))
	_, err := s.c.DomainCreateXML(domainXML("a", diskXML("/nowhere", "raw", "vda")), 0)
	s.say("create without its disk", err)
	made[domain](s, "look up")(s.c.LookupDomainByName("a"))
}

func scriptMetadata(s *scene) {
	const element = real.DOMAIN_METADATA_ELEMENT

	d := s.define(domainXML("a", "", "<metadata><o:m xmlns:o='urn:o' a='1'><o:in/></o:m><n xmlns='urn:n'>text</n></metadata>"))
	got[string](s, "with prefix")(d.GetMetadata(element, "urn:o", 0))
	got[string](s, "with namespace")(d.GetMetadata(element, "urn:n", 0))
	got[string](s, "of another namespace")(d.GetMetadata(element, "urn:x", 0))
	got[string](s, "title")(d.GetMetadata(real.DOMAIN_METADATA_TITLE, "", 0))
	got[string](s, "description")(d.GetMetadata(real.DOMAIN_METADATA_DESCRIPTION, "", 0))
	s.say("set title", d.SetMetadata(real.DOMAIN_METADATA_TITLE, "t", "", "", 0))
	got[string](s, "title")(d.GetMetadata(real.DOMAIN_METADATA_TITLE, "", 0))
	s.say("set title with newline", d.SetMetadata(real.DOMAIN_METADATA_TITLE, "t\nu", "", "", 0))
	s.say("set description", d.SetMetadata(real.DOMAIN_METADATA_DESCRIPTION, "d", "", "", real.DOMAIN_AFFECT_CONFIG))
	got[string](s, "description")(d.GetMetadata(real.DOMAIN_METADATA_DESCRIPTION, "", real.DOMAIN_AFFECT_CONFIG))
	s.say("set element", d.SetMetadata(element, "<m b='2'>x</m>", "o", "urn:o", 0))
	got[string](s, "element")(d.GetMetadata(element, "urn:o", 0))
	s.say("set empty element with namespace", d.SetMetadata(element, "<m xmlns='urn:p' c='3'/>", "p", "urn:p", 0))
	got[string](s, "element")(d.GetMetadata(element, "urn:p", 0))
	s.number("set what is no XML", d.SetMetadata(element, "<m", "q", "urn:q", 0))
	s.say("set without key", d.SetMetadata(element, "<m/>", "", "urn:q", 0))
	s.say("set live while off", d.SetMetadata(element, "<m/>", "o", "urn:o", real.DOMAIN_AFFECT_LIVE))
	_, err := d.GetMetadata(element, "urn:o", real.DOMAIN_AFFECT_LIVE)
	s.say("get live while off", err)
	s.say("create", d.Create())
	s.say("set live", d.SetMetadata(element, "<m d='4'/>", "o", "urn:o", real.DOMAIN_AFFECT_LIVE))
	got[string](s, "current")(d.GetMetadata(element, "urn:o", 0))
	got[string](s, "definition")(d.GetMetadata(element, "urn:o", real.DOMAIN_AFFECT_CONFIG))
	s.say("set both", d.SetMetadata(element, "<m e='5'/>", "o", "urn:o", real.DOMAIN_AFFECT_LIVE|real.DOMAIN_AFFECT_CONFIG))
	s.say("destroy", d.Destroy())
	got[string](s, "element")(d.GetMetadata(element, "urn:o", 0))
	s.say("take away", d.SetMetadata(element, "", "o", "urn:o", 0))
	got[string](s, "element")(d.GetMetadata(element, "urn:o", 0))
	s.say("take away again", d.SetMetadata(element, "", "o", "urn:o", 0))
	got[string](s, "the other element")(d.GetMetadata(element, "urn:n", 0))

	d = s.define(domainXML("b", "", "<metadata><a xmlns='urn:a' n='1'/><a xmlns='urn:a' n='2'/></metadata>"))
	got[string](s, "two of one namespace")(d.GetMetadata(element, "urn:a", 0))
}

func scriptAutostart(s *scene) {
	d := s.define(domainXML("a", ""))
	got[bool](s, "autostart")(d.GetAutostart())
	s.say("set", d.SetAutostart(true))
	got[bool](s, "autostart")(d.GetAutostart())
	s.say("set again", d.SetAutostart(true))
	s.say("unset", d.SetAutostart(false))
	got[bool](s, "autostart")(d.GetAutostart())
}

func scriptManagedSave(s *scene) {
	d := s.define(domainXML("a", ""))
	s.say("create", d.Create())
	s.say("save", d.ManagedSave(0))
	s.state(d)
	got[bool](s, "saved")(d.HasManagedSaveImage(0))
	s.say("undefine", d.Undefine())
	s.say("create", d.Create())
	s.state(d)
	got[bool](s, "saved")(d.HasManagedSaveImage(0))
	s.say("save", d.ManagedSave(0))
	s.say("forget", d.ManagedSaveRemove(0))
	s.say("forget again", d.ManagedSaveRemove(0))
	s.say("create", d.Create())
	s.say("suspend", d.Suspend())
	s.say("save", d.ManagedSave(0))
	s.say("create", d.Create())
	s.state(d)
	s.say("save", d.ManagedSave(0))
	s.say("create anew", d.CreateWithFlags(real.DOMAIN_START_FORCE_BOOT))
	s.say("save", d.ManagedSave(0))
	s.say("undefine with it", d.UndefineFlags(real.DOMAIN_UNDEFINE_MANAGED_SAVE))
}

// newPool makes an active pool.
func (s *scene) newPool(name string) pool {
	p := made[pool](s, "define pool")(s.c.StoragePoolDefineXML(poolXML(name), 0))
	s.say("create pool", p.Create(0))

	return p
}

func poolXML(name string) string {
	return fmt.Sprintf("<pool type='dir'><name>%s</name><target><path>/var/lib/libvirt/%s</path></target></pool>", name, name)
}

func volumeXML(name, format string, capacity uint64, more ...string) string {
	return fmt.Sprintf("<volume><name>%s</name><capacity>%d</capacity><allocation>0</allocation><target><format type='%s'/></target>%s</volume>",
		name, capacity, format, strings.Join(more, ""))
}

func backingXML(path, format string) string {
	return fmt.Sprintf("<backingStore><path>%s</path><format type='%s'/></backingStore>", path, format)
}

const images = "/var/lib/libvirt/images/"

func scriptSnapshots(s *scene) {
	p := s.newPool("images")
	made[volume](s, "disk")(p.CreateVolume(volumeXML("a.qcow2", "qcow2", 1<<20)))
	made[volume](s, "raw disk")(p.CreateVolume(volumeXML("b.raw", "raw", 1<<20)))

	d := s.define(domainXML("a", diskXML(images+"a.qcow2", "qcow2", "vda")))
	one := made[snapshot](s, "snapshot")(d.Snapshot("<domainsnapshot><name>one</name></domainsnapshot>", 0))
	made[snapshot](s, "snapshot of the same name")(d.Snapshot("<domainsnapshot><name>one</name></domainsnapshot>", 0))
	two := made[snapshot](s, "another snapshot")(d.Snapshot("<domainsnapshot><name>two</name></domainsnapshot>", 0))
	got[int](s, "number")(d.SnapshotNum(0))
	got[bool](s, "one is current")(one.IsCurrent(0))
	got[bool](s, "two is current")(two.IsCurrent(0))
	s.say("undefine", d.Undefine())
	made[domain](s, "define anew")(s.c.DomainDefineXMLFlags(domainXML("a", diskXML(images+"a.qcow2", "qcow2", "vda"), "<uuid>"+uuidOf(s, d)+"</uuid>"), 0))
	s.say("revert", one.RevertToSnapshot(0))
	s.state(d)
	got[bool](s, "one is current")(one.IsCurrent(0))
	s.say("delete", one.Delete(0))
	s.say("delete again", one.Delete(0))
	made[snapshot](s, "look up")(d.SnapshotLookup("one"))
	made[snapshot](s, "look up the other")(d.SnapshotLookup("two"))
	got[int](s, "number")(d.SnapshotNum(0))
	s.say("undefine with what is known of them", d.UndefineFlags(real.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA))

	d = s.define(domainXML("b", diskXML(images+"b.raw", "raw", "vda")))
	_, err := d.Snapshot("<domainsnapshot><name>one</name></domainsnapshot>", 0)
	s.say("snapshot of a raw disk", err)
	got[int](s, "number")(d.SnapshotNum(0))
}

func scriptSnapshotOfRunning(s *scene) {
	p := s.newPool("images")
	made[volume](s, "disk")(p.CreateVolume(volumeXML("a.qcow2", "qcow2", 1<<20)))

	d := s.define(domainXML("a", diskXML(images+"a.qcow2", "qcow2", "vda")))
	s.say("create", d.Create())

	one := made[snapshot](s, "snapshot")(d.Snapshot("<domainsnapshot><name>one</name></domainsnapshot>", 0))
	s.state(d)
	s.say("undefine", d.Undefine())
	got[bool](s, "persistent")(d.IsPersistent())
	made[domain](s, "define anew")(s.c.DomainDefineXMLFlags(domainXML("a", diskXML(images+"a.qcow2", "qcow2", "vda"), "<uuid>"+uuidOf(s, d)+"</uuid>"), 0))
	s.say("destroy", d.Destroy())
	s.say("undefine", d.Undefine())
	s.say("revert", one.RevertToSnapshot(0))
	s.state(d)
	s.say("delete", one.Delete(0))
	s.say("destroy", d.Destroy())
	s.say("undefine", d.Undefine())
}

func scriptCheckpoints(s *scene) {
	p := s.newPool("images")
	made[volume](s, "disk of the old version")(p.CreateVolume(volumeXML("old.qcow2", "qcow2", 1<<20)))
	made[volume](s, "disk")(p.CreateVolume("<volume><name>a.qcow2</name><capacity>1048576</capacity><target><format type='qcow2'/><compat>1.1</compat></target></volume>"))

	old := s.define(domainXML("old", diskXML(images+"old.qcow2", "qcow2", "vda")))
	s.say("create", old.Create())
	_, err := old.Checkpoint("<domaincheckpoint><name>one</name></domaincheckpoint>")
	s.say("checkpoint of a disk of the old version", err)
	s.say("destroy", old.Destroy())

	d := s.define(domainXML("a", diskXML(images+"a.qcow2", "qcow2", "vda")))
	_, err = d.Checkpoint("<domaincheckpoint><name>one</name></domaincheckpoint>")
	s.say("checkpoint while off", err)
	s.say("create", d.Create())

	one := made[checkpoint](s, "checkpoint")(d.Checkpoint("<domaincheckpoint><name>one</name></domaincheckpoint>"))
	made[checkpoint](s, "checkpoint of the same name")(d.Checkpoint("<domaincheckpoint><name>one</name></domaincheckpoint>"))
	_, err = d.Snapshot("<domainsnapshot><name>s</name></domainsnapshot>", 0)
	s.say("snapshot", err)
	_, err = d.Checkpoint("<domaincheckpoint><name>two</name></domaincheckpoint>")
	s.say("checkpoint beside a snapshot", err)
	s.say("destroy", d.Destroy())
	s.say("undefine", d.Undefine())
	s.say("delete while off", one.Delete(0))
	s.say("undefine with what is known of checkpoints", d.UndefineFlags(real.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA))
	s.say("undefine with what is known of snapshots", d.UndefineFlags(real.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA))
	s.say("undefine with both", d.UndefineFlags(real.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA|real.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA))
}

const efiOff = `<os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type><firmware><feature enabled='no' name='secure-boot'/></firmware></os>`

func withOS(xml, os string) string {
	before, rest, _ := strings.Cut(xml, "<os>")
	_, after, _ := strings.Cut(rest, "</os>")

	return before + os + after
}

// firmware writes down the firmware of a domain.
func (s *scene) firmware(d domain, flags real.DomainXMLFlags) {
	text, err := d.GetXMLDesc(flags)
	doc := readDomain(s, text, err)
	s.say("firmware", nil, doc.OS.Firmware)

	if l := doc.OS.Loader; l != nil {
		s.say("loader", nil, l.Path, l.Readonly, l.Type, l.Secure)
	}

	if n := doc.OS.NVRam; n != nil {
		s.say("nvram", nil, n.NVRam, n.Template)
	}

	s.say("management mode", nil, doc.Features.SMM != nil && doc.Features.SMM.State == "on")
}

func scriptNVRAM(s *scene) {
	const path = "/var/lib/libvirt/qemu/nvram/a_VARS.fd"

	d := s.define(withOS(domainXML("a", ""), efiOff))
	s.firmware(d, 0)
	s.say("file", nil, s.HasFile(path))
	s.say("create", d.Create())
	s.firmware(d, 0)
	s.firmware(d, real.DOMAIN_XML_INACTIVE)
	s.say("file", nil, s.HasFile(path))
	s.say("destroy", d.Destroy())
	s.firmware(d, 0)
	s.say("file", nil, s.HasFile(path))
	s.say("undefine", d.Undefine())
	s.say("undefine with managed save", d.UndefineFlags(real.DOMAIN_UNDEFINE_MANAGED_SAVE))
	s.say("undefine, keep and delete", d.UndefineFlags(real.DOMAIN_UNDEFINE_NVRAM|real.DOMAIN_UNDEFINE_KEEP_NVRAM))
	s.say("undefine and keep", d.UndefineFlags(real.DOMAIN_UNDEFINE_KEEP_NVRAM))
	s.say("file", nil, s.HasFile(path))

	d = s.define(withOS(domainXML("a", ""), efiOff))
	s.say("undefine and delete", d.UndefineFlags(real.DOMAIN_UNDEFINE_NVRAM))
	s.say("file", nil, s.HasFile(path))

	d = s.define(withOS(domainXML("a", ""), efiOff))
	s.say("undefine what never ran", d.Undefine())

	d = s.define(domainXML("b", ""))
	s.say("undefine a domain without nvram with the flag", d.UndefineFlags(real.DOMAIN_UNDEFINE_NVRAM|
		real.DOMAIN_UNDEFINE_MANAGED_SAVE|real.DOMAIN_UNDEFINE_SNAPSHOTS_METADATA|real.DOMAIN_UNDEFINE_CHECKPOINTS_METADATA))

	d = s.define(domainXML("b", ""))
	s.say("undefine with an unknown flag", d.UndefineFlags(1<<20))
}

func scriptSecureBoot(s *scene) {
	const secure = `<os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type><firmware><feature enabled='yes' name='enrolled-keys'/><feature enabled='yes' name='secure-boot'/></firmware></os>`

	start := func(what, os string) {
		d := s.define(withOS(domainXML("a", ""), os))
		s.say(what, d.Create())
		s.firmware(d, 0)
		_ = d.Destroy()
		s.say("undefine", d.UndefineFlags(real.DOMAIN_UNDEFINE_NVRAM))
	}

	start("with keys", secure)
	start("without keys", strings.Replace(secure, "<feature enabled='yes' name='enrolled-keys'/>", "", 1))
	start("without wishes", "<os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type></os>")
	start("on a board without management mode", strings.Replace(secure, "q35", "pc", 1))
	start("by the loader", "<os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type><loader secure='yes'/></os>")
}

func scriptTPM(s *scene) {
	const state = "/var/lib/libvirt/swtpm/" + uuid1 + "/tpm2/tpm2-00.permall"

	tpm := domainXML("a", "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>", "<uuid>"+uuid1+"</uuid>")
	d := s.define(tpm)
	s.say("state", nil, s.HasFile(state))
	s.say("create", d.Create())
	s.say("state", nil, s.HasFile(state))
	s.say("destroy", d.Destroy())
	s.say("state", nil, s.HasFile(state))
	s.say("undefine, keep and delete", d.UndefineFlags(real.DOMAIN_UNDEFINE_TPM|real.DOMAIN_UNDEFINE_KEEP_TPM))
	s.say("undefine and keep", d.UndefineFlags(real.DOMAIN_UNDEFINE_KEEP_TPM))
	s.say("state", nil, s.HasFile(state))
	d = s.define(tpm)
	s.say("undefine", d.Undefine())
	s.say("state", nil, s.HasFile(state))
}

func scriptARM64(s *scene) {
	xml := strings.NewReplacer("x86_64", "aarch64", "<os>", "<os firmware='efi'>", "q35", "virt").Replace(
		domainXML("a", "<interface type='user'/>"+diskXML("/x", "raw", "vda")))
	d := s.define(xml)
	text, err := d.GetXMLDesc(0)
	doc := readDomain(s, text, err)
	s.say("machine", nil, doc.OS.Type.Arch, doc.OS.Type.Machine, doc.Devices.Emulator)
	s.say("interface", nil, doc.Devices.Interfaces[0].Model.Type)
	s.say("processor", nil, doc.CPU.Mode, doc.CPU.Model.Value)

	d = s.define(strings.Replace(strings.Replace(xml, diskXML("/x", "raw", "vda"), "", 1), ">a<", ">b<", 1))
	s.say("create", d.Create())
	s.firmware(d, 0)
	s.say("destroy", d.Destroy())
	s.say("undefine", d.UndefineFlags(real.DOMAIN_UNDEFINE_NVRAM))
}

func scriptStartRefused(s *scene) {
	p := s.newPool("images")
	try := func(what, xml string) {
		d := s.define(xml)
		s.say(what, d.Create())
		s.state(d)
		s.say("undefine", d.Undefine())
	}

	try("disk is missing", domainXML("a", diskXML(images+"none.qcow2", "qcow2", "vda")))

	base := made[volume](s, "base")(p.CreateVolume(volumeXML("base.raw", "raw", 1<<20)))
	made[volume](s, "overlay")(p.CreateVolume(volumeXML("over.qcow2", "qcow2", 1<<20, backingXML(images+"base.raw", "raw"))))
	s.say("delete base", base.Delete(0))
	try("base is missing", domainXML("a", diskXML(images+"over.qcow2", "qcow2", "vda")))

	made[volume](s, "raw")(p.CreateVolume(volumeXML("raw.raw", "raw", 1<<20)))
	raw := s.define(domainXML("raw", diskXML(images+"raw.raw", "qcow2", "vda")))
	s.number("raw disk for qcow2", raw.Create())
	s.state(raw)
	try("network is missing", domainXML("a", "<interface type='network'><source network='none'/></interface>"))
	made[network](s, "define network")(s.c.NetworkDefineXML("<network><name>quiet</name><bridge name='virbr9'/></network>"))
	try("network is off", domainXML("a", "<interface type='network'><source network='quiet'/></interface>"))
	try("bridge is missing", domainXML("a", "<interface type='bridge'><source bridge='br99'/></interface>"))
	try("interface of the host is missing", domainXML("a", "<interface type='direct'><source dev='eth99' mode='bridge'/></interface>"))
	try("PCI device is missing", domainXML("a", "<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0' bus='0xfe' slot='0x1f' function='7'/></source></hostdev>"))
	try("mediated device is missing", domainXML("a", "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='"+uuid2+"'/></source></hostdev>"))
	kernel := s.define(withOS(domainXML("kernel", ""), "<os><type arch='x86_64' machine='q35'>hvm</type><kernel>/nowhere</kernel></os>"))
	s.number("kernel is missing", kernel.Create())
	s.state(kernel)
	try("hugepages are missing", domainXML("a", "", "<memoryBacking><hugepages/></memoryBacking>"))
	s.number("more memory than any host", func() error {
		d := s.define(strings.Replace(domainXML("much", ""), "<memory unit='MiB'>32<", "<memory unit='TiB'>60<", 1))

		return d.Create()
	}())
	try("pool is missing", domainXML("a", "<disk type='volume' device='disk'><source pool='none' volume='x'/><target dev='vda' bus='virtio'/></disk>"))
	try("volume is missing", domainXML("a", "<disk type='volume' device='disk'><source pool='images' volume='x'/><target dev='vda' bus='virtio'/></disk>"))

	d := s.define(domainXML("a", "<disk type='file' device='cdrom'><target dev='sda' bus='sata'/></disk>"))
	s.say("empty CD drive", d.Create())
	s.say("destroy", d.Destroy())
}

func scriptDiskInUse(s *scene) {
	p := s.newPool("images")
	v := made[volume](s, "disk")(p.CreateVolume(volumeXML("a.qcow2", "qcow2", 1<<20)))
	a := s.define(domainXML("a", diskXML(images+"a.qcow2", "qcow2", "vda")))
	b := s.define(domainXML("b", diskXML(images+"a.qcow2", "qcow2", "vda")))
	s.say("create", a.Create())
	s.number("create another one with the same disk", b.Create())
	s.state(b)
	s.say("delete the disk", v.Delete(0))
	s.state(a)
	s.say("destroy", a.Destroy())
	s.say("create", a.Create())
}

func scriptStaleDomain(s *scene) {
	d := s.define(domainXML("a", "", "<uuid>"+uuid1+"</uuid>"))
	other := made[domain](s, "look up")(s.c.LookupDomainByName("a"))
	s.say("undefine", other.Undefine())
	got[string](s, "name")(d.GetName())
	_, _, err := d.GetState()
	s.say("state", err)
	_, err = d.GetInfo()
	s.say("info", err)
	_, err = d.GetXMLDesc(0)
	s.say("description", err)
	_, err = d.GetMetadata(real.DOMAIN_METADATA_TITLE, "", 0)
	s.say("metadata", err)
	s.say("set metadata", d.SetMetadata(real.DOMAIN_METADATA_TITLE, "t", "", "", 0))
	s.say("create", d.Create())
	s.say("destroy", d.Destroy())
	s.say("shut down", d.Shutdown())
	s.say("undefine", d.Undefine())
	s.say("undefine with flags", d.UndefineFlags(real.DOMAIN_UNDEFINE_NVRAM))
	s.say("autostart", d.SetAutostart(true))
	_, err = d.IsActive()
	s.say("active", err)
	_, err = d.SnapshotNum(0)
	s.say("snapshots", err)
	s.define(domainXML("b", "", "<uuid>"+uuid1+"</uuid>"))
	s.state(d)
	got[string](s, "name of the handle")(d.GetName())
}

func scriptLists(s *scene) {
	names := func(flags real.ConnectListAllDomainsFlags) {
		all, err := s.c.ListAllDomains(flags)

		var out []string

		for _, d := range all {
			name, _ := d.GetName()
			out = append(out, name)
		}

		s.say(fmt.Sprintf("list %d", flags), err, sorted(out))
	}

	names(0)
	s.define(domainXML("b", ""))

	a := s.define(domainXML("a", ""))
	s.say("create", a.Create())
	made[domain](s, "transient")(s.c.DomainCreateXML(domainXML("t", ""), 0))

	p := s.define(domainXML("p", ""))
	s.say("create paused", p.CreateWithFlags(real.DOMAIN_START_PAUSED))
	s.say("autostart", p.SetAutostart(true))

	for _, flags := range []real.ConnectListAllDomainsFlags{
		0, real.CONNECT_LIST_DOMAINS_ACTIVE, real.CONNECT_LIST_DOMAINS_INACTIVE, real.CONNECT_LIST_DOMAINS_PERSISTENT,
		real.CONNECT_LIST_DOMAINS_TRANSIENT, real.CONNECT_LIST_DOMAINS_RUNNING, real.CONNECT_LIST_DOMAINS_PAUSED,
		real.CONNECT_LIST_DOMAINS_SHUTOFF, real.CONNECT_LIST_DOMAINS_OTHER, real.CONNECT_LIST_DOMAINS_AUTOSTART,
		real.CONNECT_LIST_DOMAINS_ACTIVE | real.CONNECT_LIST_DOMAINS_INACTIVE, real.CONNECT_LIST_DOMAINS_ACTIVE | real.CONNECT_LIST_DOMAINS_SHUTOFF,
		real.CONNECT_LIST_DOMAINS_NO_SNAPSHOT, real.CONNECT_LIST_DOMAINS_HAS_SNAPSHOT,
	} {
		names(flags)
	}
}
