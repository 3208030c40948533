package machine

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestSchemaIsPublishedAsItIs(t *testing.T) {
	require.True(t, json.Valid([]byte(Schema())))
	golden(t, "schema.json", Schema())
}

// The official provider's document, from its own tests and its schema.
func TestClassesOfTheOfficialProviderWorkAsTheyAre(t *testing.T) {
	data, err := Decode("{disk_size: 8, cores: 4, memory: 2048, architecture: amd64}", testOperator)
	require.NoError(t, err)

	spec := testMachine(data).VirtualMachine().Spec.Template.Spec
	require.Equal(t, uint32(4), spec.Domain.CPU.Cores)
	require.Equal(t, "2Gi", spec.Domain.Memory.Guest.String())
	require.NotNil(t, spec.Domain.Devices.Interfaces[0].Bridge, "its binding where a class names none")
	require.Empty(t, spec.Domain.Devices.Interfaces[0].MacAddress)
	require.Equal(t, "8Gi", testMachine(data).VirtualMachine().Spec.DataVolumeTemplates[0].Spec.Storage.Resources.Requests.Storage().String())

	data, err = Decode(strings.Join([]string{
		"architecture: arm64", "cores: 4", "memory: 4096", "disk_size: 40", "storage_class_name: ''", "network_binding: passt",
		`tolerations: '[{"key":"a/b","operator":"Exists","effect":"NoSchedule"},{"key":"c","value":"d"}]'`,
		"vm_labels: {app: talos, kubevirt.io/domain: workers}",
	}, "\n"), testOperator)
	require.NoError(t, err)

	vm := testMachine(data).VirtualMachine()
	spec = vm.Spec.Template.Spec
	require.Equal(t, "passt", spec.Domain.Devices.Interfaces[0].Binding.Name)
	require.Equal(t, []corev1.Toleration{
		{Key: "a/b", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}, {Key: "c", Value: "d"},
	}, spec.Tolerations)
	require.Equal(t, "talos", vm.Spec.Template.ObjectMeta.Labels["app"], "on the pod, where the official provider puts it")
	require.NotContains(t, vm.Labels, "app")
	require.Nil(t, vm.Spec.DataVolumeTemplates[0].Spec.Storage.StorageClassName)

	var schema struct {
		Properties map[string]json.RawMessage `json:"properties"`
		Required   []string                   `json:"required"`
	}

	require.NoError(t, json.Unmarshal([]byte(Schema()), &schema))
	require.Subset(t, []string{"cores", "memory", "architecture", "disk_size"}, schema.Required, "nothing is required that it did not require")

	for _, field := range []string{"cores", "memory", "architecture", "disk_size", "storage_class_name", "network_binding", "tolerations", "vm_labels"} {
		require.Contains(t, schema.Properties, field)
	}
}

