//go:build real

package provider

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
)

// listenOnTCP lets the private libvirtd serve TCP, so that what goes to it can be counted, and returns the URI.
func listenOnTCP(t testing.TB) string {
	t.Helper()

	const file = "/etc/libvirt/libvirtd.conf" // That of the private daemon.

	config, err := os.ReadFile(file)
	require.NoError(t, err)

	listening := slices.Concat(config, []byte("listen_tls = 0\nlisten_tcp = 1\nauth_tcp = \"none\"\nlisten_addr = \"127.0.0.1\"\ntcp_port = \"16509\"\n"))

	require.NoError(t, os.WriteFile(file, listening, 0o600))
	stopLibvirtd(t)
	startLibvirtd(t, "--listen")
	t.Cleanup(func() {
		require.NoError(t, os.WriteFile(file, config, 0o600))
		restartLibvirtd(t)
	})

	return "qemu+tcp://127.0.0.1/system"
}

// carried is how many bytes the loopback interface of the private network has carried.
func carried(t testing.TB) float64 {
	t.Helper()

	text, err := os.ReadFile("/sys/class/net/lo/statistics/rx_bytes")
	require.NoError(t, err)

	n, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	require.NoError(t, err)

	return n
}

// largeImage is a boot image as large as small systems are: 192 MiB, of which a third is holes, as in Talos' own.
type largeImage struct{ content []byte }

const (
	largeImageSize = 192 << 20
	largeImageData = 128 << 20
)

func newLargeImage() largeImage {
	content := make([]byte, largeImageSize)
	source := rand.NewChaCha8([32]byte{1})

	// Four parts with data, and holes between them.
	for part := range 4 {
		_, _ = source.Read(content[part*largeImageSize/4:][:largeImageData/4])
	}

	return largeImage{content}
}

func (largeImage) Key() string { return "large" }
func (largeImage) URL() string { return "https://factory.example/large" }

func (i largeImage) Open(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(i.content)), nil
}

// BenchmarkTenMachinesFromOneImage makes ten machines, and then their system disks once more as the official provider does, which
// uploads a qcow2 image for each and resizes it. It counts what goes over the wire to libvirtd.
func BenchmarkTenMachinesFromOneImage(b *testing.B) {
	const machines = 10

	uri := listenOnTCP(b)
	pool, dir := newPool(b)
	image := newLargeImage()

	raw, qcow2 := filepath.Join(b.TempDir(), "image.raw"), filepath.Join(b.TempDir(), "image.qcow2")
	require.NoError(b, os.WriteFile(raw, image.content, 0o600))
	run(b, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", raw, qcow2)

	for b.Loop() {
		d := newDriver(b, hypervisor.Config{Config: connection.Config{URI: uri}})

		// The second machine is the first one that finds the image: how long until it can be started, and until it is.
		var disks, second, secondRuns time.Duration

		before := carried(b)

		for i := range machines {
			req := newRequest(b, fmt.Sprintf("m-%d", i), classData(pool))
			started := time.Now()

			plan, err := d.Plan(b.Context(), req)
			require.NoError(b, err)

			for _, phase := range plan.Phases {
				began := time.Now()

				if i == 1 && phase.Name == "start-domain" {
					second = time.Since(started)
				}

				require.NoError(b, phase.Ensure(b.Context(), newTask(req, image)), phase.Name)

				if phase.Name == "ensure-image" || phase.Name == "create-volume" {
					disks += time.Since(began)
				}
			}

			if i == 1 {
				secondRuns = time.Since(started)
			}
		}

		ours := carried(b) - before

		for i := range machines {
			remove(b, d, newRequest(b, fmt.Sprintf("m-%d", i), "").Ref)
		}

		require.Empty(b, files(b, dir))

		before = carried(b)
		started := time.Now()
		uploadEach(b, uri, pool, qcow2, machines)
		theirDisks, theirs := time.Since(started), carried(b)-before

		b.ReportMetric(ours/largeImageData, "uploaded/data")
		b.ReportMetric(ours/largeImageSize, "uploaded/image")
		b.ReportMetric(theirs/largeImageData, "official-uploaded/data")
		b.ReportMetric(ours/theirs, "bytes-ratio")
		b.ReportMetric(disks.Seconds(), "s/disks")
		b.ReportMetric(theirDisks.Seconds(), "official-s/disks")
		b.ReportMetric(disks.Seconds()/theirDisks.Seconds(), "time-ratio")
		b.ReportMetric(second.Seconds(), "s/second-until-start")
		b.ReportMetric(secondRuns.Seconds(), "s/second-runs")
		b.ReportMetric(0, "ns/op")

		require.Less(b, ours, 1.1*largeImageData, "ten machines cost one upload")
		require.Greater(b, theirs, 10*ours/1.1)
	}
}

// uploadEach makes system disks as the official provider does: a volume, the whole image, the size.
func uploadEach(b *testing.B, uri, pool, image string, count int) {
	b.Helper()

	c, err := libvirt.NewConnect(uri)
	require.NoError(b, err)

	defer func() { _, _ = c.Close() }()

	p, err := c.LookupStoragePoolByName(pool)
	require.NoError(b, err)

	defer func() { _ = p.Free() }()

	for i := range count {
		name := fmt.Sprintf("theirs-%d.qcow2", i)
		desc, err := machine.NewVolume{Name: name, Format: "qcow2", Capacity: 1}.XML()
		require.NoError(b, err)

		v, err := p.StorageVolCreateXML(desc, 0)
		require.NoError(b, err)

		f, err := os.Open(image)
		require.NoError(b, err)

		s, err := c.NewStream(0)
		require.NoError(b, err)
		require.NoError(b, v.Upload(s, 0, 0, 0))

		chunk := make([]byte, 1<<20)

		for {
			n, readErr := f.Read(chunk)
			for sent := 0; sent < n; {
				more, err := s.Send(chunk[sent:n])
				require.NoError(b, err)

				sent += more
			}

			if readErr == io.EOF { //nolint:errorlint // It is not wrapped.
				break
			}

			require.NoError(b, readErr)
		}

		require.NoError(b, s.Finish())
		require.NoError(b, s.Free())
		require.NoError(b, f.Close())
		require.NoError(b, v.Resize(1<<30, 0))
		require.NoError(b, v.Delete(0))
		require.NoError(b, v.Free())
	}
}
