package libvirt_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	real "libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// software is what runs in the guests of a test. It notes how it was booted, and runs until it is switched off.
type software struct {
	mu    sync.Mutex
	boots []libvirt.Guest
	ended int
}

func (s *software) run(ctx context.Context, g libvirt.Guest) {
	s.mu.Lock()
	s.boots = append(s.boots, g)
	s.mu.Unlock()
	<-ctx.Done()
	s.mu.Lock()
	s.ended++
	s.mu.Unlock()
}

// last returns the last guest that has booted, and how many have booted and ended.
func (s *software) last() (g libvirt.Guest, boots, ended int) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if len(s.boots) > 0 {
		g = s.boots[len(s.boots)-1]
	}

	return g, len(s.boots), s.ended
}

func requireState(t *testing.T, d *libvirt.Domain, want real.DomainState, reason int) {
	t.Helper()

	state, got, err := d.GetState()
	require.NoError(t, err)
	require.Equal(t, [2]int{int(want), reason}, [2]int{int(state), got})
}

// record writes down the events of a connection.
func record(t *testing.T, c *libvirt.Connect) (events func() []string) {
	t.Helper()

	var (
		mu  sync.Mutex
		all []string
	)

	simConn{c}.Watch(func(event string) {
		mu.Lock()
		defer mu.Unlock()

		all = append(all, event)
	})

	return func() []string {
		simulated{t: t}.Settle()
		mu.Lock()
		defer mu.Unlock()

		out := all
		all = nil

		return out
	}
}

const withSeed = `<domain type='kvm'><name>a</name><uuid>` + uuid1 + `</uuid><memory unit='MiB'>64</memory>
<os><type arch='x86_64' machine='q35'>hvm</type></os>
<sysinfo type='smbios'><system><entry name='serial'>s-1</entry></system><oemStrings><entry>one</entry></oemStrings></sysinfo>
<devices>
<disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='` + images + `a.qcow2'/><target dev='vda' bus='virtio'/></disk>
<disk type='file' device='cdrom'><source file='` + images + `a.iso'/><target dev='sda' bus='scsi'/></disk>
<interface type='network'><mac address='52:00:00:00:00:01'/><source network='default'/></interface>
<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>
</devices></domain>`

// defineWithSeed makes a domain with an image, a disk on it, and a seed.
func defineWithSeed(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) *libvirt.Domain {
	t.Helper()
	h.WriteFile(images+"base.raw", []byte("bootable"))
	h.WriteFile(images+"a.iso", []byte("seed"))

	p, err := c.LookupStoragePoolByName("default")
	require.NoError(t, err)
	_, err = p.StorageVolCreateXML(volumeXML("a.qcow2", "qcow2", 1<<20, backingXML(images+"base.raw", "raw")), 0)
	require.NoError(t, err)

	d, err := c.DomainDefineXMLFlags(withSeed, real.DOMAIN_DEFINE_VALIDATE)
	require.NoError(t, err)

	return d
}

func TestGuestSeesWhatItsDomainHas(t *testing.T) {
	s := &software{}
	inBubble(t, libvirt.Options{Boot: s.run}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		require.NoError(t, defineWithSeed(t, h, c).Create())
		simulated{t: t}.Settle()

		g, boots, _ := s.last()
		require.Equal(t, 1, boots)
		require.Equal(t, "a", g.Name)
		require.Equal(t, uuid1, g.UUID)
		require.Equal(t, "s-1", g.SMBIOS["system.serial"])
		require.Equal(t, []string{"one"}, g.OEMStrings)
		require.Equal(t, []string{"52:00:00:00:00:01"}, g.MACs)
		require.Equal(t, "seed", string(g.Seed))
		require.Equal(t, []libvirt.Disk{
			{Device: "disk", Target: "vda", Bus: "virtio", Path: images + "a.qcow2", Size: 1 << 20, Start: []byte("bootable")},
			{Device: "cdrom", Target: "sda", Bus: "scsi", Path: images + "a.iso", Size: 4, Start: []byte("seed")},
		}, g.Disks)
	})
}

