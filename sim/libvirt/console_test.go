package libvirt_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	real "libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

func TestConsoleActsAsSomeoneWithVirsh(t *testing.T) {
	inBubble(t, libvirt.Options{}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		d := defineWithSeed(t, h, c)
		events := record(t, c)

		require.NoError(t, h.SwitchOn(uuid1))
		requireState(t, d, real.DOMAIN_RUNNING, int(real.DOMAIN_RUNNING_BOOTED))
		require.NoError(t, h.Pause(uuid1, real.DOMAIN_PAUSED_IOERROR))
		requireState(t, d, real.DOMAIN_PAUSED, int(real.DOMAIN_PAUSED_IOERROR))
		require.NoError(t, d.Resume())
		require.NoError(t, h.Crash(uuid1))
		requireState(t, d, real.DOMAIN_SHUTOFF, int(real.DOMAIN_SHUTOFF_CRASHED))
		require.NoError(t, h.SwitchOn(uuid1))
		require.NoError(t, h.SwitchOff(uuid1))
		require.Error(t, h.SwitchOff(uuid1))
		require.NoError(t, h.DeleteMachine(uuid1))
		require.Error(t, h.DeleteMachine(uuid1))
		require.Equal(t, []string{
			"domain a resumed, detail 0", "domain a started, detail 0", "domain a suspended, detail 2", "domain a resumed, detail 0",
			"domain a crashed, detail 0", "domain a stopped, detail 2", "domain a resumed, detail 0", "domain a started, detail 0",
			"domain a shutdown, detail 2", "domain a stopped, detail 1", "domain a undefined, detail 0",
		}, events())
		_, _, err := d.GetState()
		require.Equal(t, real.ERR_NO_DOMAIN, numberOf(err))
	})
}

func TestBooksHaveAllThatAMachineLeaves(t *testing.T) {
	const machine = `<domain type='kvm'><name>a</name><uuid>` + uuid1 + `</uuid><memory unit='MiB'>64</memory>
<os firmware='efi'><type arch='x86_64' machine='q35'>hvm</type></os>
<metadata><o:m xmlns:o='urn:o' request='r-1'/></metadata>
<devices><tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm></devices></domain>`

	inBubble(t, libvirt.Options{}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		d, err := c.DomainDefineXMLFlags(machine, real.DOMAIN_DEFINE_VALIDATE)
		require.NoError(t, err)
		require.NoError(t, d.Create())
		_, err = poolOf(t, c, "default").StorageVolCreateXML(volumeXML("v", "raw", 1), 0)
		require.NoError(t, err)
		require.Equal(t, []ledger.Machine{
			{ID: uuid1, Name: "a", UUID: uuid1, Tags: map[string]string{"request": "r-1"}, On: true, Boots: 1},
		}, h.Machines())
		require.NoError(t, d.ManagedSave(0))
		require.Equal(t, []string{
			`domain ` + uuid1 + ` "a" is left`,
			`nvram /var/lib/libvirt/qemu/nvram/a_VARS.fd "a" is left`,
			`tpm /var/lib/libvirt/swtpm/` + uuid1 + `/tpm2/tpm2-00.permall "a" is left`,
			`volume /var/lib/libvirt/images/v "v" is left`,
			`managed-save ` + uuid1 + ` "a" is left`,
		}, h.Ledger().Leaks())
		require.NoError(t, d.UndefineFlags(real.DOMAIN_UNDEFINE_MANAGED_SAVE|real.DOMAIN_UNDEFINE_NVRAM))

		v, err := poolOf(t, c, "default").LookupStorageVolByName("v")
		require.NoError(t, err)
		require.NoError(t, v.Delete(0))
		require.Empty(t, h.Ledger().Leaks())
	})
}

