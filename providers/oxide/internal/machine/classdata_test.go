package machine

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestSchemaIsPublishedAsItIs(t *testing.T) {
	require.True(t, json.Valid([]byte(Schema())))
	golden(t, "schema.json", Schema()+"\n")
}

func TestClassDataThatCannotWorkIsRefusedWithItsField(t *testing.T) {
	list := func(n int, item string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(item+", ", n), ", ") + "]"
	}

	for _, test := range []struct{ name, data, want string }{
		{"empty", "", "project: required"},
		{"misspelt", "{project: p, memroy: 4}", `did you mean "memory"?`},
		{"memory in MiB", "{project: p, memory: 4096}", "memory: got the number 4096"},
		{"too many CPUs", "{project: p, cpus: 255}", "cpus: got the number 255"},
		{"no project", "{project: ''}", "project"},
		{"project that is no name", "{project: My_Project}", `project: got "My_Project", which is neither a name on a rack nor an id`},
		{"boot disk too large", "{project: p, boot_disk_size: 1024}", "boot_disk_size: got the number 1024"},
		{"twelve disks beside the boot disk", "{project: p, disks: " + list(12, "{size: 1}") + "}", "disks"},
		{"disk without size", "{project: p, disks: [{type: local}]}", "disks[0].size: required"},
		{"distributed disk too large", "{project: p, disks: [{size: 1023}, {size: 1024}]}", "disks[1].size: got 1024 GiB, but a distributed disk has at most 1023"},
		{"unknown disk", "{project: p, disks: [{size: 1, type: nvme}]}", "disks[0].type"},
		{"no interface", "{project: p, network_interfaces: []}", "network_interfaces"},
		{"nine interfaces", "{project: p, network_interfaces: " + list(9, "{}") + "}", "network_interfaces"},
		{"two VPCs", "{project: p, network_interfaces: [{vpc_name: a}, {vpc_name: b, subnet_name: x}]}", `network_interfaces[1].vpc_name: got "b", but network_interfaces[0] is in "a"`},
		{"one subnet twice", "{project: p, network_interfaces: [{}, {}]}", `network_interfaces[1].subnet_name: "default" is that of network_interfaces[0]`},
		{"VPC by id", "{project: p, network_interfaces: [{vpc_name: 7d5f0c5e-0ff5-4b9c-9b1c-6a3d3e5c1a11}]}", "network_interfaces[0].vpc_name"},
		{"subnet that is no name", "{project: p, network_interfaces: [{subnet_name: a-}]}", "network_interfaces[0].subnet_name"},
		{"unknown stack", "{project: p, network_interfaces: [{ip_config: v5}]}", "network_interfaces[0].ip_config"},
		{"transit IP that is none", "{project: p, network_interfaces: [{transit_ips: [10.0.0.1/8]}]}", "network_interfaces[0].transit_ips[0]"},
		{"transit IP of the other version", "{project: p, network_interfaces: [{transit_ips: ['fd00::/8']}]}", "but ip_config is v4"},
		{"unknown platform", "{project: p, cpu_platform: intel}", "cpu_platform"},
		{"unknown policy", "{project: p, auto_restart_policy: always}", "auto_restart_policy"},
		{"group twice", "{project: p, anti_affinity_groups: [a, a]}", `anti_affinity_groups[1]: "a" is that of anti_affinity_groups[0]`},
		{"group that is no name", "{project: p, anti_affinity_groups: ['a b']}", "anti_affinity_groups[0]"},
		{"key twice", "{project: p, ssh_keys: [a, a]}", `ssh_keys[1]: "a" is that of ssh_keys[0]`},
		{"pool and version", "{project: p, external_ips: [{pool: a, ip_version: v4}]}", `external_ips[0].ip_version: got "v4", but pool is "a"`},
		{"address of a version that no interface has", "{project: p, external_ips: [{kind: floating, ip_version: v6}]}", `external_ips[0].ip_version: got "v6", but no network interface has`},
		{"ephemeral with a name", "{project: p, external_ips: [{name: a}]}", "external_ips[0].name: got \"a\", but an ephemeral address has no name"},
		{"floating IP in a pool", "{project: p, external_ips: [{kind: floating, name: a, pool: b}]}", "external_ips[0].name: got \"a\", a floating IP that exists"},
		{"floating IP twice", "{project: p, external_ips: [{kind: floating, name: a}, {kind: floating, name: a}]}", `external_ips[1].name: "a" is that of external_ips[0]`},
		{"ephemeral twice", "{project: p, external_ips: [{ip_version: v4}, {ip_version: v4}]}", "external_ips[1]: external_ips[0] is the same already"},
		{"three ephemeral", "{project: p, network_interfaces: [{ip_config: dual_stack}], external_ips: [{ip_version: v4}, {ip_version: v6}, {pool: a}]}", "external_ips: got 3 ephemeral addresses"},
		{"hostname for all", "{project: p, hostname: node}", "hostname"},
		{"hostname that is none", "{project: p, hostname: '{request}.-.org'}", "hostname"},
		{"extension by name", "{project: p, extensions: [gvisor]}", "extensions[0]"},
		{"two arguments in one", "{project: p, kernel_args: ['a b']}", "kernel_args[0]"},
		{"patch with a typing mistake", "{project: p, config_patches: ['machine: {sysctl: {a: b}}']}", "config_patches[0]: not a patch of Talos' configuration that Omni takes"},
		{"patch of what Omni owns", "{project: p, config_patches: ['machine: {token: x}']}", `overriding "machine.token" is not allowed`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := classdata.Decode[ClassData](test.data)
			require.ErrorContains(t, err, test.want)
			require.Equal(t, driver.KindTerminal, driver.KindOf(err))
		})
	}

	_, err := classdata.Decode[ClassData]("{project: p, disks: " + list(11, "{size: 1023}") + "}")
	require.NoError(t, err)
}

