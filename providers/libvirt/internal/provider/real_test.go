//go:build real

package provider

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/libvirtdtest"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// TestMain runs the tests of this build tag beside a libvirtd of their own: see lab/private-libvirtd.sh.
func TestMain(m *testing.M) { libvirtdtest.Main(m, "../../lab/private-libvirtd.sh") }

// virsh is the witness: it sees what libvirt has without any of our code.
func virsh(t testing.TB, args ...string) string {
	t.Helper()

	return run(t, append([]string{"virsh", "--connect", "qemu:///system", "--quiet"}, args...)...)
}

// run runs a program, also while the test is cleaned up.
func run(t testing.TB, args ...string) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput()
	require.NoError(t, err, "%s: %s", strings.Join(args, " "), out)

	return strings.TrimSpace(string(out))
}

// words are the first words of virsh's lines.
func words(list string) []string {
	var out []string

	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 0 {
			out = append(out, fields[0])
		}
	}

	slices.Sort(out)

	return out
}

func domainNames(t testing.TB) []string { return words(virsh(t, "list", "--all", "--name")) }

func volumeNames(t testing.TB, pool string) []string { return words(virsh(t, "vol-list", pool)) }

// newPool makes a storage pool that goes with the test.
func newPool(t testing.TB) (name, dir string) {
	t.Helper()

	dir = t.TempDir()
	name = strings.ToLower(regexp.MustCompile(`[^a-zA-Z0-9]+`).ReplaceAllString(t.Name(), "-"))

	virsh(t, "pool-define-as", name, "dir", "--target", dir)
	virsh(t, "pool-start", name)
	t.Cleanup(func() {
		if t.Failed() {
			forgetDomains(t)
		}

		virsh(t, "pool-destroy", name)
		virsh(t, "pool-undefine", name)
	})

	return name, dir
}

// forgetDomains removes what a failed test left, so that those behind it tell of their own failures.
func forgetDomains(t testing.TB) {
	t.Helper()

	for _, domain := range domainNames(t) {
		if virsh(t, "domstate", domain) != "shut off" {
			virsh(t, "destroy", domain)
		}

		virsh(t, "undefine", domain, "--nvram", "--managed-save", "--snapshots-metadata", "--checkpoints-metadata")
	}
}

func newDriver(t testing.TB, config hypervisor.Config) *Driver {
	t.Helper()

	if config.ShutdownTimeout == 0 {
		config.ShutdownTimeout = 2 * time.Second
	}

	d := newOf(config)
	t.Cleanup(d.Close)

	return d
}

// newOf returns the driver of a single host, where boot images go as soon as they are looked for.
func newOf(config hypervisor.Config) *Driver {
	if config.ImageMaxAge == 0 {
		config.ImageMaxAge = -1
	}

	return New(Config{Hosts: []hypervisor.Config{config}})
}

// nameHash tells the objects of tests apart.
func nameHash(t testing.TB) string {
	t.Helper()

	sum := sha256.Sum256([]byte(t.Name()))

	return hex.EncodeToString(sum[:6])
}

// newRequest is for a provider of the test's own.
func newRequest(t testing.TB, id, data string) driver.Request {
	t.Helper()

	ref := driver.Ref{ProviderID: "test-" + nameHash(t), RequestID: id}

	return driver.Request{Ref: ref, Identity: driver.NewIdentity(ref), Set: "set", TalosVersion: "v1.13.5", ClassData: data}
}

// classData is a machine that starts fast; it has nothing to boot.
func classData(pool string, more ...string) string {
	return strings.Join(append([]string{
		"cores: 1", "memory: 128", "disk_size: 1", "storage_pool: " + pool, "firmware: bios", "network_interfaces: [{type: user}]",
	}, more...), "\n")
}

// testImage is a boot image in memory: some bytes, a hole, some bytes.
type testImage struct {
	opened atomic.Int32
	// open stands between the content and its reader, when not nil.
	open func(content io.Reader) io.Reader
}

const testImageSize = 2<<20 + 512

func testImageContent() []byte {
	content := make([]byte, testImageSize)
	copy(content, "first")
	copy(content[testImageSize-512:], "last")

	return content
}

func (i *testImage) Key() string { return "0123-v1.13.5-nocloud-amd64.raw" }
func (i *testImage) URL() string { return "https://factory.example/image" }

func (i *testImage) Open(context.Context) (io.ReadCloser, error) {
	i.opened.Add(1)

	var r io.Reader = bytes.NewReader(testImageContent())
	if i.open != nil {
		r = i.open(r)
	}

	return io.NopCloser(r), nil
}

// userData stands for the join configuration.
const userData = "apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: grpc://omni.example?jointoken=secret\n"

func newTask(req driver.Request, image driver.Image) driver.Task {
	return driver.Task{Request: req, Join: driver.Join{UserData: userData}, Image: image, Progress: func(string) {}}
}

// provision runs all phases once.
func provision(ctx context.Context, d *Driver, req driver.Request, image driver.Image) error {
	return provisionTelling(ctx, d, req, image, func(string) {})
}

func provisionTelling(ctx context.Context, d *Driver, req driver.Request, image driver.Image, progress func(string)) error {
	plan, err := d.Plan(ctx, req)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}

	for _, phase := range plan.Phases {
		task := newTask(req, image)
		task.Progress = progress

		if err := phase.Ensure(ctx, task); err != nil {
			return fmt.Errorf("%s: %w", phase.Name, err)
		}
	}

	return nil
}