func TestClassDataThatCannotWorkIsRefusedWithItsField(t *testing.T) {
	_, err := Decode(small, testOperator)
	require.NoError(t, err)

	long := strings.Repeat("a", 64)

	for _, test := range []struct{ name, data, want string }{
		{"empty", "", "disk_size: required"},
		{"no cores", "memory: 4096\ndisk_size: 20", "cores: required, but not given; want a whole number from 1 to 1024, or an instancetype"},
		{"no memory", "cores: 2\ndisk_size: 20", "memory: required"},
		{"misspelt", "cores: 2\nmemroy: 2048\ndisk_size: 20", `did you mean "memory"?`},
		{"memory in GiB", "cores: 2\nmemory: 4\ndisk_size: 20", "memory: got the number 4"},
		{"disk too small", "cores: 2\nmemory: 4096\ndisk_size: 4", "disk_size: got the number 4"},
		{"namespace of others", small + "namespace: kube-system", `namespace: got "kube-system", which the provider's configuration does not allow; want one of machines, lab`},
		{"namespace that is none", small + "namespace: A_b", `namespace: got the text "A_b"`},
		{"storage class that is none", small + "storage_class_name: Fast Disks", `storage_class_name: got "Fast Disks"`},
		{"storage class of a disk", small + "additional_disks: [{size: 1, storage_class_name: A}]", `additional_disks[0].storage_class_name: got "A"`},
		{"unknown binding", small + "network_binding: slirp", "network_binding"},
		{"cores and instancetype", "cores: 2\ndisk_size: 20\ninstancetype: {name: a}", `cores: the instancetype "a" says that`},
		{"memory and instancetype", "memory: 2048\ndisk_size: 20\ninstancetype: {name: a}", `memory: the instancetype "a" says that`},
		{"CPU and instancetype", "cpu: {model: x}\ndisk_size: 20\ninstancetype: {name: a}", `cpu: the instancetype "a" says that`},
		{"pages and instancetype", "hugepages: 2Mi\ndisk_size: 20\ninstancetype: {name: a}", `hugepages: the instancetype "a" says that`},
		{"resources and instancetype", "resources: {cpu_limit: '1'}\ndisk_size: 20\ninstancetype: {name: a}", `resources: the instancetype "a" says that`},
		{"kind of instancetype", small + "preference: {name: a, kind: pod}", "preference.kind"},
		{"uneven sockets", small + "cpu: {sockets: 3}", "cpu: 2 cores cannot be divided evenly among 3 sockets with 1 threads"},
		{"model of arm64", small + "architecture: arm64\ncpu: {model: EPYC}", `cpu.model: got "EPYC", but arm64`},
		{"emulator without CPUs", small + "cpu: {isolate_emulator_thread: true}", "cpu.isolate_emulator_thread: only dedicated"},
		{"nodes without pages", small + "cpu: {dedicated: true, numa: true}", "cpu.numa: nodes are those of dedicated CPUs and huge pages"},
		{"feature twice", small + "cpu: {features: [{name: vmx}, {name: vmx}]}", "cpu.features[1].name: vmx is that of cpu.features[0]"},
		{"policy of a feature", small + "cpu: {features: [{name: vmx, policy: maybe}]}", "cpu.features[0].policy"},
		{"request over limit", small + "resources: {cpu_request: '2', cpu_limit: 500m}", "resources.cpu_request: got 2, but cpu_limit is 500m"},
		{"no CPU", small + "resources: {cpu_request: '0'}", `resources.cpu_request: got "0", want a number of CPUs above 0`},
		{"words for CPUs", small + "resources: {cpu_request: two}", "resources.cpu_request"},
		{"dedicated and requested", small + "cpu: {dedicated: true}\nresources: {cpu_request: '2'}", "resources: dedicated CPUs are reserved"},
		{"dedicated and less memory", small + "cpu: {dedicated: true}\nresources: {memory_request: 1024}", "resources: a machine with dedicated CPUs"},
		{"request over memory", small + "resources: {memory_request: 4097}", "resources.memory_request: got 4097 MiB, but memory is 4096"},
		{"limit under memory", small + "resources: {memory_limit: 4095}", "resources.memory_limit: got 4095 MiB, but memory is 4096"},
		{"uneven pages", "cores: 1\nmemory: 2049\ndisk_size: 20\nhugepages: 2Mi", "hugepages: 2049 MiB of memory is no multiple of a page of 2Mi"},
		{"pages of arm64", small + "hugepages: 64Ki", `hugepages: got "64Ki", but amd64 has`},
		{"pages and request", small + "hugepages: 2Mi\nresources: {memory_request: 2048}", "resources: huge pages are reserved"},
		{"BIOS on arm64", small + "architecture: arm64\nfirmware: bios", "firmware: arm64 machines have no BIOS"},
		{"Secure Boot on arm64", small + "architecture: arm64\nsecure_boot: true", "secure_boot: KubeVirt has no such firmware"},
		{"Secure Boot on BIOS", small + "firmware: bios\nsecure_boot: true", `firmware: got "bios", but secure_boot needs UEFI`},
		{"variables of BIOS", small + "persistent_efi: true", `persistent_efi: got firmware "default"`},
		{"SATA on arm64", small + "architecture: arm64\nsystem_disk: {bus: sata}", "system_disk.bus: arm64 machines have no SATA"},
		{"native I/O behind a cache", small + "additional_disks: [{size: 1, io: native}]", "additional_disks[0].io: native needs cache none"},
		{"thread on SCSI", small + "system_disk: {bus: scsi, dedicated_io_thread: true}", "system_disk.dedicated_io_thread: only a disk on virtio"},
		{"disk without size", small + "additional_disks: [{bus: sata}]", "additional_disks[0].size: required"},
		{"disk named root", small + "additional_disks: [{size: 1, name: root}]", "additional_disks[0].name: root is that of the system disk"},
		{"disk named as another", small + "additional_disks: [{size: 1, name: disk-2}, {size: 1}]", "additional_disks[1].name: disk-2 is that of additional_disks[0]"},
		{"serial twice", small + "system_disk: {serial: a}\nadditional_disks: [{size: 1, serial: a}]", "additional_disks[0].serial: a is that of system_disk"},
		{"serial too long", small + "system_disk: {serial: " + strings.Repeat("a", 21) + "}", "system_disk.serial"},
		{"many disks", small + "additional_disks: [" + strings.Repeat("{size: 1},", 17) + "]", "additional_disks: has 17 items"},
		{"pool of no threads", small + "io_threads: supplementalPool", "io_thread_count: required"},
		{"threads of no pool", small + "io_thread_count: 2", "io_thread_count: got 2, but io_threads is off"},
		{"snapshot class of no snapshot", small + "image: {snapshot_class: a}", `image.snapshot_class: got "a", but source is datavolume`},
		{"reference of an import", small + "image: {reference: a}", "image.reference: source datavolume has none"},
		{"container image without reference", small + "image: {source: container_disk}", "image.reference: required"},
		{"unknown placeholder", small + "image: {source: container_disk, reference: 'a:{schematic}'}", "image.reference: {schematic} stands for nothing"},
		{"half a placeholder", small + "image: {source: container_disk, reference: 'a:{version'}", "in which a brace has no partner"},
		{"secret for a node", small + "image: {source: container_disk, reference: a, pull_method: node, pull_secret: b}", "image.pull_secret: with pull_method node"},
		{"extension of a container image", small + "extensions: [a/b]\nimage: {source: container_disk, reference: a}", "extensions, kernel_args: a container image has its own"},
		{"no network", small + "networks: []", "networks: has 0 items"},
		{"network of no name", small + "networks: [{type: multus}]", "networks[0].network: required with type multus"},
		{"name of the pod network", small + "networks: [{network: a}]", `networks[0].network: got "a", but type pod`},
		{"namespace of a network", small + "networks: [{type: multus, network: " + long + "/a}]", "networks[0].network: got"},
		{"two pod networks", small + "networks: [{}, {}]", "networks: got 2 pod networks"},
		{"default beside the pod network", small + "networks: [{}, {type: multus, network: a, default: true}]", "networks: a network of Multus that is the default"},
		{"default of the pod network", small + "networks: [{default: true}]", "networks[0].default: a pod network is the default"},
		{"masquerade on Multus", small + "networks: [{type: multus, network: a, binding: masquerade}]", "networks[0].binding: masquerade is for the pod network"},
		{"SR-IOV on the pod network", small + "networks: [{binding: sriov}]", "networks[0].binding: sriov needs a network of Multus"},
		{"plugin of no name", small + "networks: [{binding: plugin}]", "networks[0].plugin: required with binding plugin"},
		{"plugin of another binding", small + "networks: [{plugin: a}]", `networks[0].plugin: got "a", but the binding is bridge`},
		{"model of passt", small + "networks: [{binding: passt, model: e1000e}]", "networks[0].model: got e1000e, but binding passt"},
		{"no address", small + "networks: [{mac: nonsense}]", "networks[0].mac"},
		{"group address", small + "networks: [{mac: '01:00:5e:00:00:01'}]", "networks[0].mac: 01:00:5e:00:00:01 is not the address of one interface"},
		{"address twice", small + "networks: [{mac: '52:54:00:00:00:0a'}, {type: multus, network: a, mac: '52:54:00:00:00:0A'}]", "networks[1].mac: 52:54:00:00:00:0a is taken by networks[0]"},
		{"device of no vendor", small + "gpus: [{device_name: T4}]", `gpus[0].device_name: got "T4"`},
		{"many devices", small + "host_devices: [{device_name: a/b, count: 16}, {device_name: a/c}]", "host_devices: got 17 devices, want at most 16"},
		{"tolerations of no JSON", small + "tolerations: '[{'", "tolerations: got no list of tolerations"},
		{"tolerations of an object", small + "tolerations: '{}'", "tolerations: got no list of tolerations"},
		{"unknown key in tolerations", small + `tolerations: '[{"kee": "a"}]'`, `unknown field "kee"`},
		{"effect in tolerations", small + `tolerations: '[{"key": "a", "effect": "NoShedule"}]'`, `tolerations[0].effect: got "NoShedule"`},
		{"value of Exists", small + "additional_tolerations: [{key: a, operator: Exists, value: b}]", `additional_tolerations[0].value: got "b"`},
		{"toleration of nothing", small + "additional_tolerations: [{}]", "additional_tolerations[0].key: without a key"},
		{"seconds of NoSchedule", small + "additional_tolerations: [{key: a, effect: NoSchedule, toleration_seconds: 1}]", "additional_tolerations[0].toleration_seconds"},
		{"affinity of no kind", small + "affinity: 'nodeAfinity: {}'", `affinity: got no affinity: json: unknown field "nodeAfinity"`},
		{"two affinities", small + "affinity: \"nodeAffinity: {}\\n---\\npodAffinity: {}\"", "affinity: got no affinity"},
		{"selector of no label", small + "node_selector: [{name: 'a b', value: c}]", `node_selector[0]: got the name "a b"`},
		{"selector twice", small + "node_selector: [{name: a, value: b}, {name: a, value: c}]", "node_selector[1].name: a is that of node_selector[0]"},
		{"spread over nothing", small + "spread: [{topology_key: 'a b'}]", `spread[0].topology_key: got "a b"`},
		{"spread twice", small + "spread: [{}, {}]", "spread[1].topology_key: kubernetes.io/hostname is that of spread[0]"},
		{"run strategy", small + "run_strategy: Halted", "run_strategy"},
		{"our label", small + "labels: [{name: omni-infra.dev/request, value: a}]", "labels[0]: omni-infra.dev/request is the provider's own"},
		{"our label on the pod", small + "vm_labels: {omni-infra.dev/set: a}", "vm_labels.omni-infra.dev/set: omni-infra.dev/set is the provider's own"},
		{"label of the virtual machine's manager", small + "labels: [{name: app.kubernetes.io/managed-by, value: a}]", "labels[0]: app.kubernetes.io/managed-by is the provider's own"},
		{"KubeVirt's label", small + "labels: [{name: kubevirt.io/created-by, value: a}]", "labels[0]: kubevirt.io/created-by is KubeVirt's own"},
		{"label of a value too long", small + "vm_labels: {a: " + long + "}", "vm_labels.a: got the value"},
		{"label that is a list", small + "vm_labels: {a: [1]}", "vm_labels.a: got a list, want text"},
		{"label that is nothing", small + "vm_labels: {a: }", "vm_labels.a: got nothing"},
		{"label that is no value", small + "vm_labels: {a: -1}", `vm_labels.a: got the value "-1"`},
		{"two values", small + "vm_labels: {a: b}\nlabels: [{name: a, value: c}]", `vm_labels.a: got "b", but labels says "c"`},
		{"our annotation", small + "annotations: [{name: OMNI-infra.dev/provider-id, value: a}]", "annotations[0].name: OMNI-infra.dev/provider-id is the provider's own"},
		{"annotation twice", small + "annotations: [{name: a}, {name: a}]", "annotations[1].name: a is that of annotations[0]"},
		{"extension without owner", small + "extensions: [iscsi-tools]", "extensions[0]"},
		{"kernel argument with a blank", small + "kernel_args: ['a b']", "kernel_args[0]"},
		{"patch of nothing", small + "config_patches: ['nonsense: {']", "config_patches[0]: not a patch"},
		{"patch too long", small + "config_patches: ['#" + strings.Repeat("a", maxPatch) + "']", "config_patches[0]: has 32769 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Decode(test.data, testOperator)
			require.ErrorContains(t, err, test.want)
			require.Equal(t, driver.KindTerminal, driver.KindOf(err))
		})
	}
}

