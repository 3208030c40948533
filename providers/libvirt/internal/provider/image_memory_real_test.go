//go:build real

package provider

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

type fixedSchematic struct{}

func (fixedSchematic) EnsureSchematic(context.Context, []byte) (string, error) {
	return strings.Repeat("0123456789abcdef", 4), nil
}

// packed serves one file for every request.
type packed []byte

func (p packed) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, ContentLength: int64(len(p)), Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(p))}, nil
}

// xz packs with the program of that name, as Talos' images are.
func xz(t *testing.T, content []byte) []byte {
	t.Helper()

	cmd := exec.CommandContext(t.Context(), "xz", "--stdout", "-1")
	cmd.Stdin = bytes.NewReader(content)

	out, err := cmd.Output()
	require.NoError(t, err)

	return out
}

// mappedMemory is what the Go runtime has of the system.
func mappedMemory() uint64 {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)

	return samples[0].Value.Uint64() - samples[1].Value.Uint64()
}

// A sparse image of four gibibytes comes from the factory's archive into the pool through little memory, and takes little space there.
func TestLargeSparseImageTakesLittleMemoryAndSpace(t *testing.T) {
	const (
		part  = 64 << 20
		parts = 64
		data  = 8 << 20
	)

	first := make([]byte, part)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(first[:data])

	// Archives one after the other are one archive.
	archive := append(xz(t, first), bytes.Repeat(xz(t, make([]byte, part)), parts-1)...)

	images, err := bootasset.New(bootasset.Config{Factory: "https://factory.example", Schematics: fixedSchematic{}, HTTP: &http.Client{Transport: packed(archive)}})
	require.NoError(t, err)

	wanted := infra.NewMachineRequest("large")
	wanted.TypedSpec().Value.TalosVersion = "v1.13.5"

	image, err := images.Resolve(t.Context(), wanted, driver.ImageSpec{Platform: "nocloud"})
	require.NoError(t, err)

	pool, dir := newPool(t)
	d := newDriver(t, hypervisor.Config{})
	req := newRequest(t, "large", classData(pool))
	req.ClassData = strings.Replace(req.ClassData, "disk_size: 1", "disk_size: 5", 1)

	// What the test has used before is not the upload's.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(240 << 20))
	debug.FreeOSMemory()

	var most atomic.Uint64

	stop := make(chan struct{})
	defer close(stop)

	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				most.Store(max(most.Load(), mappedMemory()))
			}
		}
	}()

	last := ""
	require.NoError(t, provisionTelling(t.Context(), d, req, image, func(text string) {
		if strings.HasPrefix(text, "boot image:") {
			last = text
		}
	}))
	require.Equal(t, "boot image: 100 %", last)

	t.Logf("at most %d MiB of memory for an image of %d MiB", most.Load()>>20, parts*part>>20)
	require.Less(t, most.Load(), uint64(256<<20))

	for _, name := range files(t, dir) {
		if !machine.IsImageData(req.ProviderID, name) {
			continue
		}

		var stat syscall.Stat_t
		require.NoError(t, syscall.Stat(filepath.Join(dir, name), &stat))
		require.EqualValues(t, parts*part, stat.Size)
		require.Less(t, stat.Blocks*512, int64(2*data), "holes stay holes")

		f, err := os.Open(filepath.Join(dir, name))
		require.NoError(t, err)

		got := make([]byte, data)
		_, err = io.ReadFull(f, got)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		require.True(t, bytes.Equal(first[:data], got))
	}

	remove(t, d, req.Ref)
	require.Empty(t, files(t, dir))
}
