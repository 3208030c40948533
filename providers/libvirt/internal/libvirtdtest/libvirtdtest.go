// Package libvirtdtest runs tests beside a libvirtd of their own: see lab/private-libvirtd.sh.
package libvirtdtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Inside is the environment variable that is set, and not empty, in the process that runs beside the private libvirtd.
const Inside = "LIBVIRT_TEST_INSIDE"

// Main is what TestMain does: it starts the test's program again beside a libvirtd of its own, by the script private-libvirtd.sh, and in
// there runs the tests. It does not return. The files of libvirtd are left behind when a test has failed.
func Main(m *testing.M, script string) {
	if os.Getenv(Inside) != "" {
		os.Exit(m.Run())
	}

	dir, err := os.MkdirTemp("", "private-libvirtd-")
	if err != nil {
		fail(err)
	}

	cmd := exec.CommandContext(context.Background(), script, append([]string{dir}, os.Args...)...)
	cmd.Env = append(os.Environ(), Inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr

	if err = cmd.Run(); err == nil {
		err = os.RemoveAll(dir)
	}

	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		fmt.Fprintln(os.Stderr, "the files of libvirtd are in", dir)
		os.Exit(exit.ExitCode())
	}

	if err != nil {
		fail(err)
	}

	os.Exit(0)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