// The form that Omni shows, and the classes that are there, are those of Oxide's own provider.
func TestClassesOfTheOfficialProviderMeanTheSame(t *testing.T) {
	data := decode(t, `{"project": "p", "cpus": 1, "memory": 4, "boot_disk_size": 10, "network_interfaces": [{"ip_config": "v4", "subnet_name": "s", "vpc_name": "v"}],
		"auto_restart_policy": "best_effort", "cpu_platform": "amd_milan", "disks": [], "anti_affinity_groups": [], "enable_jumbo_frames": false}`)
	least := decode(t, "{project: p, network_interfaces: [{subnet_name: s, vpc_name: v}]}")
	require.Equal(t, describe(t, data), describe(t, least), "what it shows as defaults are the defaults")

	for name, want := range map[string]string{
		"amd_milan": "amd_milan", "amd_turin": "amd_turin", "amd_turin_v2": "amd_turin_v2", "amd_turinv2": "amd_turin_v2",
	} {
		require.Contains(t, describe(t, decode(t, "{project: p, cpu_platform: "+name+"}")), fmt.Sprintf(`"cpu_platform": %q`, want))
	}

	require.NotContains(t, describe(t, decode(t, "{project: p, cpu_platform: any}")), "cpu_platform")
}

// full is a class in which each field has a value, for the next test to take another one.
const full = `{project: p, cpus: 2, memory: 8, boot_disk_size: 11, disks: [{type: local, size: 2}],
	network_interfaces: [{vpc_name: v, subnet_name: s, ip_config: dual_stack, transit_ips: [10.0.0.0/8]}], anti_affinity_groups: [g], cpu_platform: amd_turin,
	auto_restart_policy: never, enable_jumbo_frames: true, external_ips: [{kind: floating, pool: q}, {ip_version: v4}, {kind: floating, name: n}], hostname: 'h-{request}', ssh_keys: [k],
	image_scope: silo, standard_extensions: false, extensions: [a/b], kernel_args: [x], config_patches: ['machine: {sysctls: {a: b}}']}`

func TestNoFieldIsAcceptedAndIgnored(t *testing.T) {
	// show is all that follows from class data: the project and the scope are where, not what.
	show := func(data ClassData) string {
		image, err := json.Marshal(data.Image())
		require.NoError(t, err)

		ips := ""

		for _, i := range data.MadeFloatingIPs() {
			ip, err := data.FloatingIP(ref("r"), "v", i)
			require.NoError(t, err)

			text, err := json.Marshal(ip)
			require.NoError(t, err)

			ips += string(text)
		}

		return describe(t, data) + string(image) + ips + fmt.Sprint(data.Patches("id"), data.Project, data.ImageScope)
	}

	want := show(decode(t, full))
	changed := 0

	var change func(path string, v reflect.Value, data *ClassData)

	change = func(path string, v reflect.Value, data *ClassData) {
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				change(path+"."+v.Type().Field(i).Tag.Get("json"), v.Field(i), data)
			}

			return
		case reflect.Slice:
			for i := range v.Len() {
				change(fmt.Sprintf("%s[%d]", path, i), v.Index(i), data)
			}

			return
		}

		if v.IsZero() {
			return
		}

		old := reflect.ValueOf(v.Interface())

		switch v.Kind() {
		case reflect.String:
			other := map[string]string{"local": "distributed", "dual_stack": "v4", "floating": "ephemeral", "v4": "v6", "10.0.0.0/8": "10.0.0.0/9", "h-{request}": "i-{request}"}[v.String()]
			if other == "" {
				other = v.String() + "x"
			}

			v.SetString(other)
		case reflect.Int:
			v.SetInt(v.Int() + 1)
		case reflect.Bool:
			v.SetBool(!v.Bool())
		}

		require.NotEqual(t, want, show(*data), "%s changes nothing", path)
		v.Set(old)

		changed++
	}

	data := decode(t, full)
	data.StandardExtensions = true
	want = show(data)
	change("", reflect.ValueOf(&data).Elem(), &data)
	require.Greater(t, changed, 24)
}

// Class data comes from whoever may write machine classes.
func FuzzClassData(f *testing.F) {
	for _, text := range classes {
		f.Add(text)
	}

	f.Add(full)

	f.Fuzz(func(t *testing.T, text string) {
		data, err := classdata.Decode[ClassData](text)
		if err != nil {
			return
		}

		got := describe(t, data)
		require.NotContains(t, got, "jointoken")

		for _, name := range data.Objects(ref("workers-x7k2p")) {
			require.True(t, validName(name), name)
		}

		for _, i := range data.MadeFloatingIPs() {
			_, err := data.FloatingIP(ref("workers-x7k2p"), "v1", i)
			require.NoError(t, err)
		}
	})
}
