package machine

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// testdata/matrix has class data and the domain that it gives: each feature alone, and many together. The domains are validated by
// libvirt itself in the tests with a real one.

// hostOf reads the host of that name in testdata.
func hostOf(t testing.TB, name string) Host {
	t.Helper()

	h, err := ParseHost(HostDocuments{
		Domain: readHostFile(t, name, "domain.xml"), Host: readHostFile(t, name, "host.xml"),
		Devices: splitDevices(t, readHostFile(t, name, "devices.xml")),
	})
	require.NoError(t, err)

	return h
}

func readHostFile(t testing.TB, name, file string) string {
	t.Helper()

	text, err := os.ReadFile(filepath.Join("testdata", "hosts", name, file))
	require.NoError(t, err)

	return string(text)
}

// splitDevices undoes what put the descriptions of many devices into one file.
func splitDevices(t testing.TB, text string) []string {
	t.Helper()

	var all struct {
		Devices []struct {
			XML string `xml:",innerxml"`
		} `xml:"device"`
	}

	require.NoError(t, xml.Unmarshal([]byte(text), &all))

	devices := make([]string, len(all.Devices))
	for i, device := range all.Devices {
		devices[i] = "<device>" + device.XML + "</device>"
	}

	return devices
}

// classes are the entries of the matrix.
func classes(t testing.TB) map[string]ClassData {
	t.Helper()

	files, err := filepath.Glob("testdata/matrix/*.yaml")
	require.NoError(t, err)
	require.Greater(t, len(files), 30)

	all := map[string]ClassData{}

	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)

		data, err := classdata.Decode[ClassData](string(text))
		require.NoError(t, err, file)

		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = data
	}

	return all
}

// kvmHost is the host of the matrix for a class.
func kvmHost(t testing.TB, data ClassData) Host {
	t.Helper()

	if data.Arch == driver.ARM64 {
		return hostOf(t, "fedora-arm64")
	}

	return hostOf(t, "fedora-kvm")
}

func testRequest() driver.Request {
	ref := driver.Ref{ProviderID: "libvirt", RequestID: "workers-x7k2p"}

	return driver.Request{Ref: ref, Identity: driver.NewIdentity(ref), Set: "workers"}
}

// describe is the whole way from class data to the domain, on pools of every kind: lvm has blocks, ceph is RBD, all others files.
func describe(data ClassData, h Host) (string, error) {
	req := testRequest()
	n := NamesOf(req.Ref)

	place := func(pool, name, raw, format string) Volume {
		switch pool {
		case "lvm":
			return Volume{Kind: VolumeBlock, Path: "/dev/lvm/" + raw, Format: "raw"}
		case "ceph":
			return Volume{Kind: VolumePool, Pool: pool, Name: raw, Format: "raw"}
		default:
			return Volume{Kind: VolumeFile, Path: "/" + pool + "/" + name, Format: format}
		}
	}

	volumes := Volumes{
		Root: place(data.StoragePool, n.Root, n.Raw().Root, "qcow2"),
		Seed: place(data.StoragePool, n.Seed, n.Seed, "raw"),
	}
	for i := range data.AdditionalDisks {
		volumes.Disks = append(volumes.Disks, place(data.PoolOf(i), n.Disk(i), n.Raw().Disk(i), "qcow2"))
	}

	devices, err := ChooseDevices(data, h)
	if err != nil {
		return "", err
	}

	return Domain{
		Request: req, Data: data, Host: h, Volumes: volumes, Devices: devices,
		Mark: NewMark(req, data, "v0.1.0", time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)),
	}.XML()
}

