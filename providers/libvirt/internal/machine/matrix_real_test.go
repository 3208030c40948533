//go:build real

package machine

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/libvirtdtest"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// TestMain runs the tests of this build tag beside a libvirtd of their own: see lab/private-libvirtd.sh.
func TestMain(m *testing.M) { libvirtdtest.Main(m, "../../lab/private-libvirtd.sh") }

func virsh(t *testing.T, args ...string) string {
	t.Helper()

	out, err := exec.CommandContext(t.Context(), "virsh", append([]string{"-q", "-c", "qemu:///system"}, args...)...).CombinedOutput()
	require.NoError(t, err, "virsh %s: %s", strings.Join(args, " "), out)

	return string(out)
}

func connect(t *testing.T) *libvirt.Connect {
	t.Helper()

	c, err := libvirt.NewConnect("qemu:///system")
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = c.Close() })

	return c
}

// realHost reads this machine's libvirtd.
func realHost(t *testing.T, c *libvirt.Connect, arch driver.Arch) Host {
	t.Helper()

	var (
		docs HostDocuments
		err  error
	)

	// Without KVM, whether this machine has it or not: the tests are the same everywhere.
	docs.Domain, err = c.GetDomainCapabilities("", ArchName(arch), Board(arch), "qemu", 0)
	require.NoError(t, err)

	docs.Host, err = c.GetCapabilities()
	require.NoError(t, err)

	devices, err := c.ListAllNodeDevices(0)
	require.NoError(t, err)

	for i := range devices {
		desc, err := devices[i].GetXMLDesc(0)
		require.NoError(t, err)

		docs.Devices = append(docs.Devices, desc)
		require.NoError(t, devices[i].Free())
	}

	h, err := ParseHost(docs)
	require.NoError(t, err)

	return h
}

func TestARealHostIsReadWhole(t *testing.T) {
	h := realHost(t, connect(t), driver.AMD64)

	require.Equal(t, "qemu", h.Type)
	require.Equal(t, "maximum", h.CPU)
	require.True(t, h.UEFI && h.SecureBoot)
	require.NotNil(t, h.TPM)
	require.Positive(t, h.MaxCores)
	require.NotEmpty(t, h.Nodes)
	require.Positive(t, h.memory())
	require.Contains(t, h.Interfaces, "lo")
	require.Contains(t, h.Archs, "x86_64")
	require.Contains(t, h.Archs, "aarch64")
	require.Contains(t, h.DiskBuses, "virtio")

	for name, data := range classes(t) {
		if data.Arch == driver.AMD64 && len(data.PCIDevices)+len(data.MediatedDevices) > 0 {
			require.Error(t, data.CheckHost(h), name)
		}
	}

	require.NoError(t, decode(t, "{}").CheckHost(h))
}

