package machine

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// small is the least that a class has to say.
const small = "cores: 2\nmemory: 4096\ndisk_size: 20\n"

// decode reads the class data of a small machine with something more: lines of YAML, or the inside of one mapping.
func decode(t testing.TB, extra string) ClassData {
	t.Helper()

	text := small + extra
	if inside, ok := strings.CutPrefix(extra, "{"); ok {
		text = "{cores: 2, memory: 4096, disk_size: 20, " + inside
	}

	data, err := classdata.Decode[ClassData](text)
	require.NoError(t, err)

	return data
}

func TestSchemaIsPublishedAsItIs(t *testing.T) {
	require.True(t, json.Valid([]byte(Schema())))
	golden(t, "schema.json", Schema()+"\n")
}

func TestClassDataThatCannotWorkIsRefusedWithItsField(t *testing.T) {
	_, err := classdata.Decode[ClassData](small)
	require.NoError(t, err)

	for _, test := range []struct{ name, data, want string }{
		{"empty", "", "cores: required"},
		{"misspelt", "cores: 2\nmemroy: 2048\ndisk_size: 20", `did you mean "memory"?`},
		{"memory in GiB", "cores: 2\nmemory: 4\ndisk_size: 20", "memory: got the number 4"},
		{"no interface", small + "network_interfaces: []", "network_interfaces"},
		{"unknown driver", small + "network_interfaces: [{driver: rtl8139}]", "network_interfaces[0].driver"},
		{"bridge without name", small + "network_interfaces: [{type: bridge}]", "network_interfaces[0].network_name: required with type bridge"},
		{"direct without name", small + "network_interfaces: [{type: direct}]", "network_interfaces[0].network_name: required with type direct"},
		{"user with network", small + "network_interfaces: [{type: user, network_name: x}]", "network_interfaces[0].network_name: got \"x\""},
		{"no address", small + "network_interfaces: [{physical_address: nonsense}]", "network_interfaces[0].physical_address: got \"nonsense\""},
		{"group address", small + "network_interfaces: [{physical_address: '01:00:5e:00:00:01'}]", "network_interfaces[0].physical_address"},
		{
			"address twice", small + "network_interfaces: [{physical_address: '52:54:00:00:00:01'}, {physical_address: '52-54-00-00-00-01'}]",
			"network_interfaces[1].physical_address: 52:54:00:00:00:01 is taken by network_interfaces[0]",
		},
		{"port group of a bridge", small + "network_interfaces: [{type: bridge, network_name: br0, portgroup: x}]", "network_interfaces[0].portgroup: type bridge has none: want type network"},
		{"VLAN of the host", small + "network_interfaces: [{type: user, vlan: 3}]", "network_interfaces[0].vlan: type user has none: want type network or bridge"},
		{"VLAN 4095", small + "network_interfaces: [{vlan: 4095}]", "network_interfaces[0].vlan: got the number 4095"},
		{"Open vSwitch network", small + "network_interfaces: [{openvswitch: true}]", "network_interfaces[0].openvswitch: type network has none"},
		{"mode of a bridge", small + "network_interfaces: [{direct_mode: vepa}]", "network_interfaces[0].direct_mode: type network has none"},
		{"MTU of macvtap", small + "network_interfaces: [{type: direct, network_name: eth0, mtu: 9000}]", "network_interfaces[0].mtu: type direct has none"},
		{"MTU of e1000e", small + "network_interfaces: [{driver: e1000e, mtu: 9000}]", "network_interfaces[0].mtu: driver e1000e cannot be told"},
		{"reservation on a bridge", small + "network_interfaces: [{type: bridge, network_name: br0, dhcp_reservation: true}]", "network_interfaces[0].dhcp_reservation: type bridge has none"},
		{"address without reservation", small + "network_interfaces: [{dhcp_address: 10.0.0.1}]", "network_interfaces[0].dhcp_address: got 10.0.0.1, but it is not reserved"},
		{"address of IPv6", small + "network_interfaces: [{dhcp_reservation: true, dhcp_address: 'fd00::1'}]", "network_interfaces[0].dhcp_address: got fd00::1, want an IPv4 address"},
		{"no address to reserve", small + "network_interfaces: [{dhcp_address: here}]", "network_interfaces[0].dhcp_address: got \"here\""},
		{
			"address reserved twice", small + "network_interfaces: [{dhcp_reservation: true, dhcp_address: 10.0.0.1}, {dhcp_reservation: true, dhcp_address: 10.0.0.1}]",
			"network_interfaces[1].dhcp_address: 10.0.0.1 is taken by network_interfaces[0]",
		},
		{"arm64 with BIOS", small + "arch: arm64\nfirmware: bios", "firmware: arm64"},
		{"arm64 with SATA", small + "arch: arm64\nadditional_disks: [{size: 1, type: sata}]", "additional_disks[0].type: arm64"},
		{"arm64 from SATA", small + "arch: arm64\nsystem_disk: {bus: sata}", "system_disk.bus: arm64"},
		{"arm64 with dies", small + "arch: arm64\ncpu: {dies: 2}", "cpu.dies: arm64"},
		{"disk without size", small + "additional_disks: [{type: sata}]", "additional_disks[0].size: required"},
		{"native I/O behind a cache", small + "system_disk: {io: native}", "system_disk.io: native needs"},
		{"native I/O behind another", small + "additional_disks: [{size: 1, io: native, cache: writeback}]", "additional_disks[0].io: native needs"},
		{"serial twice", small + "additional_disks: [{size: 1, serial: disk-2}, {size: 1}]", "additional_disks[1].serial: disk-2 is that of additional_disks[0]"},
		{"serial of the system disk", small + "system_disk: {serial: a}\nadditional_disks: [{size: 1, serial: a}]", "additional_disks[0].serial: a is that of system_disk"},
		{"serial too long", small + "system_disk: {serial: " + strings.Repeat("a", 21) + "}", "system_disk.serial"},
		{"Secure Boot with BIOS", small + "firmware: bios\nsecure_boot: true", "firmware: got \"bios\", but secure_boot needs UEFI"},
		{"keys without Secure Boot", small + "enrolled_keys: true", "enrolled_keys: only firmware that checks signatures"},
		{"custom without model", small + "cpu: {mode: custom}", "cpu.model: required with mode custom"},
		{"model without custom", small + "cpu: {model: EPYC}", "cpu.model: got \"EPYC\", but mode is auto"},
		{"uneven topology", small + "cpu: {sockets: 3}", "cpu: 2 cores cannot be divided evenly among 3 sockets with 1 dies and 1 threads: want cores to be a multiple of 3"},
		{"uneven nodes", small + "numa: {guest_nodes: 3}", "numa.guest_nodes: 2 cores cannot be divided evenly among 3 nodes; numa.guest_nodes: 4096 MiB"},
		{"uneven pages", "cores: 2\nmemory: 4097\ndisk_size: 20\nhugepages: 2M", "hugepages: 4097 MiB of memory on 1 nodes is no multiple of a page of 2M"},
		{"pages per node", small + "hugepages: 1G\nnuma: {guest_nodes: 2}\ncpu: {sockets: 2}", ""},
		{"pages over nodes", "cores: 2\nmemory: 3072\ndisk_size: 20\nhugepages: 1G\nnuma: {guest_nodes: 2}", "hugepages: 3072 MiB of memory on 2 nodes"},
		{"nodeset backwards", small + "numa: {nodeset: 3-1}", "numa.nodeset: got the range \"3-1\", want the smaller number first"},
		{"node twice", small + "numa: {nodeset: '0-2,1'}", "numa.nodeset: node 1 is in"},
		{"no nodeset", small + "numa: {nodeset: all}", "numa.nodeset: got the text \"all\""},
		{"preferred nodes", small + "numa: {nodeset: 0-1, mode: preferred}", "numa.nodeset: got 2 nodes, but mode preferred takes one"},
		{"device of nothing", small + "pci_devices: [{}]", "pci_devices[0]: selects nothing: want an address, or a vendor"},
		{"device of all", small + "pci_devices: [{address: '3b:00.0', count: 2}]", "pci_devices[0]: got an address and vendor, product or count"},
		{"device nowhere", small + "pci_devices: [{address: gpu0}]", "pci_devices[0].address: got the text \"gpu0\""},
		{"device twice", small + "pci_devices: [{address: '3b:00.0'}, {address: '0000:3B:00.0'}]", "pci_devices[1].address: 0000:3b:00.0 is that of pci_devices[0]"},
		{"mediated device of nothing", small + "mediated_devices: [{count: 1}]", "mediated_devices[0]: selects nothing"},
		{"mediated device of all", small + "mediated_devices: [{type: t, uuid: c6f3b5d2-0e55-4a8e-9f5e-1b6f6f0f3a01}]", "mediated_devices[0]: got a uuid and type or count"},
		{
			"mediated device twice", small + "mediated_devices: [{uuid: c6f3b5d2-0e55-4a8e-9f5e-1b6f6f0f3a01}, {uuid: C6f3b5d2-0e55-4a8e-9f5e-1b6f6f0f3a01}]",
			"mediated_devices[1].uuid: c6f3b5d2-0e55-4a8e-9f5e-1b6f6f0f3a01 is that of mediated_devices[0]",
		},
		{"screen without card", small + "graphics: vnc", "graphics: vnc shows a screen, but video is none"},
		{"agent without channel", small + "guest_agent: false\nextensions: [siderolabs/qemu-guest-agent]", "extensions: siderolabs/qemu-guest-agent waits for a channel"},
		{"extension by name", small + "extensions: [iscsi-tools]", "extensions[0]: got the text \"iscsi-tools\""},
		{"two arguments in one", small + "kernel_args: ['a b']", "kernel_args[0]: got the text \"a b\""},
		{"label of the state", small + "labels: [{name: state, value: x}]", "labels[0].name: \"state\" is taken by Omni or this provider"},
		{"label taken", small + "labels: [{name: pool, value: x}]", "labels[0].name: \"pool\" is taken by Omni or this provider"},
		{"label of Omni", small + "labels: [{name: omni.sidero.dev/cluster, value: x}]", "labels[0].name: \"omni.sidero.dev/cluster\" is taken"},
		{"label twice", small + "labels: [{name: a}, {name: a}]", "labels[1].name: \"a\" is that of labels[0]"},
		{"label with blanks", small + "labels: [{name: a, value: b c}]", "labels[0].value: got the text \"b c\""},
		{"patch with a typing mistake", small + "config_patches: ['machine: {sysctl: {a: b}}']", "config_patches[0]: not a patch of Talos' configuration that Omni takes: error decoding document /v1alpha1/ (line 1): unknown keys found during decoding: machine: sysctl: {a: b}"},
		{"second patch", small + "config_patches: ['machine: {sysctls: {a: b}}', '[]']", "config_patches[1]: not a patch"},
		{"empty patch", small + "config_patches: ['']", "config_patches[0]: not a patch"},
		{"unknown document", small + "config_patches: ['{apiVersion: v1alpha1, kind: Nonsense}']", "config_patches[0]: not a patch"},
		{"patch of what Omni owns", small + "config_patches: ['machine: {token: x}']", `config_patches[0]: not a patch of Talos' configuration that Omni takes: 1 error occurred: * overriding "machine.token" is not allowed`},
		{"unknown placement", small + "placement: here", "placement: got the text \"here\", want one of most-memory, spread"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := classdata.Decode[ClassData](test.data)

			if test.want == "" {
				require.NoError(t, err)

				return
			}

			require.ErrorContains(t, err, test.want)
			require.Equal(t, driver.KindTerminal, driver.KindOf(err))
		})
	}
}