func TestClassesGiveTheDomainsOfTheMatrix(t *testing.T) {
	for name, data := range classes(t) {
		t.Run(name, func(t *testing.T) {
			h := kvmHost(t, data)
			require.NoError(t, data.CheckHost(h))

			got, err := describe(data, h)
			require.NoError(t, err)
			golden(t, filepath.Join("matrix", name+".xml"), got+"\n")

			again, err := describe(data, h)
			require.NoError(t, err)
			require.Equal(t, got, again)
		})
	}

	domains, err := filepath.Glob("testdata/matrix/*.xml")
	require.NoError(t, err)
	require.Len(t, domains, len(classes(t)), "a domain without class data")
}

func TestAnEmulatedMachineGetsAllThatTheEmulatorCan(t *testing.T) {
	data := decode(t, "{}")

	h := hostOf(t, "debian-emulated")
	require.True(t, h.Emulated())

	got, err := describe(data, h)
	require.NoError(t, err)
	require.Contains(t, got, `<domain type="qemu">`)
	require.Contains(t, got, `<cpu mode="maximum">`)
	require.NotContains(t, got, "host-passthrough")
}

func TestNoDomainKnowsWhereADistributionKeepsFirmware(t *testing.T) {
	for arch, hosts := range map[string][]string{"amd64": {"fedora-kvm", "debian-kvm"}, "arm64": {"fedora-arm64", "debian-arm64"}} {
		for _, extra := range []string{"firmware: uefi", "secure_boot: true"} {
			if arch == "arm64" && extra == "secure_boot: true" {
				continue // No distribution has that firmware.
			}

			data := decode(t, "arch: "+arch+"\n"+extra)

			var first string

			for _, name := range hosts {
				h := hostOf(t, name)
				require.NoError(t, data.CheckHost(h))

				got, err := describe(data, h)
				require.NoError(t, err)
				require.Contains(t, got, `firmware="efi"`)

				for _, path := range []string{"/usr/", "OVMF", "AAVMF", "<nvram", ".fd"} {
					require.NotContains(t, got, path)
				}

				if first == "" {
					first = got
				}

				require.Equal(t, first, got, "%s differs", name)
			}
		}
	}
}

func TestSecureBootIsAWholeOfImageFirmwareAndTPMOrNothing(t *testing.T) {
	h := hostOf(t, "fedora-kvm")

	type artefacts struct{ Image, Loader, SMM, TPM, Signed, Keys, Unsigned bool }

	of := func(extra string) artefacts {
		data := decode(t, extra)
		got, err := describe(data, h)
		require.NoError(t, err)

		return artefacts{
			Image:    data.Image().SecureBoot,
			Loader:   strings.Contains(got, `<loader secure="yes">`),
			SMM:      strings.Contains(got, `<smm state="on">`),
			TPM:      strings.Contains(got, `<backend type="emulator" version="2.0">`),
			Signed:   strings.Contains(got, `<feature enabled="yes" name="secure-boot">`),
			Keys:     strings.Contains(got, `<feature enabled="yes" name="enrolled-keys">`),
			Unsigned: strings.Contains(got, `<feature enabled="no" name="secure-boot">`),
		}
	}

	require.Equal(t, artefacts{Image: true, Loader: true, SMM: true, TPM: true, Signed: true}, of("secure_boot: true"))
	require.Equal(t, artefacts{Image: true, Loader: true, SMM: true, TPM: true, Signed: true, Keys: true}, of("{secure_boot: true, enrolled_keys: true}"))
	require.Equal(t, artefacts{Unsigned: true}, of("firmware: uefi"))
	require.Equal(t, artefacts{}, of("firmware: bios"))
	require.Equal(t, artefacts{TPM: true, Unsigned: true}, of("tpm: true"))
}

func TestTheMachineBootsFromItsSystemDiskAlone(t *testing.T) {
	for name, data := range classes(t) {
		got, err := describe(data, kvmHost(t, data))
		require.NoError(t, err)

		require.Equal(t, 1, strings.Count(got, "<boot "), name)
		require.NotContains(t, got, "<boot dev", name)

		before, _, found := strings.Cut(got, `<boot order="1">`)
		require.True(t, found, name)
		require.Equal(t, 1, strings.Count(before, "<disk "), name)
		require.Contains(t, before, NamesOf(testRequest().Ref).Domain+".", name)
	}
}

