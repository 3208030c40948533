//go:build real

package provider

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/libvirtdtest"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// leastRights is set in the process that runs as a user with the rights of the documentation's rules, and no others.
const leastRights = "LIBVIRT_PROVIDER_TEST_LEAST_RIGHTS"

// TestRightsOfTheRulesAreEnough has libvirtd ask polkit about each call, with the rules file that the documentation offers, and makes,
// switches and removes a machine as the user that the rules are for. What the rules do not grant is denied.
func TestRightsOfTheRulesAreEnough(t *testing.T) {
	if data := os.Getenv(leastRights); data != "" {
		withLeastRights(t, data)

		return
	}

	rules, err := os.ReadFile("../../deploy/50-omni-infra-provider-libvirt.rules")
	require.NoError(t, err)

	newNetwork(t, "rights", "192.168.80.1", "255.255.255.0", "<range start='192.168.80.2' end='192.168.80.99'/>")

	pool, dir := newPool(t)

	// It ends with the message bus.
	t.Cleanup(func() { reviveLibvirtd(t) })
	startPolkit(t, strings.ReplaceAll(string(rules), `user = "omni-infra-provider-libvirt"`, `user = "nobody"`))
	reconfigure(t, "access_drivers = [ \"polkit\" ]\nunix_sock_rw_perms = \"0777\"\n")

	data := strings.Replace(classData(pool, "additional_disks: [{size: 1}]"), "{type: user}", "{network_name: rights, dhcp_reservation: true}", 1)

	home, err := os.MkdirTemp("/var/tmp", "u")
	require.NoError(t, err)

	defer func() { require.NoError(t, os.RemoveAll(home)) }()

	binary, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(home, "test"), binary, 0o755))
	run(t, "chown", "-R", "65534:65534", home)

	t.Log(run(t, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "-C", home, "HOME="+home, "TMPDIR="+home,
		leastRights+"="+data, libvirtdtest.Inside+"=1", "./test", "-test.run=^"+t.Name()+"$", "-test.v"))

	require.Empty(t, domainNames(t))
	require.Empty(t, files(t, dir))
	require.NotContains(t, virsh(t, "net-dumpxml", "rights"), "<host")

	// The user has no other rights.
	out, err := exec.CommandContext(t.Context(), "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
		"virsh", "-c", "qemu:///system", "pool-destroy", pool).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "access denied")
}

func withLeastRights(t *testing.T, data string) {
	t.Helper()

	d := newDriver(t, hypervisor.Config{Config: connection.Config{URI: "qemu:///system"}})
	req := newRequest(t, "rights", data)

	require.NoError(t, d.Check(t.Context()))
	require.NoError(t, provision(t.Context(), d, req, new(testImage)))

	found, err := d.Find(t.Context(), req.Ref)
	require.NoError(t, err)
	require.Equal(t, driver.PowerOn, found.Power)
	require.Equal(t, machine.NamesOf(req.Ref).Domain, found.ID)

	listed, err := d.List(t.Context(), req.ProviderID)
	require.NoError(t, err)
	require.Len(t, listed, 1)

	settled(t, func() error { return d.Reboot(t.Context(), req.Ref) })
	settled(t, func() error { return d.SetPower(t.Context(), req.Ref, driver.PowerOff) })
	settled(t, func() error { return d.SetPower(t.Context(), req.Ref, driver.PowerOn) })
	remove(t, d, req.Ref)
}

// startPolkit starts a message bus and polkit with one rules file, for the private daemon alone, until the test ends. Which actions there
// are, a package that is not installed would tell: here they are those that the rules name, and some that they do not.
func startPolkit(t *testing.T, rules string) {
	t.Helper()

	dir := t.TempDir()
	run(t, "chmod", "755", dir, filepath.Dir(dir))

	write := func(name, content string) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}

	actions := []string{"org.libvirt.unix.manage", "org.libvirt.api.storage-pool.stop", "org.libvirt.api.domain.read-secure", "org.libvirt.api.network.stop"}

	for _, object := range regexp.MustCompile(`(?s)"([a-z-]+)": \[(.*?)\]`).FindAllStringSubmatch(rules, -1) {
		for _, permission := range regexp.MustCompile(`"([a-z-]+)"`).FindAllStringSubmatch(object[2], -1) {
			actions = append(actions, "org.libvirt.api."+object[1]+"."+permission[1])
		}
	}

	policy := "<policyconfig>"
	for _, action := range actions {
		policy += fmt.Sprintf("<action id='%s'><description>%s</description><message>%s</message><defaults><allow_any>no</allow_any>"+
			"<allow_inactive>no</allow_inactive><allow_active>no</allow_active></defaults></action>", action, action, action)
	}

	write("actions/org.libvirt.policy", policy+"</policyconfig>")
	write("rules/50-omni.rules", rules)
	write("bus/bus.conf", `<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen><auth>EXTERNAL</auth>
<policy context="default"><allow send_destination="*"/><allow receive_sender="*"/><allow own="*"/><allow user="*"/></policy></busconfig>`)

	require.NoError(t, os.MkdirAll("/run/dbus", 0o755))

	for from, to := range map[string]string{"actions": "/usr/share/polkit-1/actions", "rules": "/etc/polkit-1/rules.d", "bus": "/run/dbus"} {
		run(t, "mount", "--bind", filepath.Join(dir, from), to)
		t.Cleanup(func() { run(t, "umount", "--lazy", to) })
	}

	for _, args := range [][]string{{"dbus-daemon", "--nofork", "--nopidfile", "--config-file=/run/dbus/bus.conf"}, {"/usr/lib/polkit-1/polkitd", "--no-debug"}} {
		cmd := exec.Command(args[0], args[1:]...)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})

		if args[0] == "dbus-daemon" {
			require.Eventually(t, func() bool {
				_, err := os.Stat("/run/dbus/system_bus_socket")

				return err == nil
			}, 20*time.Second, 50*time.Millisecond)
		}
	}

	require.Eventually(t, func() bool {
		return exec.CommandContext(t.Context(), "pkcheck", "--action-id", actions[0], "--process", fmt.Sprint(os.Getpid())).Run() == nil
	}, 20*time.Second, 200*time.Millisecond, "polkit does not answer")
}
