package provider

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()

	file := filepath.Join("testdata", name)

	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}

	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

func TestDomainOfClass(t *testing.T) {
	kvm, emulated := host{Type: "kvm", CPU: "host-passthrough", UEFI: true}, host{Type: "qemu", CPU: "maximum", UEFI: true}
	ref := driver.Ref{ProviderID: "libvirt", RequestID: "workers-x7k2p"}
	req := driver.Request{Ref: ref, Identity: driver.NewIdentity(ref), Set: "workers"}

	for _, test := range []struct {
		name string
		host host
		data string
	}{
		{"defaults", kvm, "{cores: 2, memory: 4096, disk_size: 20}"},
		{"emulated-bios", emulated, "{cores: 1, memory: 256, disk_size: 1, firmware: bios, network_interfaces: [{type: user}]}"},
		{"arm64", emulated, "{cores: 2, memory: 2048, disk_size: 10, arch: arm64}"},
		{"disks-and-networks", kvm, `
cores: 4
memory: 8192
disk_size: 40
storage_pool: fast
network_interfaces:
  - {network_name: lab, driver: e1000e, physical_address: "52:54:00:AB:cd:ef"}
  - {type: bridge, network_name: br0}
additional_disks: [{size: 100}, {size: 10, type: sata}, {size: 20, type: scsi}, {size: 30, type: virtio}, {size: 40, type: nvme}]
`},
	} {
		t.Run(test.name, func(t *testing.T) {
			data, err := classdata.Decode[ClassData](test.data)
			require.NoError(t, err)

			n := namesOf(ref)
			paths := map[string]string{n.Root: "/pool/" + n.Root, n.Seed: "/pool/" + n.Seed}

			for i := range data.AdditionalDisks {
				paths[n.Disk(i)] = "/pool/" + n.Disk(i)
			}

			got, err := domainXML(req, data, test.host, mark{
				Provider: "libvirt", Request: ref.RequestID, Set: req.Set, Pool: data.StoragePool, Version: "v0.1.0",
				Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			}, paths)
			require.NoError(t, err)
			golden(t, "domain-"+test.name+".xml", got+"\n")
		})
	}
}

func TestSchemaIsPublishedAsItIs(t *testing.T) {
	require.True(t, json.Valid([]byte(Schema())))
	golden(t, "schema.json", Schema()+"\n")
}

func TestClassDataThatCannotWorkIsRefusedWithItsField(t *testing.T) {
	const good = "cores: 2\nmemory: 2048\ndisk_size: 20\n"

	_, err := classdata.Decode[ClassData](good)
	require.NoError(t, err)

	for _, test := range []struct{ name, data, want string }{
		{"empty", "", "cores: required"},
		{"misspelt", "cores: 2\nmemroy: 2048\ndisk_size: 20", `did you mean "memory"?`},
		{"memory in GiB", "cores: 2\nmemory: 4\ndisk_size: 20", "memory: got the number 4"},
		{"no interface", good + "network_interfaces: []", "network_interfaces"},
		{"unknown driver", good + "network_interfaces: [{driver: rtl8139}]", "network_interfaces[0].driver"},
		{"bridge without name", good + "network_interfaces: [{type: bridge}]", "network_interfaces[0].network_name: required with type bridge"},
		{"user with network", good + "network_interfaces: [{type: user, network_name: x}]", "network_interfaces[0].network_name: got \"x\""},
		{"no address", good + "network_interfaces: [{physical_address: nonsense}]", "network_interfaces[0].physical_address: got \"nonsense\""},
		{"group address", good + "network_interfaces: [{physical_address: '01:00:5e:00:00:01'}]", "network_interfaces[0].physical_address"},
		{
			"address twice", good + "network_interfaces: [{physical_address: '52:54:00:00:00:01'}, {physical_address: '52-54-00-00-00-01'}]",
			"network_interfaces[1].physical_address: 52:54:00:00:00:01 is taken by network_interfaces[0]",
		},
		{"arm64 with BIOS", good + "arch: arm64\nfirmware: bios", "firmware: arm64"},
		{"arm64 with SATA", good + "arch: arm64\nadditional_disks: [{size: 1, type: sata}]", "additional_disks[0].type: arm64"},
		{"disk without size", good + "additional_disks: [{type: sata}]", "additional_disks[0].size: required"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := classdata.Decode[ClassData](test.data)
			require.ErrorContains(t, err, test.want)
			require.Equal(t, driver.KindTerminal, driver.KindOf(err))
		})
	}
}

