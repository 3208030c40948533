package hypervisor

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
)

// changes holds for each field of class data, by its path, two classes that differ in that field alone.
var changes = map[string][2]string{
	"cores":        {"cores: 2", "cores: 4"},
	"memory":       {"memory: 2048", "memory: 4096"},
	"disk_size":    {"disk_size: 1", "disk_size: 2"},
	"storage_pool": {"storage_pool: default", "storage_pool: fast"},

	"network_interfaces[].type":             {"network_interfaces: [{}]", "network_interfaces: [{type: user}]"},
	"network_interfaces[].network_name":     {"network_interfaces: [{}]", "network_interfaces: [{network_name: lab}]"},
	"network_interfaces[].portgroup":        {"network_interfaces: [{network_name: vlans}]", "network_interfaces: [{network_name: vlans, portgroup: vlan-20}]"},
	"network_interfaces[].vlan":             {"network_interfaces: [{network_name: vlans}]", "network_interfaces: [{network_name: vlans, vlan: 20}]"},
	"network_interfaces[].openvswitch":      {"network_interfaces: [{type: bridge, network_name: br0}]", "network_interfaces: [{type: bridge, network_name: br0, openvswitch: true}]"},
	"network_interfaces[].direct_mode":      {"network_interfaces: [{type: direct, network_name: eth0}]", "network_interfaces: [{type: direct, network_name: eth0, direct_mode: vepa}]"},
	"network_interfaces[].driver":           {"network_interfaces: [{}]", "network_interfaces: [{driver: e1000e}]"},
	"network_interfaces[].mtu":              {"network_interfaces: [{}]", "network_interfaces: [{mtu: 9000}]"},
	"network_interfaces[].physical_address": {"network_interfaces: [{}]", "network_interfaces: [{physical_address: '52:54:00:00:00:01'}]"},
	"network_interfaces[].dhcp_reservation": {"network_interfaces: [{network_name: lab}]", "network_interfaces: [{network_name: lab, dhcp_reservation: true}]"},
	"network_interfaces[].dhcp_address": {
		"network_interfaces: [{network_name: lab, dhcp_reservation: true}]", "network_interfaces: [{network_name: lab, dhcp_reservation: true, dhcp_address: 192.168.150.3}]",
	},

	"additional_disks[].type":         {"additional_disks: [{size: 1}]", "additional_disks: [{size: 1, type: sata}]"},
	"additional_disks[].size":         {"additional_disks: [{size: 1}]", "additional_disks: [{size: 2}]"},
	"additional_disks[].storage_pool": {"additional_disks: [{size: 1}]", "additional_disks: [{size: 1, storage_pool: fast}]"},
	"additional_disks[].serial":       {"additional_disks: [{size: 1}]", "additional_disks: [{size: 1, serial: data}]"},
	"additional_disks[].cache":        {"additional_disks: [{size: 1}]", "additional_disks: [{size: 1, cache: unsafe}]"},
	"additional_disks[].io":           {"additional_disks: [{size: 1}]", "additional_disks: [{size: 1, io: threads}]"},
	"additional_disks[].discard":      {"additional_disks: [{size: 1}]", "additional_disks: [{size: 1, discard: ignore}]"},

	"system_disk.bus":     {"system_disk: {}", "system_disk: {bus: scsi}"},
	"system_disk.serial":  {"system_disk: {}", "system_disk: {serial: system}"},
	"system_disk.cache":   {"system_disk: {}", "system_disk: {cache: none}"},
	"system_disk.io":      {"system_disk: {cache: none}", "system_disk: {cache: none, io: native}"},
	"system_disk.discard": {"system_disk: {}", "system_disk: {discard: ignore}"},

	"arch":          {"arch: amd64", "arch: arm64"},
	"cpu.mode":      {"cpu: {}", "cpu: {mode: host-model}"},
	"cpu.model":     {"cpu: {mode: custom, model: Nehalem}", "cpu: {mode: custom, model: Westmere}"},
	"cpu.sockets":   {"cpu: {}", "cpu: {sockets: 2}"},
	"cpu.dies":      {"cpu: {sockets: 1}", "cpu: {sockets: 1, dies: 2}"},
	"cpu.threads":   {"cpu: {}", "cpu: {threads: 2}"},
	"firmware":      {"firmware: auto", "firmware: bios"},
	"secure_boot":   {"secure_boot: false", "secure_boot: true"},
	"enrolled_keys": {"secure_boot: true", "secure_boot: true\nenrolled_keys: true"},
	"tpm":           {"tpm: false", "tpm: true"},

	"hugepages":        {"hugepages: off", "hugepages: 2M"},
	"numa.nodeset":     {"numa: {}", "numa: {nodeset: '0'}"},
	"numa.mode":        {"numa: {nodeset: '0'}", "numa: {nodeset: '0', mode: preferred}"},
	"numa.guest_nodes": {"numa: {}", "numa: {guest_nodes: 2}"},

	"pci_devices[].address":    {"pci_devices: [{address: '3b:00.0'}]", "pci_devices: [{address: '5e:00.0'}]"},
	"pci_devices[].vendor":     {"pci_devices: [{vendor: 10de}]", "pci_devices: [{vendor: '1002'}]"},
	"pci_devices[].product":    {"pci_devices: [{vendor: 10de, product: 20b5}]", "pci_devices: [{vendor: 10de, product: 20b6}]"},
	"pci_devices[].count":      {"pci_devices: [{vendor: 10de}]", "pci_devices: [{vendor: 10de, count: 2}]"},
	"mediated_devices[].type":  {"mediated_devices: [{type: nvidia-222}]", "mediated_devices: [{type: nvidia-223}]"},
	"mediated_devices[].uuid":  {"mediated_devices: [{uuid: c6f3b5d2-0e55-4a8e-9f5e-1b6f6f0f3a01}]", "mediated_devices: [{uuid: c6f3b5d2-0e55-4a8e-9f5e-1b6f6f0f3a02}]"},
	"mediated_devices[].count": {"mediated_devices: [{type: nvidia-222}]", "mediated_devices: [{type: nvidia-222, count: 2}]"},

	"video":          {"video: virtio", "video: vga"},
	"graphics":       {"video: vga", "video: vga\ngraphics: vnc"},
	"console_log":    {"console_log: false", "console_log: true"},
	"guest_agent":    {"guest_agent: true", "guest_agent: false"},
	"memory_balloon": {"memory_balloon: true", "memory_balloon: false"},
	"watchdog":       {"watchdog: none", "watchdog: reset"},
	"autostart":      {"autostart: true", "autostart: false"},
	"extensions":     {"extensions: [siderolabs/a]", "extensions: [siderolabs/b]"},
	"kernel_args":    {"kernel_args: [a=1]", "kernel_args: [a=2]"},
	"config_patches": {"config_patches: ['machine: {sysctls: {a: b}}']", "config_patches: ['machine: {sysctls: {a: c}}']"},
	"labels[].name":  {"labels: [{name: a, value: x}]", "labels: [{name: b, value: x}]"},
	"labels[].value": {"labels: [{name: a, value: x}]", "labels: [{name: a, value: y}]"},
}