func TestForeignObjectsAreNoLeaks(t *testing.T) {
	opts := libvirt.Options{Pools: []libvirt.Pool{{Name: "a"}, {Name: "b"}}}
	inBubble(t, opts, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		_, err := h.AddForeign("domain", "x")
		require.NoError(t, err)
		_, err = h.AddForeign("domain", "x")
		require.Error(t, err, "names are unique")

		for range 2 {
			_, err = h.AddForeign("volume", "v.qcow2")
			require.NoError(t, err, "each pool has names of its own")
		}

		_, err = h.AddForeign("volume", "v.qcow2")
		require.Error(t, err)
		_, err = h.AddForeign("moon", "x")
		require.Error(t, err)
		require.Empty(t, h.Ledger().Leaks())

		v, err := poolOf(t, c, "b").LookupStorageVolByName("v.qcow2")
		require.NoError(t, err)

		info, err := v.GetInfo()
		require.NoError(t, err)
		require.EqualValues(t, 1<<20, info.Capacity)
	})
}

func TestHiddenMachineIsMissingFromSomeLists(t *testing.T) {
	inBubble(t, libvirt.Options{}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		defineWithSeed(t, h, c)
		h.HideMachine(uuid1, 2)

		var seen []int

		for range 3 {
			all, err := c.ListAllDomains(0)
			require.NoError(t, err)

			seen = append(seen, len(all))
		}

		require.Equal(t, []int{0, 0, 1}, seen)
	})
}

func TestHostThatReboots(t *testing.T) {
	s := &software{}
	inBubble(t, libvirt.Options{Boot: s.run}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		d := defineWithSeed(t, h, c)
		require.NoError(t, d.SetAutostart(true))
		require.NoError(t, d.Create())

		other, err := c.DomainDefineXML(domainXML("b", ""))
		require.NoError(t, err)
		require.NoError(t, other.Create())
		_, err = c.DomainCreateXML(domainXML("transient", ""), 0)
		require.NoError(t, err)
		synctest.Wait()
		h.Reboot()
		synctest.Wait()

		_, err = c.GetHostname()
		require.Error(t, err)

		var on []bool
		for _, m := range h.Machines() {
			on = append(on, m.On)
		}

		require.Equal(t, []bool{true, false}, on)

		_, boots, ended := s.last()
		require.Equal(t, 4, boots)
		require.Equal(t, 3, ended)
	})
}

func TestHostsMayShareTheirBooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		books := ledger.New()

		for _, name := range []string{"one", "two"} {
			h := libvirt.New(libvirt.Options{Hostname: name, Ledger: books})
			defer h.Close()

			c, err := h.Connect()
			require.NoError(t, err)
			_, err = c.DomainDefineXML(domainXML("a", "", "<uuid>"+uuid1+"</uuid>"))
			require.NoError(t, err)
			require.Equal(t, name+":"+uuid1, h.Machines()[0].ID)
			require.NoError(t, h.SwitchOn(name+":"+uuid1))
		}

		require.Equal(t, []string{`domain one:` + uuid1 + ` "a" is left`, `domain two:` + uuid1 + ` "a" is left`}, books.Leaks())
	})
}

func TestHostRunsOutOfMemory(t *testing.T) {
	opts := libvirt.Options{Host: libvirt.Host{Memory: 100, Hugepages: 16}}
	inBubble(t, opts, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		create := func(name string, more ...string) error {
			d, err := c.DomainDefineXML(domainXML(name, "", more...))
			require.NoError(t, err)

			return d.Create()
		}

		require.NoError(t, create("a"))
		require.NoError(t, create("b"))

		err := create("c")
		require.Equal(t, real.ERR_INTERNAL_ERROR, numberOf(err))
		require.Contains(t, err.Error(), "Cannot allocate memory")
		require.NoError(t, create("d", "<memoryBacking><hugepages/></memoryBacking>"))
		require.Contains(t, create("e", "<memoryBacking><hugepages/></memoryBacking>").Error(), "Cannot allocate memory")

		free, err := c.GetFreeMemory()
		require.NoError(t, err)
		require.EqualValues(t, 4<<20, free)

		pages, err := c.GetFreePages([]uint64{2048}, 0, 1, 0)
		require.NoError(t, err)
		require.Equal(t, []uint64{0}, pages)
	})
}

const gpu = `<device><name>pci_0000_01_00_0</name><parent>computer</parent><capability type='pci'><class>0x030200</class>
<domain>0</domain><bus>1</bus><slot>0</slot><function>0</function><product id='0x1eb8'>T4</product><vendor id='0x10de'>NVIDIA</vendor>
<iommuGroup number='7'><address domain='0x0000' bus='0x01' slot='0x00' function='0x0'/></iommuGroup></capability></device>`