func TestClassesOfTheOfficialProviderMeanTheSame(t *testing.T) {
	for _, data := range []string{
		"{cores: 2, memory: 4096, disk_size: 20, storage_pool: default}",
		`{"cores": 1, "memory": 2048, "disk_size": 10, "storage_pool": "fast",
		  "additional_disks": [{"type": "nvme", "size": 20}, {"type": "sata", "size": 10}],
		  "network_interfaces": [{"driver": "virtio", "network_name": "default", "physical_address": ""}, {"driver": "e1000e", "network_name": "lab"}]}`,
	} {
		got, err := classdata.Decode[ClassData](data)
		require.NoError(t, err)

		// What that provider gives every machine, and what it has no word for.
		require.Equal(t, driver.AMD64, got.Arch)
		require.Equal(t, "default", got.NetworkInterfaces[0].Network())
		require.Equal(t, TypeNetwork, got.NetworkInterfaces[0].Type)
		require.Equal(t, "virtio", got.NetworkInterfaces[0].Driver)
		require.True(t, got.GuestAgent)
		require.False(t, got.SecureBoot)

		// It boots with BIOS: hosts without any UEFI firmware can have such classes.
		h := hostOf(t, "fedora-kvm")
		h.UEFI, h.SecureBoot = false, false
		require.NoError(t, got.CheckHost(h))

		domain, err := describe(got, h)
		require.NoError(t, err)
		require.NotContains(t, domain, "firmware")
		require.Contains(t, domain, `<cpu mode="host-passthrough">`)
	}
}