func TestTheOperatorDecidesWhatAClassLeavesOpen(t *testing.T) {
	o := Operator{Namespaces: []string{"a", "b"}, VolumeMode: "Block", StorageClassName: "fast"}

	data, err := Decode(small+"additional_disks: [{size: 1}, {size: 1, volume_mode: default, access_mode: default}]", o)
	require.NoError(t, err)
	require.Equal(t, "a", data.Namespace)
	require.Equal(t, "Block", data.VolumeMode)
	require.Equal(t, "fast", data.StorageClassName)
	require.Equal(t, "Block", data.AdditionalDisks[0].VolumeMode)
	require.Equal(t, "ReadWriteOnce", data.AdditionalDisks[0].AccessMode)
	require.Empty(t, data.AdditionalDisks[1].VolumeMode, "CDI's choice, though the class has another")
	require.Empty(t, data.AdditionalDisks[1].AccessMode)

	data, err = Decode(small+"volume_mode: Filesystem\nstorage_class_name: slow\nnamespace: b", o)
	require.NoError(t, err)
	require.Equal(t, []string{"b", "Filesystem", "slow"}, []string{data.Namespace, data.VolumeMode, data.StorageClassName})

	_, err = Decode(small, Operator{})
	require.ErrorContains(t, err, "namespace")
}

