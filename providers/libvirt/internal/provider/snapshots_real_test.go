//go:build real

package provider

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
)

// The files of external snapshots go with the machine, also those that libvirt does not know; the rest of what operators make of a
// machine is in TestMachineGoesWithAllThatItHasComeTo.
func TestFilesOfExternalSnapshotsGoWithTheMachine(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(t *testing.T, domain, dir string)
		// stays are files that are not the machine's.
		stays []string
	}{
		"without metadata": {change: func(t *testing.T, domain, _ string) {
			virsh(t, "snapshot-create-as", domain, "one", "--disk-only", "--atomic", "--no-metadata", "--diskspec", "sda,snapshot=no")
			virsh(t, "snapshot-create-as", domain, "two", "--disk-only", "--atomic", "--no-metadata", "--diskspec", "sda,snapshot=no")
		}},
		"with memory": {change: func(t *testing.T, domain, dir string) {
			virsh(t, "snapshot-create-as", domain, "one", "--atomic", "--memspec", "file="+filepath.Join(dir, "memory"), "--diskspec", "sda,snapshot=no")
		}},
		"of a disk that was added": {change: func(t *testing.T, domain, dir string) {
			run(t, "qemu-img", "create", "-q", "-f", "qcow2", filepath.Join(dir, "theirs.qcow2"), "1G")
			virsh(t, "attach-disk", domain, filepath.Join(dir, "theirs.qcow2"), "vdz", "--persistent", "--subdriver", "qcow2")
			virsh(t, "snapshot-create-as", domain, "one", "--disk-only", "--atomic", "--diskspec", "sda,snapshot=no")
		}, stays: []string{"theirs.one", "theirs.qcow2"}},
	} {
		t.Run(name, func(t *testing.T) {
			pool, dir := newPool(t)
			d := newDriver(t, hypervisor.Config{})
			req := newRequest(t, "workers-x7k2p9", strings.ReplaceAll(classData(pool, "additional_disks: [{size: 1}]"), "bios", "uefi"))

			require.NoError(t, provision(t.Context(), d, req, new(testImage)))
			tt.change(t, machine.NamesOf(req.Ref).Domain, dir)
			remove(t, d, req.Ref)
			require.Empty(t, domainNames(t))
			require.Equal(t, tt.stays, files(t, dir))
		})
	}
}

// Another machine may lie on a disk of the provider's machine, as a linked clone does. Its disk is not the machine's.
func TestTeardownLeavesALinkedCloneAlone(t *testing.T) {
	pool, dir := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "workers-x7k2p9", classData(pool))

	require.NoError(t, provision(t.Context(), d, req, new(testImage)))
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", filepath.Join(dir, machine.NamesOf(req.Ref).Root), filepath.Join(dir, "clone.qcow2"))

	remove(t, d, req.Ref)
	require.Equal(t, []string{"clone.qcow2"}, files(t, dir))
}