// libvirt checks a domain against its schema and its own rules, without the host's devices.
func TestLibvirtTakesEveryDomainOfTheMatrix(t *testing.T) {
	c := connect(t)
	hosts := map[driver.Arch]Host{driver.AMD64: realHost(t, c, driver.AMD64), driver.ARM64: realHost(t, c, driver.ARM64)}

	for name, data := range classes(t) {
		t.Run(name, func(t *testing.T) {
			// What is emulated is this machine's; the devices and nodes are those of the matrix.
			h := kvmHost(t, data)
			h.Type, h.CPU = hosts[data.Arch].Type, hosts[data.Arch].CPU

			if data.CPU.Mode == "host-passthrough" {
				data.CPU.Mode = modeAuto // It needs KVM.
			}

			desc, err := describe(data, h)
			require.NoError(t, err)

			domain, err := c.DomainDefineXMLFlags(desc, libvirt.DOMAIN_DEFINE_VALIDATE)
			require.NoError(t, err, desc)

			uuid, err := domain.GetUUIDString()
			require.NoError(t, err)
			require.Equal(t, testRequest().Identity.UUID, uuid)

			element, err := domain.GetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, MarkNamespace, libvirt.DOMAIN_AFFECT_CONFIG)
			require.NoError(t, err)

			mark, err := ParseMark(element)
			require.NoError(t, err)

			want := NewMark(testRequest(), data, "v0.1.0", mark.Created)
			mark.XMLName = want.XMLName
			require.Equal(t, fmt.Sprint(want), fmt.Sprint(mark))

			require.NoError(t, domain.UndefineFlags(libvirt.DOMAIN_UNDEFINE_NVRAM))
			require.NoError(t, domain.Free())

			file := filepath.Join(t.TempDir(), "domain.xml")
			require.NoError(t, os.WriteFile(file, []byte(desc), 0o600))
			virsh(t, "define", "--validate", file)

			id := NamesOf(testRequest().Ref).Domain
			kept := virsh(t, "dumpxml", "--inactive", id)
			virsh(t, "undefine", "--nvram", id)

			// libvirt drops what it does not know, and moves what does not fit.
			require.Equal(t, strings.Count(desc, "<disk "), strings.Count(kept, "<disk "))
			require.Equal(t, strings.Count(desc, "<interface "), strings.Count(kept, "<interface "))
			require.Equal(t, strings.Count(desc, "<hostdev "), strings.Count(kept, "<hostdev "))
			require.NotContains(t, kept, "lsilogic")
			require.NotContains(t, kept, "model='auto'")

			taken, err := TakenDevices(kept)
			require.NoError(t, err)

			devices, err := ChooseDevices(data, h)
			require.NoError(t, err)
			require.ElementsMatch(t, devices.IDs(), taken)
		})
	}
}

// The firmware is chosen when a machine starts: Secure Boot's checks signatures, and begins without keys or with the vendor's.
func TestLibvirtFindsTheFirmwareOfEachClass(t *testing.T) {
	c := connect(t)
	dir := t.TempDir()
	file := func(name string) Volume {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, make([]byte, 1<<20), 0o600))

		return Volume{Kind: VolumeFile, Path: path, Format: "raw"}
	}

	for _, test := range []struct {
		extra    string
		want     []string
		unwanted []string
	}{
		{"secure_boot: true", []string{"secure='yes'", "enabled='no' name='enrolled-keys'", "<nvram", "tpm-crb"}, nil},
		{"secure_boot: true, enrolled_keys: true", []string{"secure='yes'", "enabled='yes' name='enrolled-keys'", "<nvram", "tpm-crb"}, nil},
		{"tpm: true", []string{"<nvram", "tpm-crb"}, []string{"secure='yes'"}},
		{"firmware: bios", nil, []string{"<nvram", "tpm-", "<loader"}},
		{"arch: arm64", []string{"<nvram", "pflash"}, []string{"secure='yes'", "tpm-"}},
	} {
		t.Run(test.extra, func(t *testing.T) {
			data := decode(t, "{network_interfaces: [{type: user}], "+test.extra+"}")
			data.Memory = 512

			h := realHost(t, c, data.Arch)
			require.NoError(t, data.CheckHost(h))

			desc, err := Domain{
				Request: testRequest(), Data: data, Host: h, Mark: NewMark(testRequest(), data, "v", testTime),
				Volumes: Volumes{Root: file("root"), Seed: file("seed")},
			}.XML()
			require.NoError(t, err)

			domain, err := c.DomainDefineXMLFlags(desc, libvirt.DOMAIN_DEFINE_VALIDATE)
			require.NoError(t, err)

			defer func() {
				require.NoError(t, domain.Destroy())
				require.NoError(t, domain.UndefineFlags(libvirt.DOMAIN_UNDEFINE_NVRAM))
			}()

			require.NoError(t, domain.Create())

			running, err := domain.GetXMLDesc(0)
			require.NoError(t, err)

			for _, want := range test.want {
				require.Contains(t, running, want)
			}

			for _, unwanted := range test.unwanted {
				require.NotContains(t, running, unwanted)
			}
		})
	}
}
