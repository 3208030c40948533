package machine

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares with a file below testdata.
func golden(t testing.TB, name, got string) {
	t.Helper()

	file := filepath.Join("testdata", name)

	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}

	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

// testOperator allows two namespaces and decides nothing else.
var testOperator = Operator{Namespaces: []string{"machines", "lab"}}

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// small is the least that a class has to say.
const small = "cores: 2\nmemory: 4096\ndisk_size: 20\n"

// decode reads the class data of a small machine with something more: lines of YAML, or the inside of one mapping.
func decode(t testing.TB, extra string) ClassData {
	t.Helper()

	text := small + extra
	if inside, ok := strings.CutPrefix(extra, "{"); ok {
		text = "{cores: 2, memory: 4096, disk_size: 20, " + inside
	}

	data, err := Decode(text, testOperator)
	require.NoError(t, err)

	return data
}

func testRequest() driver.Request {
	ref := driver.Ref{ProviderID: "kubevirt", RequestID: "workers-x7k2p"}

	return driver.Request{Ref: ref, Identity: driver.NewIdentity(ref), Set: "workers", TalosVersion: "v1.13.5"}
}

// image is a boot image as the factory has it.
type image struct {
	driver.Image

	key, url string
}

func (i image) Key() string { return i.key }
func (i image) URL() string { return i.url }

// testMachine is the machine of the test's request in a class.
func testMachine(data ClassData) Machine {
	req := testRequest()
	m := Machine{Request: req, Data: data, Version: "v0.1.0"}

	if data.BootImage() != nil {
		m.Image = data.ImageVolume(req, image{
			key: "talos-v1.13.5-nocloud-amd64-376567988ad3-0a1b2c3d.qcow2",
			url: "https://factory.talos.dev/image/376567988ad3/v1.13.5/nocloud-" + string(data.Architecture) + ".qcow2",
		}, "v0.1.0")
		m.Image.VirtualSize, m.Image.LastUsed = 4<<30+1, testTime
	}

	return m
}

func TestNamesAreStableAndBelongToOneRequest(t *testing.T) {
	ref := driver.Ref{ProviderID: "kubevirt", RequestID: "workers-x7k2p"}
	n := NamesOf(ref)

	// Machines that exist have these names.
	require.Equal(t, "workers-x7k2p-b55d1342a97d", n.VM)
	require.Equal(t, n.VM+"-root", n.Root)
	require.Equal(t, n.VM+"-user-data", n.Secret)
	require.Equal(t, n.VM+"-disk-16", n.Disk(15))
	require.Equal(t, map[string]string{
		"virtual-machine": n.VM, "root-volume": n.Root, "secret": n.Secret, "disk-1": n.Disk(0), "disk-2": n.Disk(1),
	}, n.All(2))

	require.NotEqual(t, n, NamesOf(driver.Ref{ProviderID: "other", RequestID: ref.RequestID}))
}

func testRequestOf(ref driver.Ref) driver.Request {
	req := testRequest()
	req.Ref, req.Identity = ref, driver.NewIdentity(ref)

	return req
}

func TestAnImagesSizeIsReadFromItsHeader(t *testing.T) {
	header := append([]byte("QFI\xfb\x00\x00\x00\x03"), make([]byte, 24)...)
	header[27] = 0x01 // 1 << 32

	size, err := VirtualSize(header)
	require.NoError(t, err)
	require.Equal(t, int64(1)<<32, size)

	for name, bad := range map[string][]byte{
		"short": header[:31], "no qcow2": make([]byte, 32), "no size": append([]byte("QFI\xfb"), make([]byte, 28)...),
		"too large": append(append([]byte("QFI\xfb"), make([]byte, 20)...), bytes.Repeat([]byte{0xff}, 8)...),
	} {
		_, err := VirtualSize(bad)
		require.Error(t, err, name)
	}
}

func TestAnImageHasRoomForItsContents(t *testing.T) {
	m := testMachine(decode(t, "storage_class_name: fast\nimage: {source: snapshot, snapshot_class: csi}"))
	dv := m.Image.DataVolume()

	request := dv.Spec.Storage.Resources.Requests.Storage().Value()
	require.GreaterOrEqual(t, request, m.Image.VirtualSize)
	require.Zero(t, request%(1<<20), "CDI refuses parts of a mebibyte")
	require.Equal(t, "true", dv.Annotations["cdi.kubevirt.io/storage.bind.immediate.requested"])
	require.Equal(t, "false", dv.Annotations["cdi.kubevirt.io/storage.deleteAfterCompletion"])
	require.Equal(t, "fast", *dv.Spec.Storage.StorageClassName)
	require.Equal(t, dv.Name, *m.Image.Snapshot().Spec.Source.PersistentVolumeClaimName)

	require.NoError(t, m.Data.CheckSize(20<<30))
	require.ErrorContains(t, m.Data.CheckSize(20<<30+1), "disk_size: got 20 GiB, but the image has 20481 MiB: want 21 or more")
}
