//go:build real && linux

package guest_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// vm is a QEMU process with one disk.
type vm struct {
	dir     string
	command *exec.Cmd
	console *console
	exited  chan error
	qmp     *bufio.ReadWriter
}

// console keeps what the guest prints.
type console struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.text.Write(p)
}

func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()

	return c.text.String()
}

const machineID = "4c4c4544-0042-3510-8052-b4c04f4d4e31"

// start starts QEMU with emulation and user-mode network, where the host's loopback is 10.0.2.2.
func start(t *testing.T, args ...string) *vm {
	t.Helper()

	_, err := exec.LookPath("qemu-system-x86_64")
	require.NoError(t, err, "install Debian's qemu-system-x86 and ovmf")

	v := &vm{dir: t.TempDir(), console: &console{}, exited: make(chan error, 1)}
	socket := filepath.Join(v.dir, "qmp")

	v.command = exec.CommandContext(t.Context(), "qemu-system-x86_64", append([]string{
		"-cpu", "max", "-m", "256", "-display", "none", "-nodefaults", "-serial", "stdio",
		"-netdev", "user,id=n", "-device", "virtio-net-pci,netdev=n",
		"-qmp", "unix:" + socket + ",server=on,wait=off",
		"-device", "virtio-serial",
		"-chardev", "socket,id=agent,path=" + filepath.Join(v.dir, "agent") + ",server=on,wait=off",
		"-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
	}, args...)...)
	v.command.Stdout, v.command.Stderr = v.console, v.console
	require.NoError(t, v.command.Start())

	go func() { v.exited <- v.command.Wait() }()

	t.Cleanup(func() {
		v.command.Process.Kill() //nolint:errcheck // It may have ended by itself.

		if t.Failed() {
			t.Logf("console:\n%s", v.console)
		}
	})

	conn := dialUnix(t, socket)
	v.qmp = bufio.NewReadWriter(bufio.NewReader(conn), bufio.NewWriter(conn))
	v.control(t, "qmp_capabilities")

	return v
}

func dialUnix(t *testing.T, path string) net.Conn {
	t.Helper()

	var (
		conn net.Conn
		err  error
	)

	for range 100 {
		if conn, err = new(net.Dialer).DialContext(t.Context(), "unix", path); err == nil {
			t.Cleanup(func() { conn.Close() })

			return conn
		}

		time.Sleep(100 * time.Millisecond)
	}

	require.NoError(t, err)

	return nil
}

// control runs a command of QEMU's monitor.
func (v *vm) control(t *testing.T, command string) {
	t.Helper()

	fmt.Fprintf(v.qmp, `{"execute":%q}`+"\n", command) //nolint:errcheck // Flush tells.
	require.NoError(t, v.qmp.Flush())

	for {
		line, err := v.qmp.ReadBytes('\n')
		require.NoError(t, err)

		var reply map[string]any
		require.NoError(t, json.Unmarshal(line, &reply))
		require.NotContains(t, reply, "error")

		if _, ok := reply["return"]; ok {
			return
		}
	}
}

// awaitOff waits until QEMU has ended because its guest powered off.
func (v *vm) awaitOff(ctx context.Context, t *testing.T) {
	t.Helper()

	select {
	case err := <-v.exited:
		require.NoError(t, err)
	case <-ctx.Done():
		t.Fatal("the guest did not power off")
	}

	state := v.command.ProcessState
	t.Logf("QEMU used %s of CPU", (state.UserTime() + state.SystemTime()).Round(100*time.Millisecond))
}

// agentCall runs a command of the guest agent.
func agentCall(t *testing.T, conn net.Conn, request string) (reply struct{ Return json.RawMessage }) {
	t.Helper()

	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))

	_, err := conn.Write([]byte(request + "\n"))
	require.NoError(t, err)

	line, err := bufio.NewReader(conn).ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(bytes.TrimLeft(line, "\xff"), &reply), "%q", line)

	return reply
}

// execute runs a program of the packages that the real tests need.
func execute(t *testing.T, name string, args ...string) {
	t.Helper()

	output, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s: %s", name, output)
}

// seedISO makes a NoCloud volume with the tool that people use for it.
func seedISO(t *testing.T, files map[string]string) string {
	t.Helper()

	dir := t.TempDir()
	tree := filepath.Join(dir, "tree")
	require.NoError(t, os.Mkdir(tree, 0o755))

	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(tree, name), []byte(content), 0o644))
	}

	iso := filepath.Join(dir, "seed.iso")
	execute(t, "xorriso", "-as", "mkisofs", "-quiet", "-V", "cidata", "-J", "-r", "-o", iso, tree)

	return iso
}

// seedFAT makes a NoCloud volume as OpenStack's and KubeVirt's tools may: a FAT file system in upper case.
func seedFAT(t *testing.T, userData string) string {
	t.Helper()

	dir := t.TempDir()
	file, volume := filepath.Join(dir, "user-data"), filepath.Join(dir, "seed.img")
	require.NoError(t, os.WriteFile(file, []byte(userData), 0o644))

	execute(t, "mformat", "-C", "-i", volume, "-f", "1440", "-v", "CIDATA", "::")
	execute(t, "mcopy", "-i", volume, file, "::/user-data")

	return volume
}
