package machine

import (
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()

	file := filepath.Join("testdata", name)

	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}

	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "run the test with -update")
}

func ref(request string) driver.Ref { return driver.Ref{ProviderID: "oxide", RequestID: request} }

func TestNamesAreStableAndBelongToOneRequest(t *testing.T) {
	n := NamesOf(ref("workers-x7k2p"))

	// Machines that exist have these names.
	require.Equal(t, "workers-x7k2p-b8a82d345b", n.Instance)
	require.Equal(t, "workers-x7k2p-b8a82d345b-boot", n.Boot)
	require.Equal(t, "workers-x7k2p-b8a82d345b-disk-01", n.Disk(0))
	require.Equal(t, "workers-x7k2p-b8a82d345b-ip-01", n.FloatingIP(0))

	other := NamesOf(driver.Ref{ProviderID: "oxide-2", RequestID: "workers-x7k2p"})
	require.NotEqual(t, n.Instance, other.Instance)
	require.False(t, n.Owns(KindDisk, other.Boot))
}

func TestEveryDerivedNameIsValidWhateverTheRequestsID(t *testing.T) {
	seen := map[string]string{}

	for _, id := range []string{
		"", "-", "--", "r", "R-1", "1st", "9", "a.b", "a_b", "a-", "pool-", "ü", "c3421185-f022-5328-852c-30420935055f", "c3421185-f022-5328-852c",
		strings.Repeat("a", 61), strings.Repeat("a", 62), strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a", 200),
		strings.Repeat("a", 43) + "-b", strings.Repeat("1", 63), strings.Repeat("-", 70),
	} {
		n := NamesOf(ref(id))
		names := []string{n.Instance, n.Boot, n.FloatingIP(31)}

		for i := range 11 {
			names = append(names, n.Disk(i))
		}

		for _, name := range names {
			require.True(t, validName(name), "%q of request %q", name, id)
			require.Empty(t, seen[name], "%q is of %q and %q", name, id, seen[name])
			seen[name] = "request " + id
		}

		assert.True(t, n.Owns(KindInstance, n.Instance))
		assert.True(t, n.Owns(KindDisk, n.Boot))
		assert.True(t, n.Owns(KindDisk, n.Disk(10)))
		assert.True(t, n.Owns(KindFloatingIP, n.FloatingIP(0)))
		assert.False(t, n.Owns(KindDisk, n.Instance))
		assert.False(t, n.Owns(KindInstance, n.Boot))
		assert.False(t, n.Owns(KindImage, n.Instance))
		assert.False(t, n.Owns(KindDisk, n.Instance+"-disk-1"))
		assert.False(t, n.Owns(KindDisk, n.Instance+"-disk-0a"))
	}

	for _, version := range []string{"v1.13.5", "v1.14.0-alpha.1", "V" + strings.Repeat("1", 80)} {
		assert.True(t, validName(ImageName("oxide", "key", version)), version)
	}

	assert.True(t, validName(ScratchName("oxide", "key", [8]byte{0xff})))
	assert.NotEqual(t, ImageName("oxide", "key", "v1.13.5"), ImageName("oxide-2", "key", "v1.13.5"))
	assert.Equal(t, "talos-v1-13-5-amd64-1aa16d6ca6ab404efe621347", ImageName("oxide", "key", "v1.13.5"))
}

func FuzzNames(f *testing.F) {
	f.Add("oxide", "workers-x7k2p")
	f.Add("", "c3421185-f022-5328-852c")
	f.Add("a", strings.Repeat("-", 80))

	f.Fuzz(func(t *testing.T, provider, request string) {
		n := NamesOf(driver.Ref{ProviderID: provider, RequestID: request})

		for _, name := range []string{n.Instance, n.Boot, n.Disk(10), n.FloatingIP(31)} {
			require.True(t, validName(name), name)
		}
	})
}

