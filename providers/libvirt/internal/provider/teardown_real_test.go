//go:build real

package provider

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// keptByLibvirt is where libvirt and its helpers keep what belongs to domains.
var keptByLibvirt = []string{
	"/var/lib/libvirt/qemu/nvram", "/var/lib/libvirt/qemu/save", "/var/lib/libvirt/qemu/snapshot", "/var/lib/libvirt/qemu/checkpoint",
	"/var/lib/libvirt/swtpm", "/etc/libvirt/qemu/autostart",
}

// kept are the files that libvirt keeps for domains. It leaves empty folders behind.
func kept(t *testing.T) []string {
	t.Helper()

	var all []string

	for _, dir := range keptByLibvirt {
		require.NoError(t, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil
			}

			if err == nil && !entry.IsDir() {
				all = append(all, path)
			}

			return err
		}))
	}

	return all
}

// TestMachineGoesWithAllThatItHasComeTo lets operators do to machines what they do, and sees that removal leaves nothing of them behind and
// takes nothing of somebody else's.
func TestMachineGoesWithAllThatItHasComeTo(t *testing.T) {
	for _, test := range []struct {
		name, data string
		// change does something to a running machine.
		change func(t *testing.T, domain, dir string)
		// foreign are the files that have to stay, and renamed the domain's new name.
		foreign []string
		renamed string
		// keeps is a part of the name of something that libvirt keeps for the machine until then.
		keeps string
	}{
		{
			name: "firmware, TPM and saved memory", data: "firmware: uefi, secure_boot: true, tpm: true", keeps: "swtpm",
			change: func(t *testing.T, domain, _ string) { virsh(t, "managedsave", domain) },
		},
		{
			name: "snapshots inside the disks", data: "firmware: bios", keeps: "snapshot",
			change: func(t *testing.T, domain, _ string) {
				virsh(t, "snapshot-create-as", domain, "one")
				virsh(t, "snapshot-create-as", domain, "two")
			},
		},
		{
			name: "snapshots beside the disks", data: "firmware: bios, additional_disks: [{size: 1}]", keeps: "snapshot",
			change: func(t *testing.T, domain, dir string) {
				virsh(t, "snapshot-create-as", domain, "one", "--disk-only", "--atomic")
				virsh(t, "snapshot-create-as", domain, "two", "--disk-only", "--atomic", "--diskspec", "vda,file="+dir+"/before-the-upgrade.qcow2")
				virsh(t, "snapshot-create-as", domain, "three", "--disk-only", "--atomic", "--no-metadata")
			},
		},
		{
			name: "checkpoints", data: "firmware: bios", keeps: "checkpoint",
			change: func(t *testing.T, domain, _ string) {
				virsh(t, "checkpoint-create-as", domain, "monday")
				virsh(t, "checkpoint-create-as", domain, "tuesday")
			},
		},
		{
			name: "disks of somebody else", data: "firmware: bios", foreign: []string{"overlay.qcow2", "theirs.qcow2", "their-overlay.qcow2"},
			change: func(t *testing.T, domain, dir string) {
				for _, disk := range [][2]string{{"theirs.qcow2", ""}, {"overlay.qcow2", domain + ".qcow2"}, {"their-overlay.qcow2", "theirs.qcow2"}} {
					args := []string{"qemu-img", "create", "-q", "-f", "qcow2"}
					if disk[1] != "" {
						args = append(args, "-u", "-F", "qcow2", "-b", filepath.Join(dir, disk[1]))
					}

					run(t, append(args, filepath.Join(dir, disk[0]), "1G")...)
				}

				virsh(t, "attach-disk", domain, filepath.Join(dir, "their-overlay.qcow2"), "vdx", "--subdriver", "qcow2", "--persistent")
			},
		},
		{
			name: "undefined while it runs", data: "firmware: uefi", keeps: "nvram",
			change: func(t *testing.T, domain, _ string) { virsh(t, "undefine", domain, "--keep-nvram") },
		},
		{
			// With UEFI, libvirt itself leaves the variables of the old name behind when it renames a domain.
			name: "renamed", data: "firmware: bios", renamed: "my-node", keeps: "autostart/my-node",
			change: func(t *testing.T, domain, _ string) {
				virsh(t, "destroy", domain)
				virsh(t, "domrename", domain, "my-node")
				virsh(t, "start", "my-node")
			},
		},
		{
			name: "copied while it runs", data: "firmware: bios", foreign: []string{"copy.qcow2"},
			change: func(t *testing.T, domain, dir string) {
				virsh(t, "blockcopy", domain, "vda", filepath.Join(dir, "copy.qcow2"), "--transient-job")
				require.NotContains(t, virsh(t, "blockjob", domain, "vda"), "No current block job")
			},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool, dir := newPool(t)
			d := newDriver(t, hypervisor.Config{})
			req := newRequest(t, "machine", "{cores: 1, memory: 128, disk_size: 1, storage_pool: "+pool+", network_interfaces: [{type: user}], "+test.data+"}")
			domain := machine.NamesOf(req.Ref).Domain

			require.NoError(t, provision(t.Context(), d, req, new(testImage)))
			require.Contains(t, strings.Join(kept(t), " "), "autostart/"+domain)
			test.change(t, domain, dir)
			require.Contains(t, strings.Join(kept(t), " "), test.keeps)

			if test.renamed != "" {
				domain = test.renamed
			}

			found, err := d.Find(t.Context(), req.Ref)
			require.NoError(t, err)
			require.Equal(t, domain, found.ID)
			require.False(t, found.Incomplete)

			// It is switched as any other, and stays where it is.
			settled(t, func() error { return d.SetPower(t.Context(), req.Ref, driver.PowerOff) })
			require.Contains(t, virsh(t, "domstate", domain), "shut off")
			settled(t, func() error { return d.SetPower(t.Context(), req.Ref, driver.PowerOn) })
			require.Equal(t, "running", virsh(t, "domstate", domain))

			remove(t, d, req.Ref)
			require.Empty(t, domainNames(t))
			require.Empty(t, kept(t))

			left := files(t, dir)
			if len(test.foreign) > 0 {
				// Somebody else's disk keeps the image that it lies on.
				left = containing(left, "qcow2")
				require.Subset(t, left, test.foreign)
			}

			for _, name := range left {
				require.NotContains(t, name, machine.NamesOf(req.Ref).Domain)
			}

			if len(test.foreign) == 0 {
				require.Empty(t, left)
			}
		})
	}
}
