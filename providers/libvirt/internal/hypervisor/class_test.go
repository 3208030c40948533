package hypervisor

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connectiontest"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// bootImage is a small one.
type bootImage struct{}

func (bootImage) Key() string { return "talos" }
func (bootImage) URL() string { return "https://factory.example.org/talos" }
func (bootImage) Open(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(make([]byte, 1<<20))), nil
}

// simulated runs a test with a host on a simulated hypervisor, whose witness is a connection of its own.
func simulated(t *testing.T, opts sim.Options, test func(t *testing.T, h *Host, witness *sim.Connect)) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		s := sim.New(opts)
		defer s.Close()

		h := New(Config{Name: "alpha", Config: connection.Config{Open: connectiontest.Open(s.Client())}})
		defer h.Close()

		witness, err := s.Connect()
		require.NoError(t, err)

		defer func() { _, _ = witness.Close() }()

		test(t, h, witness)
	})
}

// made is a machine that is made up to its start.
func made(ctx context.Context, t *testing.T, h *Host, id, class string) (driver.Request, error) {
	t.Helper()

	ref := driver.Ref{ProviderID: "libvirt", RequestID: id}
	req := driver.Request{Ref: ref, Identity: driver.NewIdentity(ref), Set: "set", TalosVersion: "v1.13.5"}

	data, err := classdata.Decode[machine.ClassData](class)
	require.NoError(t, err)

	if err := h.Suits(ctx, req, data); err != nil {
		return req, err
	}

	b := h.NewBuilder(req, data)
	task := driver.Task{Request: req, Image: bootImage{}, Join: driver.Join{UserData: "---"}, Progress: func(string) {}}

	for _, step := range []func(context.Context, driver.Task) error{
		b.EnsureImage, b.CreateVolumes, b.CreateSeed, b.DefineDomain, b.ReserveAddresses, b.ReserveAddresses, b.StartDomain,
	} {
		if err := step(ctx, task); err != nil {
			return req, err
		}
	}

	return req, nil
}

func removed(ctx context.Context, t *testing.T, h *Host, ref driver.Ref) {
	t.Helper()

	for {
		done, err := h.Remove(ctx, ref)
		if driver.KindOf(err) == driver.KindPending {
			time.Sleep(time.Second)

			continue
		}

		require.NoError(t, err)
		require.True(t, done)

		return
	}
}

func networkSeen(t *testing.T, c *sim.Connect, name string) machine.Network {
	t.Helper()

	n, err := c.LookupNetworkByName(name)
	require.NoError(t, err)

	defer func() { _ = n.Free() }()

	desc, err := n.GetXMLDesc(0)
	require.NoError(t, err)

	is, err := machine.ParseNetwork(desc)
	require.NoError(t, err)

	return is
}

const labNetwork = `<network><name>lab</name><ip address='192.168.150.1' netmask='255.255.255.248'><dhcp>
	<range start='192.168.150.2' end='192.168.150.6'/><host mac='52:54:00:00:00:99' name='printer' ip='192.168.150.6'/></dhcp></ip></network>`

func TestReservedAddressesComeAndGoWithTheirMachines(t *testing.T) {
	simulated(t, sim.Options{Networks: []string{labNetwork}}, func(t *testing.T, h *Host, witness *sim.Connect) {
		const class = "network_interfaces: [{network_name: lab, dhcp_reservation: true}]"

		before := networkSeen(t, witness, "lab").Reserved

		var requests []driver.Request

		// Four are left in the network.
		for i := range 4 {
			req, err := made(t.Context(), t, h, fmt.Sprintf("m-%d", i), withDefaults(class))
			require.NoError(t, err)

			requests = append(requests, req)
		}

		all := networkSeen(t, witness, "lab").Reserved
		require.Len(t, all, 5)
		require.Equal(t, before[0], all[0])

		addresses := map[string]bool{}
		for _, r := range all {
			addresses[r.Address.String()] = true
		}

		require.Len(t, addresses, 5)

		_, err := made(t.Context(), t, h, "m-4", withDefaults(class))
		require.ErrorContains(t, err, `network_interfaces[0].dhcp_reservation: reserve an address of network "lab"`)
		require.Equal(t, driver.KindCapacity, driver.KindOf(err))

		for _, req := range requests {
			removed(t.Context(), t, h, req.Ref)
		}

		removed(t.Context(), t, h, driver.Ref{ProviderID: "libvirt", RequestID: "m-4"})
		require.Equal(t, before, networkSeen(t, witness, "lab").Reserved)
	})
}