func TestMarkIsReadBackAsItWasWritten(t *testing.T) {
	for _, m := range []Mark{
		{Kind: KindInstance, Provider: "oxide", Request: "workers-x7k2p", Version: "v1.0.0"},
		{Kind: KindDisk, Provider: "oxide", Request: `q"<>&\u0041ü`, Version: ""},
		{Kind: KindFloatingIP, Provider: "oxide", Request: "r", Version: "dev"},
		ImageMark("oxide", "talos-v1.13.5-nocloud-amd64-"+strings.Repeat("a", 64)+"-0123abcd.raw", "v1.0.0"),
		NewScratch(ref("r"), "key", "v1.0.0", [8]byte{1}).Mark,
	} {
		text, err := m.Description()
		require.NoError(t, err)

		got, err := ParseMark(text)
		require.NoError(t, err, text)
		require.Equal(t, m, got)
	}

	text, err := Mark{Kind: KindInstance, Provider: "oxide", Request: "r", Version: "v1"}.Description()
	require.NoError(t, err)
	// Machines that exist have this description.
	require.Equal(t, `omni-infra.dev/1 {"kind":"instance","provider":"oxide","request":"r","version":"v1"}`, text)

	_, err = Mark{Kind: KindInstance, Provider: "oxide", Request: strings.Repeat("r", 512)}.Description()
	require.ErrorContains(t, err, "want a shorter request id")
}

func TestWhatIsNotQuiteAMarkIsNone(t *testing.T) {
	good := `omni-infra.dev/1 {"kind":"instance","provider":"oxide","request":"r","version":"v1"}`

	_, err := ParseMark(good)
	require.NoError(t, err)

	for _, text := range []string{
		"",
		"Managed by the Oxide Omni infrastructure provider (oxide).",
		strings.TrimPrefix(good, "omni-infra.dev/1 "),
		" " + good, good + " ", good + "{}", good + "\n",
		strings.Replace(good, "/1", "/2", 1),
		strings.Replace(good, `"kind":"instance",`, "", 1),
		strings.Replace(good, `"provider":"oxide",`, "", 1),
		strings.Replace(good, `"request":"r",`, "", 1),
		strings.Replace(good, `"version"`, `"extra":1,"version"`, 1),
		strings.Replace(good, `"kind"`, `"Kind"`, 1),
		strings.Replace(good, `"kind":"instance"`, `"kind":"instance","image":"x"`, 1),
		strings.Replace(good, `"kind":"instance"`, `"kind":"image"`, 1),
		strings.Replace(good, `"kind":"instance"`, `"kind":"scratch"`, 1),
		strings.Replace(good, `"r"`, `"\u0072"`, 1),
		strings.Replace(good, `,"request"`, `, "request"`, 1),
		good[:len(good)-1],
	} {
		_, err := ParseMark(text)
		require.Error(t, err, text)
	}
}

func FuzzMark(f *testing.F) {
	f.Add(`omni-infra.dev/1 {"kind":"instance","provider":"oxide","request":"r","version":"v1"}`)
	f.Add(`omni-infra.dev/1 {"kind":"scratch","provider":"oxide","request":"r","image":"k","attempt":"00","version":"v1"}`)
	f.Add(`omni-infra.dev/1 {}`)

	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMark(text)
		if err != nil {
			return
		}

		again, err := m.Description()
		require.NoError(t, err)
		require.Equal(t, text, again)
		require.NotEmpty(t, m.Provider)
	})
}

func TestAnObjectIsOursByMarkAndName(t *testing.T) {
	mark, err := Mark{Kind: KindDisk, Provider: "oxide", Request: "r", Version: "v1"}.Description()
	require.NoError(t, err)

	name := NamesOf(ref("r")).Boot

	got, ours := Owner("oxide", KindDisk, name, mark)
	require.True(t, ours)
	require.Equal(t, ref("r"), got)

	// The mark of one object was copied to another.
	got, ours = Owner("oxide", KindDisk, "copy", mark)
	require.True(t, ours)
	require.Equal(t, driver.Ref{ProviderID: "oxide"}, got)

	for _, test := range []struct {
		provider, name, description string
		kind                        Kind
	}{
		{"oxide", name, "", KindDisk},
		{"oxide", name, "somebody's disk", KindDisk},
		{"oxide-2", name, mark, KindDisk},
		{"oxide", name, mark, KindInstance},
	} {
		_, ours := Owner(test.provider, test.kind, test.name, test.description)
		require.False(t, ours, "%+v", test)
	}
}

func TestAnImageIsOursByItsWholeIdentity(t *testing.T) {
	body, err := ImageOf("oxide", "key", "v1.13.5", "v1", "snapshot")
	require.NoError(t, err)

	image := oxide.Image{Name: body.Name, Description: body.Description, Version: body.Version}
	key, ours := OwnsImage("oxide", image)
	require.True(t, ours)
	require.Equal(t, "key", key)

	_, ours = OwnsImage("oxide-2", image)
	require.False(t, ours)

	for _, change := range []func(*oxide.Image){
		func(i *oxide.Image) { i.Name = "talos" },
		func(i *oxide.Image) { i.Version = "v1.13.6" },
		func(i *oxide.Image) { i.Description = "" },
		func(i *oxide.Image) { i.Description = strings.Replace(i.Description, "key", "yek", 1) },
	} {
		other := image
		change(&other)

		_, ours := OwnsImage("oxide", other)
		require.False(t, ours, "%+v", other)
	}
}