func TestThePatchesOfAMachineNameItAndKeepTheClassesOrder(t *testing.T) {
	data := decode(t, "config_patches: ['machine: {sysctls: {a: b}}', 'machine: {sysctls: {a: c}}']")
	id := testRequest().Identity

	require.Equal(t, map[string]string{
		"provider-id": "machine:\n  kubelet:\n    extraArgs:\n      provider-id: libvirt://" + id.UUID + "\n",
		"class-00":    "machine: {sysctls: {a: b}}",
		"class-01":    "machine: {sysctls: {a: c}}",
	}, data.Patches(id))

	other := driver.NewIdentity(driver.Ref{ProviderID: "libvirt", RequestID: "other"})
	require.NotEqual(t, data.Patches(id)["provider-id"], data.Patches(other)["provider-id"])

	// Omni takes it for what it is.
	patched := decode(t, "config_patches: []")
	patched.ConfigPatches = []string{data.Patches(id)["provider-id"]}
	require.NoError(t, patched.Validate())
}

func TestTheAgentsExtensionOfARequestNeedsTheChannel(t *testing.T) {
	extensions := []string{"siderolabs/iscsi-tools", GuestAgentExtension}

	require.NoError(t, decode(t, "{}").CheckExtensions(extensions))
	require.NoError(t, decode(t, "guest_agent: false").CheckExtensions(extensions[:1]))
	require.ErrorContains(t, decode(t, "guest_agent: false").CheckExtensions(extensions), "guest_agent: got false, but the request has the extension siderolabs/qemu-guest-agent")
}

func TestPoolsAreThoseOfAllDisks(t *testing.T) {
	data := decode(t, "additional_disks: [{size: 1}, {size: 1, storage_pool: b}, {size: 1, storage_pool: default}, {size: 1, storage_pool: a}, {size: 1, storage_pool: b}]")

	require.Equal(t, []string{"default", "b", "a"}, data.Pools())
	require.Equal(t, data.Pools(), NewMark(testRequest(), data, "v", testTime).Pools())
	require.Equal(t, "default", data.PoolOf(0))
	require.Equal(t, "b", data.PoolOf(1))
}

// Class data comes from whoever may write machine classes.
func FuzzClassData(f *testing.F) {
	for _, data := range classes(f) {
		text, err := json.Marshal(data)
		require.NoError(f, err)
		f.Add(string(text))
	}

	h := hostOf(f, "fedora-kvm")
	emulated := hostOf(f, "debian-emulated")

	f.Fuzz(func(t *testing.T, text string) {
		data, err := classdata.Decode[ClassData](text)
		if err != nil {
			return
		}

		for _, host := range []Host{h, emulated} {
			if data.CheckHost(host) == nil {
				_, err := describe(data, host)
				require.NoError(t, err)
			}
		}
	})
}