// The channel without the extension is useless; the extension without the channel keeps a machine from ever coming up.
func TestTheAgentsExtensionAndChannelComeTogetherOrNotAtAll(t *testing.T) {
	for name, data := range classes(t) {
		got, err := describe(data, kvmHost(t, data))
		require.NoError(t, err)

		extensions := strings.Join(data.Image().Extensions, " ")
		require.Equal(t, data.GuestAgent, strings.Contains(got, agentChannel), name)
		require.Equal(t, data.GuestAgent, strings.Contains(extensions, GuestAgentExtension), name)
	}
}

func TestDisksAreDescribedAsTheyAreReached(t *testing.T) {
	for _, test := range []struct {
		name   string
		volume Volume
		want   []string
	}{
		{"file", Volume{Kind: VolumeFile, Path: "/a&b/c", Format: "qcow2"}, []string{`<disk type="file"`, `type="qcow2"`, `<source file="/a&amp;b/c">`}},
		{"block", Volume{Kind: VolumeBlock, Path: "/dev/zvol/tank/c", Format: "raw"}, []string{`<disk type="block"`, `type="raw"`, `<source dev="/dev/zvol/tank/c">`}},
		{"pool", Volume{Kind: VolumePool, Pool: "ceph", Name: "c", Format: "raw"}, []string{`<disk type="volume"`, `<source pool="ceph" volume="c">`}},
		{
			"network",
			Volume{Kind: VolumeNetwork, Path: "rbd/c", Format: "raw", Network: NetworkVolume{
				Protocol: "rbd", Hosts: []NetworkHost{{"mon1", "6789"}, {"mon2", ""}}, User: "libvirt", SecretType: "ceph", SecretUUID: "2ec115d7",
			}},
			[]string{
				`<disk type="network"`, `<source protocol="rbd" name="rbd/c">`, `<host name="mon1" port="6789">`, `<host name="mon2">`,
				`<auth username="libvirt">`, `<secret type="ceph" uuid="2ec115d7">`,
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			req := testRequest()
			got, err := Domain{
				Request: req, Data: decode(t, "{}"), Host: hostOf(t, "fedora-kvm"),
				Volumes: Volumes{Root: test.volume, Seed: test.volume},
			}.XML()
			require.NoError(t, err)

			for _, want := range test.want {
				require.Equal(t, 2, strings.Count(got, want), "%s in\n%s", want, got)
			}
		})
	}
}

func TestDisksThatAreNotKnownGiveNoDomain(t *testing.T) {
	file := Volume{Kind: VolumeFile, Path: "/f", Format: "raw"}

	for _, test := range []struct {
		extra   string
		volumes Volumes
		want    string
	}{
		{"{}", Volumes{Seed: file}, "system disk: its path is not known"},
		{"{}", Volumes{Root: file, Seed: Volume{Kind: "tape", Path: "/f"}}, `seed: it is of kind "tape"`},
		{"{}", Volumes{Root: Volume{Kind: VolumeNetwork, Path: "x"}, Seed: file}, "system disk: it is of kind"},
		{"{}", Volumes{Root: Volume{Kind: VolumePool, Path: "x"}, Seed: file}, "system disk: it is of kind"},
		{"additional_disks: [{size: 1}]", Volumes{Root: file, Seed: file}, "got 0 volumes for 1 additional disks"},
		{"additional_disks: [{size: 1}]", Volumes{Root: file, Seed: file, Disks: []Volume{{}}}, "additional_disks[0]: its path"},
	} {
		_, err := Domain{Request: testRequest(), Data: decode(t, test.extra), Host: hostOf(t, "fedora-kvm"), Volumes: test.volumes}.XML()
		require.ErrorContains(t, err, test.want)
	}
}
