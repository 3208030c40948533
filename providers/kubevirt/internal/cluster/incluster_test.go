package cluster_test

import (
	"bytes"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
)

// accountFiles is where every pod finds its service account.
const accountFiles = "/var/run/secrets/kubernetes.io/serviceaccount"

// inPod tells the test's own executable that it runs as in a pod.
const inPod = "TEST_RUN_IN_POD"

func TestPodUsesItsServiceAccount(t *testing.T) {
	if os.Getenv(inPod) != "" {
		runInPod(t)

		return
	}

	// A mount namespace of its own gives the test's process the files of a pod.
	executable, err := os.Executable()
	require.NoError(t, err)

	var out bytes.Buffer

	cmd := exec.CommandContext(t.Context(), executable, "-test.run=^TestPodUsesItsServiceAccount$", "-test.v", "-test.timeout=2m")
	cmd.Env = append(os.Environ(), inPod+"=1", "HOME="+t.TempDir(), "KUBECONFIG=")
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}

	if id := os.Getuid(); id != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: id, Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}

	err = cmd.Start()
	if os.IsPermission(err) {
		t.Skipf("this system lets nobody make a mount namespace: %v", err)
	}

	require.NoError(t, err)
	require.NoError(t, cmd.Wait(), out.String())
	require.Contains(t, out.String(), "--- PASS: TestPodUsesItsServiceAccount")
}

// runInPod is the test in the place of a pod.
func runInPod(t *testing.T) {
	t.Helper()

	require.NoError(t, syscall.Mount("none", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
	require.NoError(t, syscall.Mount("tmpfs", "/run", "tmpfs", 0, ""))

	if path, err := filepath.EvalSymlinks("/var/run"); err != nil || path != "/run" {
		require.NoError(t, syscall.Mount("/run", "/var/run", "", syscall.MS_BIND, ""))
	}

	s, _ := serve(t)
	server := httptest.NewTLSServer(s.Handler(s.Ledger().Session()))
	t.Cleanup(server.Close)

	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	t.Setenv("KUBERNETES_SERVICE_HOST", host)
	t.Setenv("KUBERNETES_SERVICE_PORT", port)

	_, err = cluster.New(cluster.Config{})
	require.ErrorContains(t, err, "no kubeconfig is given")
	require.ErrorContains(t, err, accountFiles+"/token: no such file")

	write := func(name string, content []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(accountFiles, name), content, 0o600))
	}

	require.NoError(t, os.MkdirAll(accountFiles, 0o700))
	write("token", []byte(token))
	write("ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))

	k := connect(t, cluster.Config{})
	require.NoError(t, listSecrets(t.Context(), k))

	// The kubelet puts another one into its place before it ends.
	require.True(t, s.RotateToken(account, "canary-next"))
	write("token", []byte("canary-next"))
	require.ErrorContains(t, listSecrets(t.Context(), k), "does not accept the provider's credentials")
	require.NoError(t, listSecrets(t.Context(), k))
}