func TestGuestThatIsAskedShutsDownInItsTime(t *testing.T) {
	s := &software{}
	inBubble(t, libvirt.Options{Boot: s.run, ShutdownTime: 5 * time.Second}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		d := defineWithSeed(t, h, c)
		events := record(t, c)

		require.NoError(t, d.Create())
		require.NoError(t, d.Shutdown())
		requireState(t, d, real.DOMAIN_RUNNING, int(real.DOMAIN_RUNNING_BOOTED))
		time.Sleep(6 * time.Second)
		requireState(t, d, real.DOMAIN_SHUTOFF, int(real.DOMAIN_SHUTOFF_SHUTDOWN))
		require.Equal(t, []string{
			"domain a resumed, detail 0", "domain a started, detail 0", "domain a shutdown, detail 1", "domain a stopped, detail 0",
		}, events())

		_, _, ended := s.last()
		require.Equal(t, 1, ended)
	})
}

func TestDeafGuestIgnoresThePowerButton(t *testing.T) {
	s := &software{}
	inBubble(t, libvirt.Options{Boot: s.run}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		d := defineWithSeed(t, h, c)
		require.NoError(t, h.Deafen(uuid1, true))
		require.NoError(t, d.Create())
		require.NoError(t, d.Shutdown())
		require.NoError(t, d.Reboot(0))
		time.Sleep(time.Hour)
		requireState(t, d, real.DOMAIN_RUNNING, int(real.DOMAIN_RUNNING_BOOTED))

		_, boots, _ := s.last()
		require.Equal(t, 1, boots)
	})
}

func TestDomainThatStartsPausedBootsWhenItGoesOn(t *testing.T) {
	s := &software{}
	inBubble(t, libvirt.Options{Boot: s.run}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		d := defineWithSeed(t, h, c)
		require.NoError(t, d.CreateWithFlags(real.DOMAIN_START_PAUSED))
		time.Sleep(time.Minute)

		_, boots, _ := s.last()
		require.Zero(t, boots)
		require.NoError(t, d.Resume())
		require.NoError(t, d.Suspend())
		require.NoError(t, d.Resume())
		time.Sleep(time.Minute)

		_, boots, _ = s.last()
		require.Equal(t, 1, boots)
	})
}

func TestPausedGuestHearsNothing(t *testing.T) {
	inBubble(t, libvirt.Options{ShutdownTime: time.Second}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		d := defineWithSeed(t, h, c)
		require.NoError(t, d.Create())
		require.NoError(t, d.Suspend())
		require.Equal(t, real.ERR_OPERATION_INVALID, numberOf(d.Shutdown()))
		require.NoError(t, d.Reboot(0))
		time.Sleep(time.Minute)
		requireState(t, d, real.DOMAIN_PAUSED, int(real.DOMAIN_PAUSED_USER))
	})
}

func TestResetBootsAgainOnceTheOldSoftwareHasEnded(t *testing.T) {
	var running, most int

	boot := func(ctx context.Context, _ libvirt.Guest) {
		running++
		most = max(most, running)

		<-ctx.Done()
		time.Sleep(time.Second)

		running--
	}
	inBubble(t, libvirt.Options{Boot: boot}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		d := defineWithSeed(t, h, c)
		require.NoError(t, d.Create())
		time.Sleep(time.Second)
		require.NoError(t, d.Reset(0))
		time.Sleep(10 * time.Second)
		require.Equal(t, 1, most)
		require.Equal(t, 1, running)
		require.Equal(t, 2, h.Machines()[0].Boots)
	})
}

func TestGuestRestartsItself(t *testing.T) {
	first := true
	boot := func(ctx context.Context, g libvirt.Guest) {
		if first {
			first = false

			g.Reboot()
		}

		<-ctx.Done()
	}
	inBubble(t, libvirt.Options{Boot: boot}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		d := defineWithSeed(t, h, c)
		events := record(t, c)

		require.NoError(t, d.Create())
		require.Contains(t, events(), "domain a rebooted")
		requireState(t, d, real.DOMAIN_RUNNING, int(real.DOMAIN_RUNNING_BOOTED))
		require.Equal(t, 2, h.Machines()[0].Boots)
	})
}