func TestAReservationWithTheClassesOwnAddressesIsFoundByTheDomain(t *testing.T) {
	simulated(t, sim.Options{Networks: []string{labNetwork}}, func(t *testing.T, h *Host, witness *sim.Connect) {
		const class = "network_interfaces: [{network_name: lab, physical_address: '52:54:00:AA:00:01', dhcp_reservation: true, dhcp_address: 192.168.150.3}]"

		before := networkSeen(t, witness, "lab").Reserved

		req, err := made(t.Context(), t, h, "one", withDefaults(class))
		require.NoError(t, err)
		require.Contains(t, fmt.Sprint(networkSeen(t, witness, "lab").Reserved), "52:54:00:aa:00:01 one 192.168.150.3")

		// Its own entry is in nobody's way but another's.
		again, err := classdata.Decode[machine.ClassData]("cores: 1\nmemory: 2048\ndisk_size: 1\n" + class)
		require.NoError(t, err)
		require.NoError(t, h.Suits(t.Context(), req, again))

		_, err = made(t.Context(), t, h, "two", withDefaults(strings.Replace(class, "01'", "02'", 1)))
		require.ErrorContains(t, err, "network_interfaces[0].dhcp_address: 192.168.150.3 is kept for 52:54:00:aa:00:01 one")

		removed(t.Context(), t, h, req.Ref)
		require.Equal(t, before, networkSeen(t, witness, "lab").Reserved)
	})
}

const vlanNetwork = `<network><name>vlans</name><forward mode='bridge'/><bridge name='ovsbr0'/><virtualport type='openvswitch'/>
	<portgroup name='vlan-10' default='yes'><vlan><tag id='10'/></vlan></portgroup><portgroup name='vlan-20'><vlan><tag id='20'/></vlan></portgroup></network>`

func gpu(bus int, vendor, product string) string {
	return fmt.Sprintf(`<device><name>pci_0000_%02[1]x_00_0</name><parent>computer</parent><capability type='pci'><class>0x030200</class>
		<domain>0</domain><bus>%[1]d</bus><slot>0</slot><function>0</function><product id='0x%[3]s'/><vendor id='0x%[2]s'/>
		<iommuGroup number='%[1]d'/></capability></device>`, bus, vendor, product)
}

func vgpu(number int, kind string) string {
	return fmt.Sprintf(`<device><name>mdev_c6f3b5d2_0e55_4a8e_9f5e_1b6f6f0f3a0%[1]d_0000_d8_00_0</name><parent>computer</parent>
		<capability type='mdev'><type id='%[2]s'/><uuid>c6f3b5d2-0e55-4a8e-9f5e-1b6f6f0f3a0%[1]d</uuid><iommuGroup number='%[1]d'/></capability></device>`, number, kind)
}

func TestEachMachineGetsADeviceOfItsOwn(t *testing.T) {
	simulated(t, sim.Options{Devices: []string{gpu(0x3b, "10de", "20b5"), gpu(0x5e, "10de", "20b5")}}, func(t *testing.T, h *Host, witness *sim.Connect) {
		const class = "pci_devices: [{vendor: 10de, product: 20b5}]"

		devices := func(id string) []string {
			dom, err := witness.LookupDomainByName(machine.NamesOf(driver.Ref{ProviderID: "libvirt", RequestID: id}).Domain)
			require.NoError(t, err)

			defer func() { _ = dom.Free() }()

			desc, err := dom.GetXMLDesc(0)
			require.NoError(t, err)

			taken, err := machine.TakenDevices(desc)
			require.NoError(t, err)

			return taken
		}

		one, err := made(t.Context(), t, h, "one", withDefaults(class))
		require.NoError(t, err)

		two, err := made(t.Context(), t, h, "two", withDefaults(class))
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"pci 0000:3b:00.0", "pci 0000:5e:00.0"}, slices.Concat(devices("one"), devices("two")))

		_, err = made(t.Context(), t, h, "three", withDefaults(class))
		require.ErrorContains(t, err, "pci_devices[0]: the host has 2 devices of vendor 10de and product 20b5, of which 0 are free: want 1")
		require.Equal(t, driver.KindCapacity, driver.KindOf(err))

		free := devices("one")
		removed(t.Context(), t, h, one.Ref)

		_, err = made(t.Context(), t, h, "three", withDefaults(class))
		require.NoError(t, err)
		require.Equal(t, free, devices("three"))

		removed(t.Context(), t, h, two.Ref)
	})
}

