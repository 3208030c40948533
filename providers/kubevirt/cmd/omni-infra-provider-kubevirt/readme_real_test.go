//go:build real

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tried are the programs that the README's block starts, by where they lie in the repository.
var tried = []string{
	"./sim/cmd/image-factory-sim", "./sim/cmd/omni-sim", "./sim/cmd/kubevirt-sim", "./tools/cmd/omnictl", "./providers/kubevirt/cmd/omni-infra-provider-kubevirt",
}

// tryIt is the block of the README that tries the provider without an Omni and without a cluster.
func tryIt(t *testing.T) string {
	t.Helper()

	text, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	require.NoError(t, err)

	_, section, found := strings.Cut(string(text), "\n## Try it")
	require.True(t, found)

	section, _, _ = strings.Cut(section, "\n## ")

	var block []string

	for line := range strings.Lines(section) {
		if code, ok := strings.CutPrefix(line, "    "); ok {
			block = append(block, code)
		} else if line == "\n" && len(block) > 0 {
			block = append(block, line)
		}
	}

	return strings.Join(block, "")
}

// TestReadmesTrialWorksAsItIsWritten runs the block as a user pastes it, but for the folder and the addresses, which are the test's own,
// and for what is built, which is no more than what it starts. It needs what image-factory-sim needs: Debian's packages.
func TestReadmesTrialWorksAsItIsWritten(t *testing.T) {
	root, err := filepath.Abs("../../../..")
	require.NoError(t, err)

	folder := t.TempDir()
	bin := filepath.Join(folder, "bin")

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()

	build := exec.CommandContext(ctx, "go", append([]string{"build", "-o", bin + "/"}, tried...)...)
	build.Dir = root
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)

	script := tryIt(t)
	replace := func(old, with string) {
		t.Helper()
		require.Contains(t, script, old)
		script = strings.ReplaceAll(script, old, with)
	}

	factory, api, machines := freeAddress(t), freeAddress(t), freeAddress(t)

	replace("make build\n", "")
	replace("bin/image-factory-sim >", "bin/image-factory-sim --listen "+factory+" >")
	replace("127.0.0.1:8085", factory)
	replace("127.0.0.1:8099", api)
	replace("127.0.0.1:8090", machines)
	replace("/tmp/kubevirt", filepath.Join(folder, "trial"))
	replace("bin/", bin+"/")

	// Where there is no kubectl, the README leaves its line out.
	if _, err := exec.LookPath("kubectl"); err != nil {
		var kept []string

		for line := range strings.Lines(script) {
			if !strings.HasPrefix(line, "kubectl ") {
				kept = append(kept, line)
			}
		}

		script = strings.Join(kept, "")
	}

	script = strings.Replace(script, "sleep 20\n", awaitIn(bin+"/omnictl get link", "yes"), 1) +
		"echo joined\n" + bin + "/omnictl delete machinerequestset trial\n" + awaitIn(bin+"/omnictl get machinerequest", "no") + "echo removed\n"

	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Dir = root
	// What it starts in the background goes with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second

	// Programs in the background hold the output open: the script's own end is what counts.
	log, err := os.Create(filepath.Join(folder, "output"))
	require.NoError(t, err)

	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())

	err = cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) //nolint:errcheck // those that have ended are gone

	text, readErr := os.ReadFile(log.Name())
	require.NoError(t, readErr)
	require.NoError(t, err, "%s\n%s", text, logs(t, filepath.Join(folder, "trial")))
	require.Contains(t, string(text), "joined\n")
	require.Contains(t, string(text), "removed\n")
	require.Contains(t, string(text), "trial-", "the machine is listed")
}

// awaitIn is a line that waits until a command lists something, or nothing.
func awaitIn(command, something string) string {
	want := "-gt 1"
	if something == "no" {
		want = "-le 1"
	}

	// The first line is the header.
	return fmt.Sprintf("timeout 240 sh -c 'until [ $(%s | wc -l) %s ]; do sleep 1; done'\n", command, want)
}

func freeAddress(t *testing.T) string {
	t.Helper()

	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	defer l.Close() //nolint:errcheck // it has served its purpose

	return l.Addr().String()
}

// logs are the ends of what the programs have written.
func logs(t *testing.T, folder string) string {
	t.Helper()

	files, err := filepath.Glob(filepath.Join(folder, "*.log"))
	require.NoError(t, err)

	var all strings.Builder

	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		fmt.Fprintf(&all, "%s:\n%s\n", filepath.Base(file), text[max(0, len(text)-2000):])
	}

	return all.String()
}