func TestARequestThatTheClassRulesOutIsRefused(t *testing.T) {
	req := testRequest()
	req.Extensions = []string{"siderolabs/iscsi-tools"}
	require.NoError(t, decode(t, "{}").CheckRequest(req))
	require.ErrorContains(t, decode(t, "image: {source: container_disk, reference: a}").CheckRequest(req), "image.source: got container_disk")

	req.RequestID = ""
	require.ErrorContains(t, decode(t, "{}").CheckRequest(req), "request id")
}

// changes has for each field of class data something that a class may say of it, on top of what else it takes.
var changes = map[string]string{
	"cores": "{cores: 3, memory: 4096, disk_size: 20}", "memory": "{cores: 2, memory: 4098, disk_size: 20}", "disk_size": "{cores: 2, memory: 4096, disk_size: 21}",
	"architecture": "architecture: arm64", "storage_class_name": "storage_class_name: a", "network_binding": "network_binding: masquerade",
	"tolerations": `tolerations: '[{"operator":"Exists"}]'`, "vm_labels": "vm_labels: {a: b}", "namespace": "namespace: lab",
	"instancetype": "{disk_size: 20, instancetype: {name: a}}", "instancetype.name": "{disk_size: 20, instancetype: {name: b}}", "instancetype.kind": "{disk_size: 20, instancetype: {name: a, kind: namespace}}",
	"preference": "preference: {name: a}", "preference.name": "preference: {name: b}", "preference.kind": "preference: {name: a, kind: namespace}",
	"cpu": "cpu: {model: a}", "cpu.model": "cpu: {model: b}", "cpu.features": "cpu: {features: [{name: a}]}", "cpu.features.name": "cpu: {features: [{name: b}]}",
	"cpu.features.policy": "cpu: {features: [{name: a, policy: force}]}", "cpu.sockets": "cpu: {sockets: 2}", "cpu.threads": "cpu: {threads: 2}",
	"cpu.dedicated": "cpu: {dedicated: true}", "cpu.isolate_emulator_thread": "cpu: {dedicated: true, isolate_emulator_thread: true}",
	"cpu.numa":  "{cores: 2, memory: 4096, disk_size: 20, hugepages: 2Mi, cpu: {dedicated: true, numa: true}}",
	"resources": "resources: {cpu_limit: '1'}", "resources.cpu_request": "resources: {cpu_request: '1'}", "resources.cpu_limit": "resources: {cpu_limit: '2'}",
	"resources.memory_request": "resources: {memory_request: 1024}", "resources.memory_limit": "resources: {memory_limit: 8192}",
	"resources.overcommit_guest_overhead": "resources: {overcommit_guest_overhead: true}", "hugepages": "hugepages: 1Gi",
	"volume_mode": "volume_mode: Block", "access_mode": "access_mode: ReadWriteMany",
	"system_disk": "system_disk: {bus: scsi}", "system_disk.bus": "system_disk: {bus: sata}", "system_disk.cache": "system_disk: {cache: none}", "system_disk.io": "system_disk: {io: threads}",
	"system_disk.dedicated_io_thread": "system_disk: {dedicated_io_thread: true}", "system_disk.serial": "system_disk: {serial: a}",
	"additional_disks": "additional_disks: [{size: 1}]", "additional_disks.size": "additional_disks: [{size: 2}]", "additional_disks.name": "additional_disks: [{size: 1, name: a}]",
	"additional_disks.serial": "additional_disks: [{size: 1, serial: a}]", "additional_disks.storage_class_name": "additional_disks: [{size: 1, storage_class_name: a}]",
	"additional_disks.volume_mode": "additional_disks: [{size: 1, volume_mode: Block}]", "additional_disks.access_mode": "additional_disks: [{size: 1, access_mode: ReadWriteMany}]",
	"additional_disks.bus": "additional_disks: [{size: 1, bus: scsi}]", "additional_disks.cache": "additional_disks: [{size: 1, cache: none}]", "additional_disks.io": "additional_disks: [{size: 1, io: threads}]",
	"additional_disks.dedicated_io_thread": "additional_disks: [{size: 1, dedicated_io_thread: true}]",
	"image":                                "image: {source: snapshot}", "image.source": "image: {source: container_disk, reference: a}", "image.snapshot_class": "image: {source: snapshot, snapshot_class: a}",
	"image.reference": "image: {source: container_disk, reference: b}", "image.pull_method": "image: {source: container_disk, reference: a, pull_method: node}",
	"image.pull_secret": "image: {source: container_disk, reference: a, pull_secret: b}",
	"networks":          "networks: [{}, {type: multus, network: a}]", "networks.type": "networks: [{type: multus, network: a}]", "networks.network": "networks: [{type: multus, network: b}]",
	"networks.default": "networks: [{type: multus, network: a, default: true}]", "networks.binding": "networks: [{binding: passt_core}]", "networks.plugin": "networks: [{binding: plugin, plugin: a}]",
	"networks.model": "networks: [{model: e1000e}]", "networks.mac": "networks: [{mac: derived}]",
	"firmware": "firmware: bios", "secure_boot": "secure_boot: true", "persistent_efi": "{cores: 2, memory: 4096, disk_size: 20, firmware: uefi, persistent_efi: true}", "tpm": "tpm: true", "machine_type": "machine_type: q35",
	"node_selector": "node_selector: [{name: a}]", "node_selector.name": "node_selector: [{name: b}]", "node_selector.value": "node_selector: [{name: a, value: b}]",
	"affinity":               "affinity: 'nodeAffinity: {}'",
	"additional_tolerations": "additional_tolerations: [{key: a}]", "additional_tolerations.key": "additional_tolerations: [{key: b}]", "additional_tolerations.operator": "additional_tolerations: [{key: a, operator: Exists}]",
	"additional_tolerations.value": "additional_tolerations: [{key: a, value: b}]", "additional_tolerations.effect": "additional_tolerations: [{key: a, effect: NoExecute}]",
	"additional_tolerations.toleration_seconds": "additional_tolerations: [{key: a, effect: NoExecute, toleration_seconds: 1}]",
	"spread": "spread: [{}]", "spread.topology_key": "spread: [{topology_key: a}]", "spread.max_skew": "spread: [{max_skew: 2}]", "spread.when_unsatisfiable": "spread: [{when_unsatisfiable: DoNotSchedule}]",
	"priority_class": "priority_class: a", "eviction_strategy": "eviction_strategy: None", "run_strategy": "run_strategy: Manual", "termination_grace_period": "termination_grace_period: 1",
	"gpus": "gpus: [{device_name: a/b}]", "gpus.device_name": "gpus: [{device_name: a/c}]", "gpus.count": "gpus: [{device_name: a/b, count: 2}]",
	"host_devices": "host_devices: [{device_name: a/b}]", "host_devices.device_name": "host_devices: [{device_name: a/c}]", "host_devices.count": "host_devices: [{device_name: a/b, count: 2}]",
	"labels": "labels: [{name: a}]", "labels.name": "labels: [{name: b}]", "labels.value": "labels: [{name: a, value: c}]",
	"annotations": "annotations: [{name: a}]", "annotations.name": "annotations: [{name: b}]", "annotations.value": "annotations: [{name: a, value: c}]",
	"io_threads": "io_threads: shared", "io_thread_count": "{cores: 2, memory: 4096, disk_size: 20, io_threads: supplementalPool, io_thread_count: 2}",
	"block_multi_queue": "block_multi_queue: true", "network_multi_queue": "network_multi_queue: true", "memory_balloon": "memory_balloon: false",
	"graphics": "graphics: false", "console_log": "console_log: 'on'", "dns_policy": "dns_policy: Default", "guest_agent": "guest_agent: false",
	"extensions": "extensions: [a/b]", "kernel_args": "kernel_args: [a]", "config_patches": "config_patches: ['machine: {}']",
}