// remove calls Remove until it is done, and then looks for boot images that nothing uses any more.
func remove(t testing.TB, d *Driver, ref driver.Ref) {
	t.Helper()

	require.Eventually(t, func() bool {
		done, err := d.Remove(t.Context(), ref)
		if driver.KindOf(err) != driver.KindPending {
			require.NoError(t, err)
		}

		return done
	}, time.Minute, 100*time.Millisecond)

	sweepImages(t, d, ref.ProviderID)
}

// sweepImages looks for boot images that nothing uses.
func sweepImages(t testing.TB, d *Driver, provider string) {
	t.Helper()

	for _, h := range d.hosts {
		require.NoError(t, h.SweepImages(t.Context(), provider))
	}
}

// settled repeats f while it is pending.
func settled(t *testing.T, f func() error) {
	t.Helper()

	require.Eventually(t, func() bool {
		err := f()
		if driver.KindOf(err) == driver.KindPending {
			return false
		}

		require.NoError(t, err)

		return true
	}, time.Minute, 200*time.Millisecond)
}

func TestMachineFromNothingToNothing(t *testing.T) {
	pool, dir := newPool(t)
	d := newDriver(t, hypervisor.Config{Version: "v0.1.0"})
	image := new(testImage)
	req := newRequest(t, "demo-x7k2p", strings.ReplaceAll(classData(pool, "additional_disks: [{size: 2}, {size: 3, type: sata}]"), "bios", "uefi"))
	n := machine.NamesOf(req.Ref)

	require.NoError(t, provision(t.Context(), d, req, image))
	require.NoError(t, provision(t.Context(), d, req, image), "a second run finds everything")

	require.Equal(t, []string{n.Domain}, domainNames(t))
	require.Equal(t, "running", virsh(t, "domstate", n.Domain))
	require.Equal(t, req.Identity.UUID, virsh(t, "domuuid", n.Domain))
	require.EqualValues(t, 1, image.opened.Load())

	metadata := virsh(t, "metadata", n.Domain, machine.MarkNamespace)
	for _, want := range []string{`provider="` + req.ProviderID + `"`, `request="demo-x7k2p"`, `version="v0.1.0"`, `set="set"`} {
		require.Contains(t, metadata, want)
	}

	require.NotContains(t, virsh(t, "dumpxml", n.Domain, "--security-info"), "secret")

	blocks := virsh(t, "domblklist", n.Domain)
	for _, volume := range []string{n.Root, n.Seed, n.Disk(0), n.Disk(1)} {
		require.Contains(t, blocks, volume)

		info, err := os.Stat(filepath.Join(dir, volume))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), volume)
	}

	backing := filepath.Base(between(virsh(t, "vol-dumpxml", n.Root, "--pool", pool), "<backingStore>", "</backingStore>", "<path>", "</path>"))
	content, err := os.ReadFile(filepath.Join(dir, backing))
	require.NoError(t, err)
	require.True(t, bytes.Equal(testImageContent(), content), "the image arrives as it is")

	seed, err := os.ReadFile(filepath.Join(dir, n.Seed))
	require.NoError(t, err)
	require.Contains(t, string(seed), "local-hostname: demo-x7k2p")
	require.Contains(t, string(seed), userData)

	found, err := d.Find(t.Context(), req.Ref)
	require.NoError(t, err)
	require.Equal(t, req.Identity.UUID, found.UUID)
	require.Equal(t, driver.PowerOn, found.Power)
	require.Equal(t, pool, found.Labels["pool"])
	require.NotEmpty(t, found.Labels["host"])
	require.WithinDuration(t, time.Now(), found.CreatedAt, time.Minute)

	listed, err := d.List(t.Context(), req.ProviderID)
	require.NoError(t, err)
	require.Equal(t, []driver.Machine{found}, listed)

	// The guest has nothing to boot and obeys nothing: it is forced.
	settled(t, func() error { return d.Reboot(t.Context(), req.Ref) })

	rebooted, err := d.Find(t.Context(), req.Ref)
	require.NoError(t, err)
	require.NotEqual(t, found.Boot, rebooted.Boot)

	settled(t, func() error { return d.SetPower(t.Context(), req.Ref, driver.PowerOff) })
	require.Equal(t, "shut off", virsh(t, "domstate", n.Domain))
	require.Contains(t, virsh(t, "dominfo", n.Domain), "Autostart:      disable")
	require.Error(t, d.Reboot(t.Context(), req.Ref))

	settled(t, func() error { return d.SetPower(t.Context(), req.Ref, driver.PowerOn) })
	require.Equal(t, "running", virsh(t, "domstate", n.Domain))
	require.Contains(t, virsh(t, "dominfo", n.Domain), "Autostart:      enable")

	remove(t, d, req.Ref)
	require.Empty(t, domainNames(t))
	require.Empty(t, volumeNames(t, pool))
	require.Empty(t, files(t, dir))
	require.Empty(t, files(t, "/var/lib/libvirt/qemu/nvram"))

	_, err = d.Find(t.Context(), req.Ref)
	require.True(t, driver.IsNotFound(err))
	remove(t, d, req.Ref)
}

func files(t testing.TB, dir string) []string {
	t.Helper()

	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}

	require.NoError(t, err)

	var out []string
	for _, entry := range entries {
		out = append(out, entry.Name())
	}

	return out
}

// between cuts text down to what is between pairs of marks, from outside to inside.
func between(text string, marks ...string) string {
	for i := 0; i+1 < len(marks); i += 2 {
		_, text, _ = strings.Cut(text, marks[i])
		text, _, _ = strings.Cut(text, marks[i+1])
	}

	return strings.TrimSpace(text)
}
