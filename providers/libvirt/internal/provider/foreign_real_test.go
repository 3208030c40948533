//go:build real

package provider

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// defineForeign defines a domain that is not ours.
func defineForeign(t *testing.T, name, uuid, metadata string) {
	t.Helper()

	file := filepath.Join(t.TempDir(), "domain.xml")
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil,
		`<domain type='qemu'><name>%s</name><uuid>%s</uuid><metadata>%s</metadata><memory unit='MiB'>64</memory><os><type arch='x86_64'>hvm</type></os></domain>`,
		name, uuid, metadata), 0o600))
	virsh(t, "define", file)
	t.Cleanup(func() { virsh(t, "undefine", uuid) })
}

func TestForeignDomainIsLeftAlone(t *testing.T) {
	pool, _ := newPool(t)
	req := newRequest(t, "taken", classData(pool))
	n := machine.NamesOf(req.Ref)

	const other = "0d7d5c0e-5bd0-4a49-9d8e-3c5b8f2c1a11"

	mine, err := machine.Mark{Provider: req.ProviderID, Request: "taken", Pool: pool}.Element()
	require.NoError(t, err)

	for _, test := range []struct{ name, domain, uuid, metadata string }{
		{"same name", n.Domain, other, ""},
		{"same UUID", "theirs", req.Identity.UUID, ""},
		{"same name and UUID", n.Domain, req.Identity.UUID, ""},
		{"copied mark", n.Domain, other, mine},
	} {
		t.Run(test.name, func(t *testing.T) {
			defineForeign(t, test.domain, test.uuid, test.metadata)

			before := virsh(t, "dumpxml", test.domain)
			d := newDriver(t, hypervisor.Config{})

			require.ErrorContains(t, provision(t.Context(), d, req, new(testImage)), fmt.Sprintf("domain %q is in the way", test.domain))

			_, err := d.Find(t.Context(), req.Ref)
			require.True(t, driver.IsNotFound(err), "%v", err)

			listed, err := d.List(t.Context(), req.ProviderID)
			require.NoError(t, err)
			require.Empty(t, listed)
			require.True(t, driver.IsNotFound(d.SetPower(t.Context(), req.Ref, driver.PowerOn)))

			remove(t, d, req.Ref)
			require.Equal(t, before, virsh(t, "dumpxml", test.domain))
			require.Empty(t, volumeNames(t, pool))
		})
	}
}

func TestForeignVolumeIsLeftAlone(t *testing.T) {
	image := new(testImage)
	req := newRequest(t, "taken", "")
	n := machine.NamesOf(req.Ref)

	for _, volume := range []string{n.Root, n.Seed, n.Disk(0), machine.ImageName(req.ProviderID, image.Key()) + ".qcow2"} {
		for _, behind := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s behind libvirt's back %v", volume, behind), func(t *testing.T) {
				pool, dir := newPool(t)
				req.ClassData = classData(pool, "additional_disks: [{size: 1}]")
				file := filepath.Join(dir, volume)
				content := []byte(strings.Repeat("theirs", 1000))

				require.NoError(t, os.WriteFile(file, content, 0o644))

				if !behind {
					virsh(t, "pool-refresh", pool)
				}

				d := newDriver(t, hypervisor.Config{})
				err := provision(t.Context(), d, req, image)
				require.ErrorContains(t, err, fmt.Sprintf("volume %q in storage pool %q is in the way", volume, pool))

				listed, err := d.List(t.Context(), req.ProviderID)
				require.NoError(t, err)
				require.Empty(t, listed)

				remove(t, d, req.Ref)

				after, err := os.ReadFile(file)
				require.NoError(t, err)
				require.Equal(t, content, after)
				require.Equal(t, []string{volume}, volumeNames(t, pool))
				require.Empty(t, domainNames(t))
			})
		}
	}
}