// A field that is taken and changes nothing lies to those who set it.
func TestEveryFieldChangesTheMachineAndNoTwoDoItAlike(t *testing.T) {
	seen := map[string]string{all(t, decode(t, "{}")): "none"}
	fields := map[string]bool{}

	var list func(of reflect.Type, prefix string)

	list = func(of reflect.Type, prefix string) {
		for _, f := range reflect.VisibleFields(of) {
			if f.Anonymous {
				continue
			}

			path, kind := prefix+f.Tag.Get("json"), f.Type
			if kind.Kind() == reflect.Slice {
				kind = kind.Elem()
			}

			fields[path] = true

			if kind.Kind() == reflect.Struct && kind.PkgPath() == of.PkgPath() {
				list(kind, path+".")
			}
		}
	}

	list(reflect.TypeFor[ClassData](), "")

	for path := range fields {
		change, ok := changes[path]
		require.True(t, ok, "no change of %s", path)

		if !strings.HasPrefix(change, "{") {
			change = small + change
		}

		data, err := Decode(change, testOperator)
		require.NoError(t, err, path)

		got := all(t, data)
		other, taken := seen[got]
		require.False(t, taken, "%s makes the machine that %s makes", path, other)

		seen[got] = path
	}

	require.Len(t, fields, len(changes))
}

