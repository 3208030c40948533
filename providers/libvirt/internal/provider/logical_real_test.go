//go:build real

package provider

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// newVolumeGroup makes a storage pool of type logical, on loop devices: the kernel may have no device mapper. It is there for libvirtd and
// for the test alone.
func newVolumeGroup(t *testing.T) (pool, volumes string) {
	t.Helper()

	_, err := os.Stat("/dev/loop-control")
	require.NoError(t, err, "the kernel needs loop devices: modprobe loop")

	const tools, settings = "/usr/sbin", "/etc/libvirt/lvm-on-loops"

	dir := t.TempDir()
	group := "omni-test-" + nameHash(t)
	upper := filepath.Join(dir, "tools")
	script, err := filepath.Abs("../../lab/lvm-on-loops.sh")
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(upper, 0o755))

	// The folder of the temporary files may be on an overlay itself, which cannot be below another one.
	require.NoError(t, syscall.Mount("tmpfs", upper, "tmpfs", 0, ""))
	t.Cleanup(func() { _ = syscall.Unmount(upper, syscall.MNT_DETACH) })

	for _, folder := range []string{"upper", "work"} {
		require.NoError(t, os.Mkdir(filepath.Join(upper, folder), 0o755))
	}

	for _, tool := range []string{"lvs", "vgs", "pvs", "lvcreate", "lvremove", "lvchange", "vgchange", "vgscan"} {
		require.NoError(t, os.Symlink(script, filepath.Join(upper, "upper", tool)))
	}

	require.NoError(t, syscall.Mount("overlay", tools, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s/upper,workdir=%s/work", tools, upper, upper)))
	t.Cleanup(func() { _ = syscall.Unmount(tools, syscall.MNT_DETACH) })

	require.NoError(t, os.WriteFile(settings, fmt.Appendf(nil, "LVM_ON_LOOPS_GROUP=%s\nLVM_ON_LOOPS_DIR=%s\n", group, dir), 0o600))
	t.Cleanup(func() {
		_ = os.Remove(settings)
		_ = os.RemoveAll("/dev/" + group)
	})

	virsh(t, "pool-define-as", group, "logical", "--source-name", group, "--target", "/dev/"+group)
	virsh(t, "pool-start", group)
	t.Cleanup(func() {
		virsh(t, "pool-destroy", group)
		virsh(t, "pool-undefine", group)
	})

	return group, filepath.Join(dir, "volumes")
}

func TestMachinesInAVolumeGroup(t *testing.T) {
	pool, dir := newVolumeGroup(t)
	more, moreDir := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	data := classData(pool, fmt.Sprintf("additional_disks: [{size: 1}, {size: 1, storage_pool: %s}]", more))
	req := newRequest(t, "lvm", data)
	n := machine.NamesOf(req.Ref).Raw()
	image := new(testImage)

	theirs := filepath.Join(moreDir, n.Root)
	require.NoError(t, os.WriteFile(theirs, []byte("theirs"), 0o600))
	require.ErrorContains(t, provision(t.Context(), d, req, image), "is in the way")
	require.Empty(t, domainNames(t))
	require.NoError(t, os.Remove(theirs))

	require.NoError(t, provision(t.Context(), d, req, image))
	require.NoError(t, provision(t.Context(), d, req, image), "a second run finds everything")
	require.Equal(t, "running", virsh(t, "domstate", n.Domain))
	require.Subset(t, files(t, dir), []string{n.Root, n.Disk(0), n.Seed})
	require.Equal(t, []string{machine.NamesOf(req.Ref).Disk(1)}, files(t, moreDir))

	f, err := os.Open("/dev/" + pool + "/" + n.Root)
	require.NoError(t, err)

	content := make([]byte, testImageSize)
	_, err = io.ReadFull(f, content)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.Equal(t, testImageContent(), content)

	blocks := virsh(t, "domblklist", n.Domain)
	for _, volume := range []string{n.Root, n.Seed, n.Disk(0)} {
		require.Contains(t, blocks, "/dev/"+pool+"/"+volume)
	}

	// A second one costs no download.
	opened := image.opened.Load()
	second := newRequest(t, "lvm-2", classData(pool))
	require.NoError(t, provision(t.Context(), d, second, image))
	require.Equal(t, opened, image.opened.Load())

	remove(t, d, req.Ref)
	require.Len(t, slices.DeleteFunc(files(t, dir), func(name string) bool { return strings.HasPrefix(name, "omni-image-") }), 2)
	remove(t, d, second.Ref)
	require.Empty(t, files(t, dir))
	require.Empty(t, files(t, moreDir))
	require.Empty(t, domainNames(t))
}

func TestFullVolumeGroupIsSaidAndNothingHalfMadeStays(t *testing.T) {
	pool, dir := newVolumeGroup(t)
	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "full", strings.Replace(classData(pool), "disk_size: 1", "disk_size: 8", 1))

	err := provision(context.WithoutCancel(t.Context()), d, req, new(testImage))
	require.ErrorContains(t, err, "MiB free")
	require.Equal(t, driver.KindCapacity, driver.KindOf(err))

	remove(t, d, req.Ref)
	require.Empty(t, files(t, dir))
	require.Empty(t, domainNames(t))
}