func TestWhatTheHostLacksIsSaidBeforeAnythingIsMade(t *testing.T) {
	for _, test := range []struct {
		host        sim.Host
		class, want string
	}{
		{sim.Host{}, "arch: arm64", "arch: the host has no emulator for arm64"},
		{sim.Host{NoUEFI: true}, "firmware: uefi", "firmware: the host has no UEFI firmware"},
		{sim.Host{NoSecureBoot: true}, "secure_boot: true", "secure_boot: the host has no UEFI firmware for amd64 that checks signatures"},
		{sim.Host{NoTPM: true}, "tpm: true", "tpm: the host cannot emulate a TPM 2.0"},
		{sim.Host{}, "hugepages: 2M", "hugepages: the host has set 0 pages of 2M aside"},
		{sim.Host{Emulated: true}, "cpu: {mode: host-passthrough}", "cpu.mode: the host cannot give machines"},
		{sim.Host{}, "numa: {nodeset: '7'}", "numa.nodeset: the host has no node 7"},
		{sim.Host{Memory: 1024}, "autostart: false", "memory: got 2048 MiB, but the host has 1024 MiB"},
		{sim.Host{}, "network_interfaces: [{vlan: 5}]", "network_interfaces[0].vlan: network \"default\" does not lie on Open vSwitch"},
		{sim.Host{}, "network_interfaces: [{}, {network_name: other}]", "network_interfaces[1].network_name: libvirt has no network \"other\"; it has default"},
	} {
		t.Run(test.class, func(t *testing.T) {
			simulated(t, sim.Options{Host: test.host}, func(t *testing.T, h *Host, witness *sim.Connect) {
				_, err := made(t.Context(), t, h, "one", withDefaults(test.class))
				require.ErrorContains(t, err, test.want)
				require.Equal(t, driver.KindTerminal, driver.KindOf(err))

				domains, err := witness.ListAllDomains(0)
				require.NoError(t, err)
				require.Empty(t, domains)

				pool, err := witness.LookupStoragePoolByName("default")
				require.NoError(t, err)

				defer func() { _ = pool.Free() }()

				volumes, err := pool.ListAllStorageVolumes(0)
				require.NoError(t, err)
				require.Empty(t, volumes)
			})
		})
	}
}

func TestLabelsAndAutostartAreThoseOfTheClass(t *testing.T) {
	simulated(t, sim.Options{}, func(t *testing.T, h *Host, witness *sim.Connect) {
		for class, starts := range map[string]bool{"labels: [{name: role, value: db}]": true, "autostart: false\nlabels: [{name: role, value: db}]": false} {
			id := fmt.Sprintf("starts-%v", starts)
			req, err := made(t.Context(), t, h, id, withDefaults(class))
			require.NoError(t, err)

			found, err := h.Find(t.Context(), req.Ref)
			require.NoError(t, err)
			require.Equal(t, map[string]string{"role": "db", "host": "hypervisor", "pool": "default", "state": "running"}, found.Labels)

			dom, err := witness.LookupDomainByName(found.ID)
			require.NoError(t, err)

			got, err := dom.GetAutostart()
			require.NoError(t, err)
			require.Equal(t, starts, got, class)
			require.NoError(t, dom.Free())
		}
	})
}

// The simulated hypervisor and the real one are held to the same domains.
func TestTheSimulatedHypervisorTakesEveryDomainOfTheMatrix(t *testing.T) {
	files, err := filepath.Glob("../machine/testdata/matrix/*.xml")
	require.NoError(t, err)
	require.Greater(t, len(files), 30)

	for _, file := range files {
		desc, err := os.ReadFile(file)
		require.NoError(t, err)

		s := sim.New(sim.Options{Host: sim.Host{Arches: []string{"x86_64", "aarch64"}}})

		c, err := s.Connect()
		require.NoError(t, err)

		// It has KVM for one architecture.
		text := string(desc)
		if strings.Contains(text, "aarch64") {
			text = strings.Replace(strings.Replace(text, `type="kvm"`, `type="qemu"`, 1), "host-passthrough", "maximum", 1)
		}

		dom, err := c.DomainDefineXMLFlags(text, libvirt.DOMAIN_DEFINE_VALIDATE)
		require.NoError(t, err, file)

		kept, err := dom.GetXMLDesc(libvirt.DOMAIN_XML_INACTIVE)
		require.NoError(t, err)

		for _, element := range []string{"<disk ", "<interface ", "<hostdev ", "<tpm ", "<watchdog ", "<cell ", "<page ", "<mtu ", "<log "} {
			require.Equal(t, strings.Count(text, element), strings.Count(kept, element), "%s in %s", element, file)
		}

		require.NoError(t, dom.Free())

		_, err = c.Close()
		require.NoError(t, err)
		s.Close()
	}
}