// all is everything that follows from class data.
func all(t testing.TB, data ClassData) string {
	t.Helper()

	boot, err := yaml.Marshal(data.BootImage())
	require.NoError(t, err)

	patches, err := yaml.Marshal(data.Patches(testRequest().Ref))
	require.NoError(t, err)

	return render(t, data) + string(boot) + string(patches)
}

func FuzzDecode(f *testing.F) {
	for _, change := range changes {
		if !strings.HasPrefix(change, "{") {
			change = small + change
		}

		f.Add(change)
	}

	kinds := served(f)

	f.Fuzz(func(t *testing.T, text string) {
		data, err := Decode(text, testOperator)
		if err != nil {
			require.Equal(t, driver.KindTerminal, driver.KindOf(err))

			return
		}

		// What is taken gives objects that the cluster takes.
		for _, o := range objects(t, data) {
			fields := manifest(t, o)
			if d, ok := kinds[fields["apiVersion"].(string)+"/"+fields["kind"].(string)]; ok {
				require.NoError(t, d.check(fields))
			}
		}
	})
}

func FuzzTolerations(f *testing.F) {
	f.Add(`[{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}]`)
	f.Add("- key: a\n  tolerationSeconds: 3")
	f.Add("[null]")
	f.Add("{}")

	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseTolerations(text)
		if err != nil || len(got) == 0 {
			return
		}

		again, err := json.Marshal(got)
		require.NoError(t, err)

		same, err := ParseTolerations(string(again))
		require.NoError(t, err)
		require.Equal(t, got, same)
	})
}

func FuzzAffinity(f *testing.F) {
	f.Add("nodeAffinity: {}")
	f.Add(`{"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "a"}]}}`)

	f.Fuzz(func(t *testing.T, text string) {
		got, err := ParseAffinity(text)
		if err != nil || got == nil {
			return
		}

		again, err := json.Marshal(got)
		require.NoError(t, err)

		same, err := ParseAffinity(string(again))
		require.NoError(t, err)
		require.Equal(t, got, same)
	})
}
