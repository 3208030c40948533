//go:build real

package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/libvirtdtest"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// reconfigure restarts the private daemon with more settings, and arguments, until the test ends.
func reconfigure(t *testing.T, settings string, args ...string) {
	t.Helper()

	const file = "/etc/libvirt/libvirtd.conf" // That of the private daemon.

	config, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, slices.Concat(config, []byte(settings)), 0o600))

	stopLibvirtd(t)
	t.Cleanup(func() {
		require.NoError(t, os.WriteFile(file, config, 0o600))
		reviveLibvirtd(t)
	})
	startLibvirtd(t, args...)
}

// reviveLibvirtd starts the private daemon anew, whether it runs or not.
func reviveLibvirtd(t *testing.T) {
	t.Helper()

	if text, err := os.ReadFile("/run/libvirt/libvirtd.pid"); err == nil {
		pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
		require.NoError(t, err)

		_ = syscall.Kill(pid, syscall.SIGTERM) // It may have ended.

		require.Eventually(t, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }, 20*time.Second, 50*time.Millisecond)
	}

	startLibvirtd(t)
}

// requireMachineOver makes a machine over a URI, hears of it, and takes it away.
func requireMachineOver(t *testing.T, uri string) {
	t.Helper()

	pool, dir := newPool(t)
	d := newDriver(t, hypervisor.Config{Config: connection.Config{URI: uri}})
	req := newRequest(t, "remote", classData(pool))
	heard := make(chan driver.Ref, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	require.NoError(t, d.Check(t.Context()))

	go func() { ended <- d.Watch(ctx, req.ProviderID, func(ref driver.Ref) { heard <- ref }) }()

	require.NoError(t, provision(t.Context(), d, req, new(testImage)))
	require.Equal(t, "running", virsh(t, "domstate", machine.NamesOf(req.Ref).Domain))
	require.Eventually(t, func() bool {
		for len(heard) > 0 {
			if <-heard == req.Ref {
				return true
			}
		}

		return false
	}, 20*time.Second, 50*time.Millisecond, "no event of the machine")

	remove(t, d, req.Ref)
	require.Empty(t, domainNames(t))
	require.Empty(t, files(t, dir))
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled, "watching ends with its context")
}

func TestMachineOverUnixSocket(t *testing.T) {
	requireMachineOver(t, "qemu+unix:///system?socket=/run/libvirt/libvirt-sock")
}

func TestMachineOverTCP(t *testing.T) {
	reconfigure(t, "listen_addr = \"127.0.0.1\"\nlisten_tls = 0\nlisten_tcp = 1\nauth_tcp = \"none\"\ntcp_port = \"16509\"\n", "--listen")
	requireMachineOver(t, "qemu+tcp://127.0.0.1/system")

	simulated := newDriver(t, hypervisor.Config{Config: connection.Config{URI: "test+tcp://127.0.0.1/default"}})
	require.NoError(t, simulated.Check(t.Context()))
}

// TestMachineOverTLS uses the certificates that the documentation's script makes.
func TestMachineOverTLS(t *testing.T) {
	pki := t.TempDir()
	script := "../../deploy/make-certificates.sh"

	run(t, script, pki, "127.0.0.1", "omni-provider")
	run(t, script, pki+"/others", "127.0.0.1", "omni-provider")

	reconfigure(t, fmt.Sprintf("listen_addr = \"127.0.0.1\"\nlisten_tcp = 0\nlisten_tls = 1\ntls_port = \"16514\"\nauth_tls = \"none\"\n"+
		"ca_file = %q\ncert_file = %q\nkey_file = %q\ntls_allowed_dn_list = [\"CN=omni-provider\"]\n",
		pki+"/server/cacert.pem", pki+"/server/servercert.pem", pki+"/server/serverkey.pem"), "--listen")
	requireMachineOver(t, "qemu+tls://127.0.0.1/system?pkipath="+pki+"/client")

	// The same authority for another client, who is not on the list; another authority; no certificate.
	run(t, script, pki, "127.0.0.1", "somebody")

	for uri, want := range map[string]string{
		"qemu+tls://127.0.0.1/system?pkipath=" + pki + "/client":        "connect to libvirt at",
		"qemu+tls://127.0.0.1/system?pkipath=" + pki + "/others/client": "certificate",
		"qemu+tls://localhost/system?pkipath=" + pki + "/client":        "certificate",
	} {
		stranger := newDriver(t, hypervisor.Config{Config: connection.Config{URI: uri}})
		err := stranger.Check(t.Context())
		require.ErrorContains(t, err, want, uri)
		require.NotContains(t, err.Error(), "\n")
	}
}