func TestCloneOfMachineIsLeftAlone(t *testing.T) {
	pool, dir := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "original", classData(pool))
	n := machine.NamesOf(req.Ref)

	require.NoError(t, provision(t.Context(), d, req, new(testImage)))

	// Somebody copies the machine, mark included, and lays a disk of his own on its image.
	defineForeign(t, "clone", "0d7d5c0e-5bd0-4a49-9d8e-3c5b8f2c1a12", virsh(t, "metadata", n.Domain, machine.MarkNamespace))

	backing := between(virsh(t, "vol-dumpxml", n.Root, "--pool", pool), "<backingStore>", "</backingStore>", "<path>", "</path>")
	virsh(t, "vol-create-as", pool, "clone.qcow2", "1G", "--format", "qcow2", "--backing-vol", backing, "--backing-vol-format", "raw")

	listed, err := d.List(t.Context(), req.ProviderID)
	require.NoError(t, err)
	require.Len(t, listed, 1)
	require.Equal(t, n.Domain, listed[0].ID)

	remove(t, d, req.Ref)
	require.Equal(t, []string{"clone"}, domainNames(t))
	require.Subset(t, volumeNames(t, pool), []string{"clone.qcow2", filepath.Base(backing)}, "the image is in use")
	require.FileExists(t, backing)

	virsh(t, "vol-delete", "clone.qcow2", pool)
	remove(t, d, req.Ref)
	require.Empty(t, files(t, dir))
}

func TestTwoProvidersShareAHypervisor(t *testing.T) {
	pool, dir := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	one := newRequest(t, "same", classData(pool))
	two := one
	two.ProviderID = "other"
	two.Identity = driver.NewIdentity(two.Ref)

	require.NoError(t, provision(t.Context(), d, one, new(testImage)))
	require.NoError(t, provision(t.Context(), d, two, new(testImage)))
	require.Len(t, domainNames(t), 2)

	for _, req := range []driver.Request{one, two} {
		listed, err := d.List(t.Context(), req.ProviderID)
		require.NoError(t, err)
		require.Len(t, listed, 1)
		require.Equal(t, req.Ref, listed[0].Ref)
	}

	remove(t, d, one.Ref)
	require.Equal(t, []string{machine.NamesOf(two.Ref).Domain}, domainNames(t))
	require.Len(t, volumeNames(t, pool), 4)
	remove(t, d, two.Ref)
	require.Empty(t, files(t, dir))
}

// What is left when somebody has taken parts of a machine away must go, whatever part it is.
func TestRemoveFindsWhatIsLeft(t *testing.T) {
	for _, test := range []struct {
		name string
		take func(t *testing.T, pool, dir string, n machine.Names)
	}{
		{"domain", func(t *testing.T, _, _ string, n machine.Names) {
			virsh(t, "destroy", n.Domain)
			virsh(t, "undefine", n.Domain)
		}},
		{"domain and system disk", func(t *testing.T, pool, _ string, n machine.Names) {
			virsh(t, "destroy", n.Domain)
			virsh(t, "undefine", n.Domain)
			virsh(t, "vol-delete", n.Root, pool)
		}},
		{"system disk", func(t *testing.T, pool, _ string, n machine.Names) { virsh(t, "vol-delete", n.Root, pool) }},
		{"files", func(t *testing.T, _, dir string, n machine.Names) {
			require.NoError(t, os.Remove(filepath.Join(dir, n.Root)))
			require.NoError(t, os.Remove(filepath.Join(dir, n.Seed)))
		}},
		{"running guest, saved to disk", func(t *testing.T, _, _ string, n machine.Names) {
			virsh(t, "managedsave", n.Domain)
		}},
		{"nothing", func(*testing.T, string, string, machine.Names) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool, dir := newPool(t)
			d := newDriver(t, hypervisor.Config{})
			req := newRequest(t, "half", classData(pool, "additional_disks: [{size: 1}]"))

			require.NoError(t, provision(t.Context(), d, req, new(testImage)))
			test.take(t, pool, dir, machine.NamesOf(req.Ref))

			found, err := d.Find(t.Context(), req.Ref)
			require.NoError(t, err)

			listed, err := d.List(t.Context(), req.ProviderID)
			require.NoError(t, err)
			require.Equal(t, []driver.Machine{found}, listed)

			remove(t, d, req.Ref)
			require.Empty(t, domainNames(t))
			require.Empty(t, files(t, dir))
		})
	}
}

func TestInactivePoolKeepsTheMachineFromBeingReportedGone(t *testing.T) {
	pool, dir := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "inactive", classData(pool))

	require.NoError(t, provision(t.Context(), d, req, new(testImage)))
	virsh(t, "destroy", machine.NamesOf(req.Ref).Domain)
	virsh(t, "pool-destroy", pool)

	done, err := d.Remove(context.WithoutCancel(t.Context()), req.Ref)
	require.False(t, done)
	require.ErrorContains(t, err, "virsh pool-start "+pool)

	virsh(t, "pool-start", pool)
	remove(t, d, req.Ref)
	require.Empty(t, files(t, dir))
}
