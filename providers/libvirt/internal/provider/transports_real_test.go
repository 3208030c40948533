//go:build real

package provider

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
)

func TestMachineOverTCP(t *testing.T) {
	const file = "/etc/libvirt/libvirtd.conf" // That of the private daemon.

	config, err := os.ReadFile(file)
	require.NoError(t, err)

	pool, dir := newPool(t)
	listening := slices.Concat(config, []byte("listen_tls = 0\nlisten_tcp = 1\nauth_tcp = \"none\"\nlisten_addr = \"127.0.0.1\"\ntcp_port = \"16509\"\n"))

	require.NoError(t, os.WriteFile(file, listening, 0o600))
	stopLibvirtd(t)
	startLibvirtd(t, "--listen")
	t.Cleanup(func() {
		require.NoError(t, os.WriteFile(file, config, 0o600))
		restartLibvirtd(t)
	})

	d := newDriver(t, Config{Config: connection.Config{URI: "qemu+tcp://127.0.0.1/system"}})
	req := newRequest(t, "tcp", classData(pool))

	require.NoError(t, provision(t.Context(), d, req, new(testImage)))
	require.Equal(t, "running", virsh(t, "domstate", namesOf(req.Ref).Domain))
	remove(t, d, req.Ref)
	require.Empty(t, files(t, dir))

	simulated := newDriver(t, Config{Config: connection.Config{URI: "test+tcp://127.0.0.1/default"}})
	require.NoError(t, simulated.Check(t.Context()))
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
		"XDG_CACHE_HOME="+home+"/cache", "XDG_DATA_HOME="+home+"/data", "TMPDIR="+home, sessionURI+"=qemu:///session", inside+"=1",
		"./test", "-test.run=^"+t.Name()+"$", "-test.v"))
}

func session(t *testing.T, uri string) {
	t.Helper()

	dir := t.TempDir()
	run(t, "virsh", "-c", uri, "pool-create-as", "session", "dir", "--target", dir)

	d := newDriver(t, Config{Config: connection.Config{URI: uri}})
	req := newRequest(t, "session", classData("session"))

	require.NoError(t, provision(t.Context(), d, req, new(testImage)))
	require.Equal(t, "running", run(t, "virsh", "-q", "-c", uri, "domstate", namesOf(req.Ref).Domain))
	remove(t, d, req.Ref)
	require.Empty(t, files(t, dir))
	require.Empty(t, run(t, "virsh", "-q", "-c", uri, "list", "--all", "--name"))
	run(t, "virsh", "-c", uri, "pool-destroy", "session")
}