func TestScratchIsOursByItsAttempt(t *testing.T) {
	s := NewScratch(ref("r"), "key", "v1", [8]byte{1, 2})

	body, err := s.Disk(1 << 30)
	require.NoError(t, err)

	mark, ours := ScratchMark("oxide", s.Name, body.Description)
	require.True(t, ours)
	require.Equal(t, s.Mark, mark)
	require.Equal(t, ref("r"), mark.Ref())

	_, ours = ScratchMark("oxide", NewScratch(ref("r"), "key", "v1", [8]byte{3}).Name, body.Description)
	require.False(t, ours)
	_, ours = ScratchMark("oxide-2", s.Name, body.Description)
	require.False(t, ours)
}

// joinConfig stands for what makes a machine join.
const joinConfig = "apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: grpc://omni?jointoken=secret\n"

// describe is the body that makes a machine of the class.
func describe(t testing.TB, data ClassData) string {
	t.Helper()

	body, err := data.Instance(ref("workers-x7k2p"), "v1.0.0", "11111111-2222-3333-4444-555555555555", joinConfig)
	require.NoError(t, err)

	out, err := json.MarshalIndent(body, "", "  ")
	require.NoError(t, err)

	return string(out) + "\n"
}

func decode(t testing.TB, text string) ClassData {
	t.Helper()

	data, err := classdata.Decode[ClassData](text)
	require.NoError(t, err)

	return data
}

// classes are those that the golden files show, by name.
var classes = map[string]string{
	"least": "project: lab",
	"official": `{"project": "lab", "cpus": 4, "memory": 8, "boot_disk_size": 20, "disks": [{"type": "distributed", "size": 50}, {"type": "local", "size": 100}],
		"network_interfaces": [{"ip_config": "dual_stack", "subnet_name": "default", "vpc_name": "prod"}, {"ip_config": "v6", "subnet_name": "storage", "vpc_name": "prod"}],
		"auto_restart_policy": "never", "cpu_platform": "amd_turinv2", "anti_affinity_groups": ["control-planes"], "enable_jumbo_frames": true}`,
	"addresses": `{project: lab, network_interfaces: [{ip_config: dual_stack}], external_ips: [{ip_version: v4}, {pool: public-v6}, {kind: floating, pool: public}, {kind: floating, name: ingress}, {kind: floating, ip_version: v6}]}`,
	"everything-else": `{project: 7d5f0c5e-0ff5-4b9c-9b1c-6a3d3e5c1a11, cpu_platform: any, hostname: "{request}.k8s.example.org", ssh_keys: [ops],
		network_interfaces: [{ip_config: dual_stack, transit_ips: [10.244.0.0/16, "fd00:10:244::/56"]}]}`,
}

func TestInstancesAreMadeAsTheClassSays(t *testing.T) {
	for name, text := range classes {
		t.Run(name, func(t *testing.T) {
			data := decode(t, text)
			got := describe(t, data)

			golden(t, name+".json", got)
			require.NotContains(t, got, "secret", "the join configuration goes encoded")
			require.Contains(t, got, base64.StdEncoding.EncodeToString([]byte(joinConfig)))
			require.Contains(t, got, `"start": true`)
			// Without it the rack would hand over all keys of the token's user.
			require.Contains(t, got, `"ssh_public_keys": [`)
		})
	}
}

func TestEveryObjectOfAMachineIsNamedBeforeItIsMade(t *testing.T) {
	data := decode(t, `{project: lab, disks: [{size: 1}, {size: 2}], external_ips: [{kind: floating, name: mine}, {kind: floating}]}`)
	n := NamesOf(ref("workers-x7k2p"))

	require.Equal(t, map[string]string{
		"instance": n.Instance, "boot-disk": n.Boot, "disk-01": n.Disk(0), "disk-02": n.Disk(1), "floating-ip-02": n.FloatingIP(1),
	}, data.Objects(ref("workers-x7k2p")))

	got := describe(t, data)

	for _, name := range data.Objects(ref("workers-x7k2p")) {
		require.Contains(t, got, `"`+name+`"`)
	}

	ip, err := data.FloatingIP(ref("workers-x7k2p"), "v1", 1)
	require.NoError(t, err)
	require.Equal(t, n.FloatingIP(1), string(ip.Name))

	owner, ours := Owner("oxide", KindFloatingIP, string(ip.Name), ip.Description)
	require.True(t, ours)
	require.Equal(t, ref("workers-x7k2p"), owner)
}