// chosenByTheDriver are fields that say where a machine is made, not what it is: package provider reads them.
var chosenByTheDriver = []string{"host", "placement"}

func TestEachFieldOfClassDataChangesTheMachine(t *testing.T) {
	paths := leaves(reflect.TypeFor[machine.ClassData](), "")

	for path := range changes {
		require.Contains(t, paths, path, "no such field")
	}

	for _, path := range paths {
		if slices.Contains(chosenByTheDriver, path) {
			continue
		}

		t.Run(path, func(t *testing.T) {
			change, ok := changes[path]
			require.True(t, ok, "it is not known how this field changes a machine")

			from, to := decoded(t, change[0]), decoded(t, change[1])
			require.Equal(t, []string{path}, differences(reflect.ValueOf(from), reflect.ValueOf(to), ""))

			require.Equal(t, artefacts(t, change[0]), artefacts(t, change[0]), "the same class gives the same machine")
			require.NotEqual(t, artefacts(t, change[0]), artefacts(t, change[1]))
		})
	}
}

func withDefaults(extra string) string {
	for _, line := range []string{"cores: 2", "memory: 2048", "disk_size: 1"} {
		if name, _, _ := strings.Cut(line, ":"); !strings.HasPrefix(extra, name+":") {
			extra += "\n" + line
		}
	}

	return extra
}