func TestSleepingGuestIsWoken(t *testing.T) {
	boot := func(ctx context.Context, g libvirt.Guest) {
		g.Sleep()
		<-ctx.Done()
	}
	inBubble(t, libvirt.Options{Boot: boot}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		d := defineWithSeed(t, h, c)
		require.NoError(t, d.Create())
		simulated{t: t}.Settle()
		requireState(t, d, real.DOMAIN_PMSUSPENDED, int(real.DOMAIN_PMSUSPENDED_UNKNOWN))
		require.Equal(t, real.ERR_OPERATION_INVALID, numberOf(d.Resume()))
		require.NoError(t, d.PMWakeup(0))
		requireState(t, d, real.DOMAIN_RUNNING, int(real.DOMAIN_RUNNING_WAKEUP))
	})
}

func TestAgentAnswersWhileItRuns(t *testing.T) {
	boot := func(ctx context.Context, g libvirt.Guest) {
		select {
		case <-time.After(time.Minute):
			g.Agent(true)
		case <-ctx.Done():
		}

		<-ctx.Done()
	}
	inBubble(t, libvirt.Options{Boot: boot}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		d := defineWithSeed(t, h, c)
		require.NoError(t, d.Create())

		_, err := d.ListAllInterfaceAddresses(real.DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT)
		require.Equal(t, real.ERR_AGENT_UNRESPONSIVE, numberOf(err))
		time.Sleep(2 * time.Minute)

		addresses, err := d.ListAllInterfaceAddresses(real.DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT)
		require.NoError(t, err)
		require.Equal(t, "192.168.122.2", addresses[0].Addrs[0].Addr)
	})
}

func TestGuestGetsTheAddressThatIsReservedForIt(t *testing.T) {
	inBubble(t, libvirt.Options{Boot: (&software{}).run}, func(t *testing.T, h *libvirt.Hypervisor, c *libvirt.Connect) {
		d := defineWithSeed(t, h, c)
		n, err := c.LookupNetworkByName("default")
		require.NoError(t, err)
		require.NoError(t, n.Update(real.NETWORK_UPDATE_COMMAND_ADD_LAST, real.NETWORK_SECTION_IP_DHCP_HOST, -1,
			"<host mac='52:00:00:00:00:01' ip='192.168.122.77'/>", real.NETWORK_UPDATE_AFFECT_LIVE|real.NETWORK_UPDATE_AFFECT_CONFIG))
		require.NoError(t, d.Create())

		leases, err := n.GetDHCPLeases()
		require.NoError(t, err)
		require.Len(t, leases, 1)
		require.Equal(t, "192.168.122.77", leases[0].IPaddr)
		require.Equal(t, "virbr0", leases[0].Iface)

		addresses, err := d.ListAllInterfaceAddresses(real.DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE)
		require.NoError(t, err)
		require.Equal(t, "52:00:00:00:00:01", addresses[0].Hwaddr)
		require.True(t, slices.ContainsFunc(h.Ledger().Objects(), func(o ledgerObject) bool { return o.Kind == "dhcp-host" }))
	})
}

func TestAddressesRunOut(t *testing.T) {
	const tiny = `<network><name>default</name><ip address='10.0.0.1' netmask='255.255.255.248'><dhcp><range start='10.0.0.2' end='10.0.0.2'/></dhcp></ip></network>`

	inBubble(t, libvirt.Options{Boot: (&software{}).run, Networks: []string{tiny}}, func(t *testing.T, _ *libvirt.Hypervisor, c *libvirt.Connect) {
		for _, name := range []string{"a", "b"} {
			d, err := c.DomainDefineXML(domainXML(name, "<interface type='network'><source network='default'/></interface>"))
			require.NoError(t, err)
			require.NoError(t, d.Create())
		}

		n, err := c.LookupNetworkByName("default")
		require.NoError(t, err)

		leases, err := n.GetDHCPLeases()
		require.NoError(t, err)
		require.Len(t, leases, 1)
		require.EqualValues(t, 29, leases[0].Prefix)
	})
}
