package machine

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestHostIsReadFromCapabilities(t *testing.T) {
	for _, test := range []struct {
		name, desc string
		want       Host
	}{
		{
			"emulated",
			`<domainCapabilities><domain>qemu</domain><os supported='yes'><enum name='firmware'><value>efi</value></enum></os>
			 <cpu><mode name='host-passthrough' supported='no'/><mode name='maximum' supported='yes'/></cpu></domainCapabilities>`,
			Host{Type: "qemu", CPU: "maximum", UEFI: true, CPUModes: []string{"maximum"}},
		},
		{
			"KVM without UEFI",
			`<domainCapabilities><domain>kvm</domain><os supported='yes'><enum name='firmware'/></os>
			 <cpu><mode name='host-passthrough' supported='yes'/><mode name='maximum' supported='yes'/></cpu></domainCapabilities>`,
			Host{Type: "kvm", CPU: "host-passthrough", CPUModes: []string{"host-passthrough", "maximum"}},
		},
		{
			"KVM with a model only",
			`<domainCapabilities><domain>kvm</domain><cpu><mode name='host-passthrough' supported='no'/><mode name='host-model' supported='yes'/></cpu></domainCapabilities>`,
			Host{Type: "kvm", CPU: "host-model", CPUModes: []string{"host-model"}},
		},
		{
			"devices",
			`<domainCapabilities><domain>kvm</domain><devices><disk><enum name='bus'><value>virtio</value></enum></disk>
			 <tpm supported='yes'><enum name='backendModel'><value>emulator</value></enum><enum name='backendVersion'><value>1.2</value></enum></tpm>
			 <hostdev supported='yes'><enum name='pciBackend'><value>vfio</value></enum></hostdev></devices></domainCapabilities>`,
			Host{Type: "kvm", DiskBuses: []string{"virtio"}, TPM: new(false), PCIPassthrough: new(true)},
		},
		{"nothing", `<domainCapabilities/>`, Host{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseHost(HostDocuments{Domain: test.desc})
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}

	for _, docs := range []HostDocuments{{Domain: "<domain/>"}, {Host: "<host/>"}, {Devices: []string{"<devices/>"}}} {
		_, err := ParseHost(docs)
		require.Error(t, err)
	}
}

// A real libvirtd 9.0 with QEMU 7.2 on Debian 12, without KVM, IOMMU, swtpm and huge pages.
func TestARealHostIsReadAsItIs(t *testing.T) {
	h := hostOf(t, "debian-emulated")

	require.Equal(t, "qemu", h.Type)
	require.Equal(t, "maximum", h.CPU)
	require.True(t, h.UEFI)
	require.True(t, h.SecureBoot)
	require.Equal(t, new(false), h.TPM)
	require.Equal(t, new(false), h.IOMMU)
	require.Equal(t, new(false), h.PCIPassthrough)
	require.Equal(t, 288, h.MaxCores)
	require.Equal(t, []string{"maximum", "host-model", "custom"}, h.CPUModes)
	require.Greater(t, len(h.CPUModels), 50)
	require.True(t, h.CPUModels["pentium3"])
	require.Equal(t, []string{"i686", "x86_64"}, h.Archs)
	require.Equal(t, []Node{{ID: 0, Memory: 7956696, CPUs: []int{0, 1}, Pages: map[uint64]uint64{4: 1989174, 2048: 0, 1048576: 0}}}, h.Nodes)
	require.Equal(t, []string{"lo"}, h.Interfaces)
	require.Contains(t, h.PCI, HostPCI{Address: "0000:00:01.0", Vendor: "1af4", Product: "1045", Group: -1})
	require.Empty(t, h.Mediated)
}

func TestWhatTheHostCannotDoIsSaidWithItsField(t *testing.T) {
	for _, test := range []struct {
		name, host, extra, want string
	}{
		{"architecture", "debian-kvm", "arch: arm64", "arch: the host has no emulator for arm64; it has i686, x86_64"},
		{"emulated TPM", "debian-emulated", "tpm: true", "tpm: the host cannot emulate a TPM 2.0; install it (packages swtpm and swtpm-tools)"},
		{"TPM of Secure Boot", "debian-emulated", "secure_boot: true", "secure_boot: the host cannot emulate a TPM 2.0"},
		{"secure firmware", "debian-arm64", "{arch: arm64, secure_boot: true}", "secure_boot: the host has no UEFI firmware for arm64 that checks signatures"},
		{"KVM's processor", "debian-emulated", "cpu: {mode: host-passthrough}", "cpu.mode: the host cannot give machines a processor of mode host-passthrough; it has maximum, host-model, custom"},
		{"no models", "fedora-arm64", "{arch: arm64, cpu: {mode: host-model}}", "cpu.mode: the host cannot give machines a processor of mode host-model; it has host-passthrough, maximum"},
		{"unknown model", "fedora-kvm", "cpu: {mode: custom, model: Z80}", "cpu.model: the host knows no model \"Z80\""},
		{"unusable model", "fedora-kvm", "cpu: {mode: custom, model: EPYC-Milan}", "cpu.model: the host's processor lacks what EPYC-Milan has; it has EPYC, EPYC-Rome, qemu64, x86-64-v2-AES"},
		{"cores", "debian-kvm", "cpu: {sockets: 1}", "cores: got 300, but machines on this host have at most 288"},
		{"memory", "debian-emulated", "hugepages: off", "memory: got 8192 MiB, but the host has 7770 MiB"},
		{"page size", "debian-kvm", "hugepages: 64K", "hugepages: the host has no pages of 64K; it has 4 KiB, 2048 KiB, 1048576 KiB"},
		{"pages", "debian-kvm", "hugepages: 1G", "hugepages: the host has set 0 pages of 1G aside, too few for 4096 MiB: want at least 4"},
		{"pages of a node", "fedora-kvm", "{hugepages: 1G, numa: {nodeset: '0'}}", ""},
		{"node", "fedora-kvm", "numa: {nodeset: 0-2}", "numa.nodeset: the host has no node 2; it has 0, 1"},
		{"bridge", "fedora-kvm", "network_interfaces: [{type: bridge, network_name: br7}]", "network_interfaces[0].network_name: the host has no bridge \"br7\""},
		{"interface", "fedora-kvm", "network_interfaces: [{}, {type: direct, network_name: eth7}]", "network_interfaces[1].network_name: the host has no interface \"eth7\""},
		{"graphics", "fedora-kvm", "{video: vga, graphics: spice}", ""},
		{"card", "fedora-arm64", "{arch: arm64, video: vga}", "video: the host has no graphics card vga; it has virtio, none, bochs, ramfb"},
		{"IOMMU", "debian-emulated", "pci_devices: [{vendor: 1af4}]", "pci_devices: the host has no IOMMU"},
		{"no device", "fedora-kvm", "pci_devices: [{vendor: '1002'}]", "pci_devices[0]: the host has 0 devices of vendor 1002: want 1"},
		{"too few devices", "fedora-kvm", "pci_devices: [{vendor: 10de, product: 20b5, count: 4}]", "pci_devices[0]: the host has 3 devices of vendor 10de and product 20b5: want 4"},
		{"device elsewhere", "fedora-kvm", "pci_devices: [{address: 'ff:00.0'}]", "pci_devices[0]: the host has 0 devices at 0000:ff:00.0: want 1"},
		{"bridge as a device", "fedora-kvm", "pci_devices: [{address: '00:01.0'}]", "pci_devices[0]: 0000:00:01.0 is a bridge"},
		{"device without a group", "fedora-kvm", "pci_devices: [{address: '00:1f.0'}]", "pci_devices[0]: 0000:00:1f.0 is in no IOMMU group"},
		{"mediated devices", "fedora-kvm", "mediated_devices: [{type: nvidia-222, count: 3}]", "mediated_devices[0]: the host has 2 mediated devices of type nvidia-222: want 3; mdevctl makes them"},
	} {
		t.Run(test.name, func(t *testing.T) {
			data := decode(t, test.extra)

			switch test.name {
			case "cores":
				data.Cores = 300
			case "memory":
				data.Memory = 8192
			}

			err := data.CheckHost(hostOf(t, test.host))
			if test.want == "" {
				require.NoError(t, err)

				return
			}

			require.ErrorContains(t, err, test.want)
			require.Equal(t, driver.KindTerminal, driver.KindOf(err))
		})
	}
}

func TestWhatOnlyTheProviderKnowsOfAHostIsChecked(t *testing.T) {
	bridge := decode(t, "network_interfaces: [{type: bridge, network_name: br0, vlan: 5}]")
	h := hostOf(t, "fedora-kvm")

	require.NoError(t, bridge.CheckHost(h), "the version is not known")

	h.Version = 10_999_999
	require.ErrorContains(t, bridge.CheckHost(h), "network_interfaces[0].vlan: libvirt before 11.0 tags traffic on bridges of Open vSwitch alone")
	require.NoError(t, decode(t, "network_interfaces: [{type: bridge, network_name: ovsbr0, openvswitch: true, vlan: 5}]").CheckHost(h))

	h.Version = 11_000_000
	require.NoError(t, bridge.CheckHost(h))

	h.Session = true
	require.ErrorContains(t, decode(t, "{}").CheckHost(h), "network_interfaces[0].type: libvirt runs as a plain user, who has no networks of type network")
	require.ErrorContains(t, decode(t, "{network_interfaces: [{type: user}], console_log: true}").CheckHost(h), "console_log: libvirt runs as a plain user")
	require.NoError(t, decode(t, "network_interfaces: [{type: user}]").CheckHost(h))

	h = hostOf(t, "fedora-kvm")
	h.UEFI = false
	require.ErrorContains(t, decode(t, "firmware: uefi").CheckHost(h), `firmware: the host has no UEFI firmware for amd64; install it (package ovmf or edk2-ovmf), or set firmware to "bios"`)
	require.NoError(t, decode(t, "{}").CheckHost(h))

	h = hostOf(t, "fedora-kvm")
	h.PCIPassthrough = new(false)
	require.NoError(t, decode(t, "pci_devices: [{vendor: 10de}]").CheckHost(h))

	h.IOMMU = nil
	require.ErrorContains(t, decode(t, "pci_devices: [{vendor: 10de}]").CheckHost(h), "pci_devices: the host cannot give PCI devices to machines")

	h = hostOf(t, "fedora-arm64")
	h.UEFI = false
	require.ErrorContains(t, decode(t, "arch: arm64").CheckHost(h), "firmware: the host has no UEFI firmware for arm64, which has no other")

	h = hostOf(t, "fedora-kvm")
	h.DiskBuses, h.Graphics = []string{"virtio"}, []string{"vnc"}
	err := decode(t, "{system_disk: {bus: sata}, additional_disks: [{size: 1, type: nvme}, {size: 1, type: scsi}], video: vga, graphics: spice}").CheckHost(h)
	require.ErrorContains(t, err, "system_disk.bus: the host has no disks on sata; it has virtio")
	require.ErrorContains(t, err, "additional_disks[1].type: the host has no disks on scsi")
	require.ErrorContains(t, err, "graphics: the host's hypervisor is built without spice; it has vnc")
	require.NotContains(t, err.Error(), "additional_disks[0]")
}

// libvirt's own simulation has no capabilities and takes what it is given.
func TestWhatIsNotKnownOfAHostIsNotRefused(t *testing.T) {
	for name, data := range classes(t) {
		require.NoError(t, data.CheckHost(Host{Type: "test", UEFI: true}), name)
	}
}

func FuzzHost(f *testing.F) {
	for _, name := range []string{"debian-emulated", "fedora-kvm", "fedora-arm64"} {
		for _, doc := range []string{"domain.xml", "host.xml", "devices.xml"} {
			f.Add(readHostFile(f, name, doc))
		}
	}

	all := classes(f)
	names := slices.Sorted(maps.Keys(all))

	f.Fuzz(func(_ *testing.T, desc string) {
		_, _ = TakenDevices(desc)

		for _, docs := range []HostDocuments{{Domain: desc}, {Host: desc}, {Devices: []string{desc}}} {
			h, err := ParseHost(docs)
			if err != nil {
				continue
			}

			h.Type = "kvm"

			for _, name := range names {
				if all[name].CheckHost(h) == nil {
					_, _ = describe(all[name], h)
				}
			}
		}
	})
}
