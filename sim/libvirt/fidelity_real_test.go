//go:build real

package libvirt_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	real "libvirt.org/go/libvirt"
)

// inside is set in the process that runs beside the private libvirtd, to the folder of its files.
const inside = "SIM_LIBVIRT_TEST_INSIDE"

// The qemu-img that libvirtd finds first waits while there is a file of the name heldName in that folder.
const (
	heldName = "held"
	patient  = `#!/bin/sh
while [ -e "$SIM_LIBVIRT_TEST_INSIDE/held" ]; do sleep 0.05; done
PATH=${PATH#*:} exec qemu-img "$@"
`
)

// TestMain runs the tests of this build tag beside a libvirtd of their own.
func TestMain(m *testing.M) {
	if os.Getenv(inside) != "" {
		startEvents()
		os.Exit(m.Run())
	}

	dir, err := os.MkdirTemp("", "sim-libvirt-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}

	programs := filepath.Join(dir, "bin")
	if err := errors.Join(os.Mkdir(programs, 0o750), os.WriteFile(filepath.Join(programs, "qemu-img"), []byte(patient), 0o700)); err != nil { //nolint:gosec // it is run
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}

	cmd := exec.CommandContext(context.Background(), "../../providers/libvirt/lab/private-libvirtd.sh", append([]string{dir}, os.Args...)...)
	cmd.Env = append(os.Environ(), inside+"="+dir, "PATH="+programs+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err = cmd.Run()

	if err == nil {
		err = os.RemoveAll(dir)
	}

	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		fmt.Fprintln(os.Stderr, "the files of libvirtd are in", dir)
		os.Exit(exit.ExitCode())
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func startEvents() {
	if err := real.EventRegisterDefaultImpl(); err != nil {
		panic(err)
	}

	go func() {
		for {
			_ = real.EventRunDefaultImpl() // It is called again.
		}
	}()
}

// daemon is the real libvirtd as scripts see it. again counts how often the script was played before.
type daemon struct{ t *testing.T }

func (daemon) Connect() (conn, error) {
	c, err := real.NewConnect("qemu:///system")
	if err != nil {
		return nil, err
	}

	return libConn{c}, nil
}

func (d daemon) Restart() {
	run(d.t, "bash", "-c", `
		pid=$(cat /run/libvirt/libvirtd.pid)
		kill "$pid"
		while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
		setsid libvirtd -p /run/libvirt/libvirtd.pid >/dev/null 2>&1 </dev/null &
		until virsh -c qemu:///system version >/dev/null 2>&1; do sleep 0.1; done`)
}

func (d daemon) WriteFile(path string, content []byte) {
	require.NoError(d.t, os.WriteFile(path, content, 0o600))
}

func (d daemon) RemoveFile(path string) { require.NoError(d.t, os.Remove(path)) }

func (daemon) HasFile(path string) bool {
	_, err := os.Stat(path)

	return err == nil
}

func (daemon) Settle() { time.Sleep(150 * time.Millisecond) }

// HoldCopies lets qemu-img, which libvirtd copies with, wait.
func (d daemon) HoldCopies() func() {
	held := filepath.Join(os.Getenv(inside), heldName)
	d.WriteFile(held, nil)

	return func() { d.RemoveFile(held) }
}

// tries is how often a script is played again whose answers differ.
const tries = 3

func run(t *testing.T, args ...string) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", strings.Join(args, " "), out)

	return string(out)
}

// clear leaves nothing of a script behind.
func clear(t *testing.T) {
	t.Helper()
	run(t, "bash", "-c", `
		export LIBVIRT_DEFAULT_URI=qemu:///system
		for d in $(virsh list --name); do virsh destroy "$d"; done
		for d in $(virsh list --all --name); do
			virsh undefine "$d" --managed-save --snapshots-metadata --checkpoints-metadata --nvram
		done
		for n in $(virsh net-list --name); do virsh net-destroy "$n"; done
		for n in $(virsh net-list --all --name); do virsh net-undefine "$n"; done
		for p in $(virsh pool-list --name); do virsh pool-destroy "$p"; done
		for p in $(virsh pool-list --all --name); do virsh pool-undefine "$p"; done
		rm -rf /var/lib/libvirt/images /var/lib/libvirt/other
		mkdir -p /var/lib/libvirt/images /var/lib/libvirt/other`)
}

// TestRealLibvirtSaysWhatWasWrittenDown holds the answers that the simulation is measured by against a real libvirtd.
func TestRealLibvirtSaysWhatWasWrittenDown(t *testing.T) {
	for _, script := range scripts {
		t.Run(script.name, func(t *testing.T) {
			clear(t)

			got := play(t, daemon{t}, script.run)

			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(golden(script.name)), 0o750))
				require.NoError(t, os.WriteFile(golden(script.name), []byte(got), 0o600))
			}

			want, err := os.ReadFile(golden(script.name))
			require.NoError(t, err)

			// On a busy machine an event may come after the next step.
			for again := 1; got != string(want) && again <= tries; again++ {
				t.Logf("try %d says otherwise:\n%s", again, got)
				clear(t)

				got = play(t, daemon{t}, script.run)
			}

			require.Equal(t, string(want), got)
		})
	}
}
