//go:build real

package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/sim/talos"
)

// inside is set in the process that runs beside the private libvirtd.
const inside = "LIBVIRT_PROVIDER_TEST_INSIDE"

// besideLibvirtd runs the test once more beside a libvirtd of its own, see lab/private-libvirtd.sh, and returns whether it has done so:
// inside it returns false.
func besideLibvirtd(t *testing.T) bool {
	t.Helper()

	if os.Getenv(inside) != "" {
		return false
	}

	dir, err := os.MkdirTemp("", "private-libvirtd-")
	require.NoError(t, err)

	args := append([]string{dir, os.Args[0]}, os.Args[1:]...)
	args = append(args, "-test.run=^"+t.Name()+"$", "-test.v", "-test.parallel=4")

	cmd := exec.CommandContext(t.Context(), "../../lab/private-libvirtd.sh", args...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	require.NoError(t, cmd.Run(), "the files of libvirtd are in %s", dir)
	require.NoError(t, os.RemoveAll(dir))

	return true
}

// virsh is the witness: it sees what libvirt has without any of our code.
func virsh(t *testing.T, args ...string) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	out, err := exec.CommandContext(ctx, "virsh", append([]string{"--connect", "qemu:///system", "--quiet"}, args...)...).CombinedOutput()
	require.NoError(t, err, "virsh %s: %s", strings.Join(args, " "), out)

	return strings.TrimSpace(string(out))
}

func fileNames(t *testing.T, dir string) []string {
	t.Helper()

	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}

	require.NoError(t, err)

	var names []string
	for _, entry := range entries {
		if !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}

	return names
}

// playGuests puts a simulated Talos into each machine that runs, which reads the machine's seed and joins Omni: the machine itself has
// nothing to boot. It returns how many have booted.
func playGuests(t *testing.T) *atomic.Int64 {
	t.Helper()

	require.NoError(t, libvirt.EventRegisterDefaultImpl())

	conn, err := libvirt.NewConnect("qemu:///system")
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())

	var (
		booted atomic.Int64
		wg     sync.WaitGroup
	)

	wg.Go(func() {
		type run struct {
			id   uint
			stop context.CancelFunc
		}

		runs := map[string]run{}

		for ctx.Err() == nil {
			seen := map[string]bool{}
			domains, _ := conn.ListAllDomains(libvirt.CONNECT_LIST_DOMAINS_ACTIVE) // The next look will tell.

			for i := range domains {
				uuid, _ := domains[i].GetUUIDString()
				id, err := domains[i].GetID()
				desc, descErr := domains[i].GetXMLDesc(0)
				_ = domains[i].Free()

				if err != nil || descErr != nil {
					continue
				}

				seen[uuid] = true

				if runs[uuid].id == id {
					continue
				}

				if stop := runs[uuid].stop; stop != nil {
					stop()
				}

				life, stop := context.WithCancel(ctx)
				runs[uuid] = run{id, stop}

				booted.Add(1)
				wg.Go(func() { _ = guest(uuid, desc).Run(life) })
			}

			for uuid, one := range runs {
				if !seen[uuid] {
					one.stop()
					delete(runs, uuid)
				}
			}

			select {
			case <-time.After(300 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})

	t.Cleanup(func() {
		cancel()
		wg.Wait()

		_, _ = conn.Close()
	})

	return &booted
}

// guest is a Talos that boots on a domain.
func guest(uuid, desc string) *talos.Machine {
	return &talos.Machine{UUID: uuid, BootTime: 100 * time.Millisecond, Volume: func() (fs.FS, error) {
		var doc libvirtxml.Domain
		if err := doc.Unmarshal(desc); err != nil {
			return nil, err
		}

		for _, disk := range doc.Devices.Disks {
			if disk.Device != "cdrom" || disk.Source == nil || disk.Source.File == nil {
				continue
			}

			content, err := os.ReadFile(disk.Source.File.File)
			if err != nil {
				return nil, err
			}

			return talos.OpenISO(bytes.NewReader(content))
		}

		return nil, fs.ErrNotExist
	}}
}