func TestMachineOverSSH(t *testing.T) {
	if byItself(t) {
		return
	}

	server, restricted := newSSHServer(t, ""), newSSHServer(t, "virt-ssh-helper qemu:///system")

	// The program knows hosts by its own configuration, which for this test is in a file. The library, qemu+libssh, is not tried: before
	// 10.3 libvirt's client library does not survive it.
	for name, one := range map[string]sshServer{"any command": server, "restricted key": restricted} {
		t.Run(name, func(t *testing.T) {
			command := filepath.Join(t.TempDir(), "ssh")
			require.NoError(t, os.WriteFile(command, fmt.Appendf(nil, "#!/bin/sh\nexec ssh -F none -o UserKnownHostsFile=%s \"$@\"\n", one.known), 0o700))
			requireMachineOver(t, fmt.Sprintf("qemu+ssh://root@127.0.0.1:%d/system?keyfile=%s&no_tty=1&command=%s", one.port, one.key, command))
		})
	}

	// A host that is not the one that is known is not talked to.
	other := newSSHServer(t, "")
	wrong := newDriver(t, hypervisor.Config{Config: connection.Config{URI: fmt.Sprintf(
		"qemu+libssh://root@127.0.0.1:%d/system?keyfile=%s&known_hosts=%s&known_hosts_verify=normal&sshauth=privkey", other.port, other.key, server.known)}})
	require.ErrorContains(t, wrong.Check(t.Context()), "check the host, the user, the key file and the known hosts")
}

// sessionURI is set in the process that runs as a user without rights.
const sessionURI = "LIBVIRT_PROVIDER_TEST_SESSION"

func TestMachineOfAUserWithoutRights(t *testing.T) {
	if uri := os.Getenv(sessionURI); uri != "" {
		session(t, uri)

		return
	}

	// That user reaches neither the folders of the test nor its binary. The names are short: libvirt makes sockets in there.
	home, err := os.MkdirTemp("/var/tmp", "u")
	require.NoError(t, err)

	defer func() { require.NoError(t, os.RemoveAll(home)) }()

	binary, err := os.ReadFile(os.Args[0])
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(home, "test"), binary, 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(home, "run"), 0o700))
	require.NoError(t, os.MkdirAll(filepath.Join(home, "c/libvirt"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(home, "c/libvirt/qemu.conf"), []byte("stdio_handler = \"file\"\n"), 0o644))
	run(t, "chown", "-R", "65534:65534", home)

	t.Log(run(t, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
		"env", "-C", home, "HOME="+home, "XDG_RUNTIME_DIR="+home+"/run", "XDG_CONFIG_HOME="+home+"/c",
		"XDG_CACHE_HOME="+home+"/cache", "XDG_DATA_HOME="+home+"/data", "TMPDIR="+home, sessionURI+"=qemu:///session", libvirtdtest.Inside+"=1",
		"./test", "-test.run=^"+t.Name()+"$", "-test.v"))
}

func session(t *testing.T, uri string) {
	t.Helper()

	dir := t.TempDir()
	run(t, "virsh", "-c", uri, "pool-create-as", "session", "dir", "--target", dir)

	d := newDriver(t, hypervisor.Config{Config: connection.Config{URI: uri}})
	req := newRequest(t, "session", classData("session"))

	require.NoError(t, provision(t.Context(), d, req, new(testImage)))
	require.Equal(t, "running", run(t, "virsh", "-q", "-c", uri, "domstate", machine.NamesOf(req.Ref).Domain))
	remove(t, d, req.Ref)
	require.Empty(t, files(t, dir))
	require.Empty(t, run(t, "virsh", "-q", "-c", uri, "list", "--all", "--name"))
	run(t, "virsh", "-c", uri, "pool-destroy", "session")
}