func TestThePatchesOfAMachineNameItAndKeepTheClassesOrder(t *testing.T) {
	data := decode(t, "{project: lab, config_patches: ['machine: {sysctls: {a: b}}', 'machine: {sysctls: {a: c}}']}")

	require.Equal(t, map[string]string{
		"provider-id": "machine:\n  kubelet:\n    extraConfig:\n      providerID: oxide://some-id\n",
		"class-00":    "machine: {sysctls: {a: b}}",
		"class-01":    "machine: {sysctls: {a: c}}",
	}, data.Patches("some-id"))
	require.NotContains(t, data.Patches(""), "provider-id", "nobody knows the instance's id before there is one")

	// Omni takes it for what it is.
	data.ConfigPatches = []string{data.Patches("some-id")["provider-id"]}
	require.NoError(t, data.Validate())
}

func TestTheImageHasWhatOxidesOwnProviderGivesIt(t *testing.T) {
	spec := decode(t, "{project: lab, extensions: [siderolabs/gvisor], kernel_args: [-quiet, a=b]}").Image()
	require.Equal(t, &driver.ImageSpec{
		Platform: "nocloud", Arch: driver.AMD64, Format: "raw",
		Extensions: []string{"siderolabs/amd-ucode", "siderolabs/iscsi-tools", "siderolabs/util-linux-tools", "siderolabs/gvisor"},
		KernelArgs: []string{"-console", "console=ttyS0", "-quiet", "a=b"},
	}, spec)
	require.Empty(t, decode(t, "{project: lab, standard_extensions: false}").Image().Extensions)
}

func TestImagesHaveToFitOnTheBootDisk(t *testing.T) {
	data := decode(t, "{project: lab, boot_disk_size: 2}")

	require.NoError(t, data.CheckImage(0))
	require.NoError(t, data.CheckImage(2<<30))
	require.EqualError(t, data.CheckImage(2<<30+1), "boot_disk_size: got 2 GiB, but the Talos image has 3 GiB: want 3 or more")
}

func TestUserDataIsLimitedBeforeItIsEncoded(t *testing.T) {
	require.NoError(t, CheckUserData(strings.Repeat("x", 32768)))
	require.EqualError(t, CheckUserData(strings.Repeat("x", 32769)), "the join configuration has 32769 bytes, and an instance takes 32768 bytes of user data")
}

func TestRequestsThatCannotHaveAMachineAreRefused(t *testing.T) {
	plain, domain := decode(t, "project: lab"), decode(t, "{project: lab, hostname: '{request}.example.org'}")

	for _, test := range []struct {
		data        ClassData
		id, version string
		want        string
	}{
		{plain, "r-1", "v1.12.0", ""},
		{plain, "1r", "v1.13.5", ""},
		{plain, strings.Repeat("a", 63), "1.14.0-alpha.1", ""},
		{domain, strings.Repeat("a", 63), "v1.12.0-beta.1", ""},
		{plain, strings.Repeat("a", 64), "v1.13.5", "at most 63"},
		{plain, "a-", "v1.13.5", "no dash first or last"},
		{plain, "a_b", "v1.13.5", `request id "a_b": hostname "a_b"`},
		{plain, "", "v1.13.5", "hostname"},
		{plain, "r-1", "v1.11.9", "talos version v1.11.9 does not boot on an Oxide rack: want v1.12.0 or later"},
		{plain, "r-1", "latest", `talos version "latest" is not valid`},
	} {
		err := test.data.CheckRequest(test.id, test.version)
		if test.want == "" {
			require.NoError(t, err, "%+v", test)
		} else {
			require.ErrorContains(t, err, test.want)
		}
	}
}

func TestHostnameIsTheRequestsIDUnlessTheClassAddsToIt(t *testing.T) {
	for text, want := range map[string]string{
		"{project: p}": "workers-x7k2p",
		"{project: p, hostname: 'k8s-{request}.example.org'}": "k8s-workers-x7k2p.example.org",
	} {
		require.Contains(t, describe(t, decode(t, text)), fmt.Sprintf(`"hostname": %q`, want))
	}
}