func TestClassesOfTheOfficialProviderAreAccepted(t *testing.T) {
	for _, data := range []string{
		"{cores: 2, memory: 4096, disk_size: 20, storage_pool: default}",
		`{"cores": 1, "memory": 2048, "disk_size": 10, "storage_pool": "fast",
		  "additional_disks": [{"type": "nvme", "size": 20}, {"type": "sata", "size": 10}],
		  "network_interfaces": [{"driver": "virtio", "network_name": "default", "physical_address": ""}, {"driver": "e1000e", "network_name": "lab"}]}`,
	} {
		_, err := classdata.Decode[ClassData](data)
		require.NoError(t, err)
	}
}

func TestNamesAreStableAndBelongToOneRequest(t *testing.T) {
	ref := driver.Ref{ProviderID: "libvirt", RequestID: "workers-x7k2p"}
	n := namesOf(ref)

	// Machines that exist have these names.
	require.Equal(t, names{
		Domain: "workers-x7k2p-522ea0c350ad", Root: "workers-x7k2p-522ea0c350ad.qcow2", Seed: "workers-x7k2p-522ea0c350ad-seed.iso",
	}, n)
	require.Equal(t, "workers-x7k2p-522ea0c350ad-disk-2.qcow2", n.Disk(1))
	require.NotEqual(t, n, namesOf(driver.Ref{ProviderID: "other", RequestID: ref.RequestID}))

	for _, volume := range []string{n.Root, n.Seed, n.Disk(0), n.Disk(15)} {
		got, ok := refOfVolume("libvirt", volume)
		require.True(t, ok, volume)
		require.Equal(t, ref, got)

		_, ok = refOfVolume("other", volume)
		require.False(t, ok, volume)
	}

	// A request whose id looks like another's volume.
	tricky := driver.Ref{ProviderID: "libvirt", RequestID: n.Domain + "-disk-1"}
	got, ok := refOfVolume("libvirt", namesOf(tricky).Root)
	require.True(t, ok)
	require.Equal(t, tricky, got)

	for _, foreign := range []string{"", "disk.qcow2", n.Domain, n.Root + ".bak", "other-522ea0c350ad.qcow2", n.Domain + "-disk-0.qcow2"} {
		_, ok := refOfVolume("libvirt", foreign)
		require.False(t, ok, foreign)
	}
}

func FuzzVolumeNames(f *testing.F) {
	f.Add("libvirt", "request", "request-0123456789ab.qcow2")
	f.Fuzz(func(t *testing.T, provider, request, volume string) {
		if ref, ok := refOfVolume(provider, volume); ok {
			require.Contains(t, volumesOf(ref, []string{volume}), volume)
			require.Contains(t, volume, namesOf(ref).Domain)
		}

		if checkRequestID(request) == nil && request != "" && !strings.ContainsAny(request, "\n") {
			ref := driver.Ref{ProviderID: provider, RequestID: request}
			got, ok := refOfVolume(provider, namesOf(ref).Seed)
			require.True(t, ok)
			require.Equal(t, ref, got)
			require.LessOrEqual(t, len(namesOf(ref).Disk(15)), 255)
		}
	})
}

func TestImageDataIsThatOfTheProviderOnly(t *testing.T) {
	name := imageName("libvirt", "key")

	require.True(t, isImageData("libvirt", name+"-0123abcd.raw"))
	require.False(t, isImageData("other", name+"-0123abcd.raw"))

	for _, foreign := range []string{name + ".qcow2", name + ".raw", name + "-0123abcd.qcow2", ".", "/", "", "talos.raw"} {
		require.False(t, isImageData("libvirt", foreign), foreign)
	}
}