func decoded(t *testing.T, extra string) machine.ClassData {
	t.Helper()

	data, err := classdata.Decode[machine.ClassData](withDefaults(extra))
	require.NoError(t, err)

	return data
}

// leaves are the paths of all fields that hold a value.
func leaves(of reflect.Type, path string) []string {
	var all []string

	for _, f := range reflect.VisibleFields(of) {
		if f.Anonymous {
			continue
		}

		at, kind := path+f.Tag.Get("json"), f.Type

		if kind.Kind() == reflect.Slice && kind.Elem().Kind() == reflect.Struct {
			at, kind = at+"[]", kind.Elem()
		}

		if kind.Kind() == reflect.Struct && kind.PkgPath() == of.PkgPath() {
			all = append(all, leaves(kind, at+".")...)
		} else {
			all = append(all, at)
		}
	}

	return all
}

// differences are the paths of the fields in which two classes differ.
func differences(a, b reflect.Value, path string) []string {
	var all []string

	for _, f := range reflect.VisibleFields(a.Type()) {
		if f.Anonymous {
			continue
		}

		at, x, y := path+f.Tag.Get("json"), a.FieldByIndex(f.Index), b.FieldByIndex(f.Index)

		switch {
		case x.Kind() == reflect.Slice && x.Type().Elem().Kind() == reflect.Struct && x.Len() == y.Len():
			for i := range x.Len() {
				all = append(all, differences(x.Index(i), y.Index(i), at+"[].")...)
			}
		case x.Kind() == reflect.Struct && x.Type().PkgPath() == a.Type().PkgPath():
			all = append(all, differences(x, y, at+".")...)
		case !reflect.DeepEqual(x.Interface(), y.Interface()):
			all = append(all, at)
		}
	}

	return all
}

// artefacts are all that a class leads to: what is in libvirt once the machine runs, its image and its configuration.
func artefacts(t *testing.T, extra string) (found []string) {
	t.Helper()

	data := decoded(t, extra)
	opts := sim.Options{
		Host:     sim.Host{Arches: []string{"x86_64", "aarch64"}, Hugepages: 4096},
		Pools:    []sim.Pool{{Name: "default"}, {Name: "fast"}},
		Networks: []string{"<network><name>default</name><bridge name='virbr0'/></network>", labNetwork, vlanNetwork},
		Devices:  []string{gpu(0x3b, "10de", "20b5"), gpu(0x5e, "10de", "20b6"), gpu(0x86, "1002", "740f"), vgpu(1, "nvidia-222"), vgpu(2, "nvidia-222"), vgpu(3, "nvidia-223")},
	}

	simulated(t, opts, func(t *testing.T, h *Host, witness *sim.Connect) {
		req, err := made(t.Context(), t, h, "one", withDefaults(extra))
		require.NoError(t, err)

		found = append(found, fmt.Sprintf("%+v", *data.Image()), fmt.Sprint(data.Patches(req.Identity)))

		dom, err := witness.LookupDomainByUUIDString(req.Identity.UUID)
		require.NoError(t, err)

		desc, err := dom.GetXMLDesc(libvirt.DOMAIN_XML_INACTIVE)
		require.NoError(t, err)

		autostart, err := dom.GetAutostart()
		require.NoError(t, err)

		found = append(found, desc, fmt.Sprint(autostart))

		networks, err := witness.ListAllNetworks(0)
		require.NoError(t, err)

		for i := range networks {
			desc, err := networks[i].GetXMLDesc(0)
			require.NoError(t, err)

			found = append(found, desc)
		}

		pools, err := witness.ListAllStoragePools(0)
		require.NoError(t, err)

		for i := range pools {
			volumes, err := pools[i].ListAllStorageVolumes(0)
			require.NoError(t, err)

			for j := range volumes {
				name, err := volumes[j].GetName()
				require.NoError(t, err)

				// The image has a random name.
				if !strings.HasPrefix(name, machine.ImagePrefix(req.ProviderID)) {
					info, err := volumes[j].GetInfo()
					require.NoError(t, err)

					path, err := volumes[j].GetPath()
					require.NoError(t, err)

					found = append(found, fmt.Sprint(path, info.Capacity))
				}
			}
		}
	})

	return found
}