const mdev = `<device><name>mdev_` + uuid2 + `</name><parent>pci_0000_01_00_0</parent><capability type='mdev'><type id='nvidia-18'/>
<uuid>` + uuid2 + `</uuid><iommuGroup number='8'/></capability></device>`

func TestDeviceHasOneUser(t *testing.T) {
	inBubble(t, libvirt.Options{Devices: []string{gpu, mdev}}, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		devices, err := c.ListAllNodeDevices(real.CONNECT_LIST_NODE_DEVICES_CAP_PCI_DEV)
		require.NoError(t, err)
		require.Len(t, devices, 1)

		text, err := devices[0].GetXMLDesc(0)
		require.NoError(t, err)
		require.Equal(t, gpu, text)

		all, err := c.ListAllNodeDevices(0)
		require.NoError(t, err)
		require.Len(t, all, 2)

		for _, source := range []string{
			"type='pci' managed='yes'><source><address domain='0' bus='1' slot='0' function='0'/></source>",
			"type='mdev' model='vfio-pci'><source><address uuid='" + uuid2 + "'/></source>",
		} {
			devices := "<hostdev mode='subsystem' " + source + "</hostdev>"
			a, err := c.DomainDefineXML(domainXML("a", devices, "<uuid>"+uuid1+"</uuid>"))
			require.NoError(t, err)
			require.NoError(t, a.Create())

			b, err := c.DomainDefineXML(domainXML("b", devices))
			require.NoError(t, err)
			require.Contains(t, b.Create().Error(), "in use by driver QEMU, domain a")
			require.NoError(t, a.Destroy())
			require.NoError(t, b.Create())
			require.NoError(t, b.Destroy())
			require.NoError(t, b.Undefine())
		}
	})
}

func TestHostWithoutFirmware(t *testing.T) {
	opts := libvirt.Options{Host: libvirt.Host{NoUEFI: true, NoTPM: true}}
	inBubble(t, opts, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		caps, err := c.GetDomainCapabilities("", "x86_64", "q35", "", 0)
		require.NoError(t, err)
		require.NotContains(t, caps, "efi")
		require.NotContains(t, caps, "emulator</value>")
		require.Contains(t, caps, "<domain>kvm</domain>")

		d, err := c.DomainDefineXML(withOS(domainXML("a", ""), efiOff))
		require.NoError(t, err)
		require.Contains(t, d.Create().Error(), "Unable to find any firmware to satisfy 'efi'")

		d, err = c.DomainDefineXML(domainXML("b", "<tpm model='tpm-crb'><backend type='emulator' version='2.0'/></tpm>"))
		require.NoError(t, err)
		require.Equal(t, real.ERR_CONFIG_UNSUPPORTED, numberOf(d.Create()))
	})
}

func TestEmulatedHostHasNoKVM(t *testing.T) {
	inBubble(t, libvirt.Options{Host: libvirt.Host{Emulated: true, Arches: []string{"aarch64", "x86_64"}}}, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		_, err := c.DomainDefineXML(small)
		require.Contains(t, err.Error(), "Emulator '/usr/bin/qemu-system-x86_64' does not support virt type 'kvm'")

		caps, err := c.GetDomainCapabilities("", "", "", "", 0)
		require.NoError(t, err)
		require.Contains(t, caps, "<arch>aarch64</arch>")
		require.Contains(t, caps, "<domain>qemu</domain>")
	})
}

func TestWorkUnderWayEndsWithTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := libvirt.New(libvirt.Options{Durations: map[string]time.Duration{"Domain.Create": time.Hour}, Boot: (&software{}).run})
		c, err := h.Connect()
		require.NoError(t, err)
		d, err := c.DomainDefineXML(small)
		require.NoError(t, err)

		started := make(chan error, 1)
		go func() { started <- d.Create() }()

		time.Sleep(time.Second)

		closing := time.Now()
		h.Close()
		require.Error(t, <-started)
		require.Zero(t, time.Since(closing))

		_, err = h.Connect()
		require.Error(t, err)
	})
}