func TestRequestIDsThatCannotBeNamesAreRefused(t *testing.T) {
	for _, id := range []string{"a/b", "a b", "../x", "-x", "a\nb", strings.Repeat("x", 201)} {
		require.Error(t, checkRequestID(id), "%q", id)
	}

	require.NoError(t, checkRequestID("workers-x7k2p"))
}

func TestMarkIsReadBackAsLibvirtGivesIt(t *testing.T) {
	want := mark{
		Provider: "libvirt", Request: `a"<&>`, Set: "set", Pool: "default", Version: "v0.1.0",
		Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Boot: "0123",
	}
	element, err := want.element()
	require.NoError(t, err)
	require.Contains(t, element, fmt.Sprintf(`xmlns="%s"`, markNamespace))

	for _, text := range []string{element, strings.Replace(element, fmt.Sprintf(` xmlns="%s"`, markNamespace), "", 1), "\n  " + element + "\n"} {
		got, err := parseMark(text)
		require.NoError(t, err)

		got.XMLName = want.XMLName
		require.Equal(t, want, got)
	}

	require.True(t, want.owns(driver.NewIdentity(want.ref()).UUID))
	require.False(t, want.owns("0d7d5c0e-5bd0-4a49-9d8e-3c5b8f2c1a11"))
}

func FuzzMark(f *testing.F) {
	f.Add(`<machine provider="p" request="r" created="2026-01-02T03:04:05Z"/>`)
	f.Fuzz(func(t *testing.T, text string) {
		m, err := parseMark(text)
		if err != nil {
			return
		}

		if element, err := m.element(); err == nil {
			again, err := parseMark(element)
			require.NoError(t, err)
			require.Equal(t, m.ref(), again.ref())
		}
	})
}

func TestSeedKeepsItsContentBeforeTheMark(t *testing.T) {
	iso := []byte(strings.Repeat("x", 4096))
	out, err := markSeed(iso, mark{Provider: "p", Request: "r"})
	require.NoError(t, err)
	require.Equal(t, iso, out[:4096])
	require.Len(t, out, 4096+markSize)
	require.Contains(t, string(out[4096:]), `request="r"`)
}

func TestSecretsGoFirstAndTheClaimLast(t *testing.T) {
	n := namesOf(driver.Ref{ProviderID: "p", RequestID: "r"})

	require.Equal(t, []string{n.Seed, n.Disk(0), n.Disk(1), n.Root},
		inOrderOfRemoval(n, []string{n.Disk(0), n.Disk(1), n.Root, n.Seed}))
}

func TestHostIsReadFromCapabilities(t *testing.T) {
	for _, test := range []struct {
		name, desc string
		want       host
	}{
		{
			"emulated",
			`<domainCapabilities><domain>qemu</domain><os supported='yes'><enum name='firmware'><value>efi</value></enum></os>
			 <cpu><mode name='host-passthrough' supported='no'/><mode name='maximum' supported='yes'/></cpu></domainCapabilities>`,
			host{Type: "qemu", CPU: "maximum", UEFI: true},
		},
		{
			"KVM without UEFI",
			`<domainCapabilities><domain>kvm</domain><os supported='yes'><enum name='firmware'/></os>
			 <cpu><mode name='host-passthrough' supported='yes'/><mode name='maximum' supported='yes'/></cpu></domainCapabilities>`,
			host{Type: "kvm", CPU: "host-passthrough"},
		},
		{
			"KVM with a model only",
			`<domainCapabilities><domain>kvm</domain><cpu><mode name='host-passthrough' supported='no'/><mode name='host-model' supported='yes'/></cpu></domainCapabilities>`,
			host{Type: "kvm", CPU: "host-model"},
		},
		{"nothing", `<domainCapabilities/>`, host{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseHost(test.desc)
			require.NoError(t, err)
			require.Equal(t, test.want, got)
		})
	}

	_, err := parseHost("<domain/>")
	require.Error(t, err)
}

func FuzzHost(f *testing.F) {
	f.Add(`<domainCapabilities><domain>kvm</domain><cpu><mode name='maximum' supported='yes'/></cpu></domainCapabilities>`)
	f.Fuzz(func(_ *testing.T, desc string) { _, _ = parseHost(desc) })
}
