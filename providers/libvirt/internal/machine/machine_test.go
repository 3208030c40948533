package machine

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()

	file := filepath.Join("testdata", name)

	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}

	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}

var testTime = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func TestNamesAreStableAndBelongToOneRequest(t *testing.T) {
	ref := driver.Ref{ProviderID: "libvirt", RequestID: "workers-x7k2p"}
	n := NamesOf(ref)

	// Machines that exist have these names.
	require.Equal(t, "workers-x7k2p-522ea0c350ad", n.Domain)
	require.Equal(t, "workers-x7k2p-522ea0c350ad.qcow2", n.Root)
	require.Equal(t, "workers-x7k2p-522ea0c350ad-seed.iso", n.Seed)
	require.Equal(t, "workers-x7k2p-522ea0c350ad-disk-2.qcow2", n.Disk(1))
	require.Equal(t, "workers-x7k2p-522ea0c350ad.raw", n.Raw().Root)
	require.Equal(t, "workers-x7k2p-522ea0c350ad-disk-2.raw", n.Raw().Disk(1))
	require.Equal(t, n.Seed, n.Raw().Seed)
	require.NotEqual(t, n, NamesOf(driver.Ref{ProviderID: "other", RequestID: ref.RequestID}))

	for _, volume := range []string{n.Root, n.Seed, n.Disk(0), n.Disk(15), n.Raw().Root, n.Raw().Disk(15)} {
		got, ok := RefOfVolume("libvirt", volume)
		require.True(t, ok, volume)
		require.Equal(t, ref, got)

		_, ok = RefOfVolume("other", volume)
		require.False(t, ok, volume)
	}

	// A request whose id looks like another's volume.
	tricky := driver.Ref{ProviderID: "libvirt", RequestID: n.Domain + "-disk-1"}
	got, ok := RefOfVolume("libvirt", NamesOf(tricky).Root)
	require.True(t, ok)
	require.Equal(t, tricky, got)

	for _, foreign := range []string{"", "disk.qcow2", n.Domain, n.Root + ".bak", "other-522ea0c350ad.qcow2", n.Domain + "-disk-0.qcow2", n.Domain + "-disk-0.raw", n.Domain + ".rawr"} {
		_, ok := RefOfVolume("libvirt", foreign)
		require.False(t, ok, foreign)
	}
}

func FuzzVolumeNames(f *testing.F) {
	f.Add("libvirt", "request", "request-0123456789ab.qcow2")
	f.Fuzz(func(t *testing.T, provider, request, volume string) {
		if ref, ok := RefOfVolume(provider, volume); ok {
			require.Contains(t, VolumesOf(ref, []string{volume}), volume)
			require.Contains(t, volume, NamesOf(ref).Domain)
		}

		if CheckRequestID(request) == nil && request != "" && !strings.ContainsAny(request, "\n") {
			ref := driver.Ref{ProviderID: provider, RequestID: request}
			got, ok := RefOfVolume(provider, NamesOf(ref).Seed)
			require.True(t, ok)
			require.Equal(t, ref, got)
			require.LessOrEqual(t, len(NamesOf(ref).Disk(15)), 255)
		}
	})
}

func TestImageDataIsThatOfTheProviderOnly(t *testing.T) {
	name := ImageName("libvirt", "key")

	require.True(t, IsImageData("libvirt", name+"-0123abcd.raw"))
	require.False(t, IsImageData("other", name+"-0123abcd.raw"))

	for _, foreign := range []string{name + ".qcow2", name + ".raw", name + "-0123abcd.qcow2", ".", "/", "", "talos.raw"} {
		require.False(t, IsImageData("libvirt", foreign), foreign)
	}
}

func TestRequestIDsThatCannotBeNamesAreRefused(t *testing.T) {
	for _, id := range []string{"a/b", "a b", "../x", "-x", "a\nb", strings.Repeat("x", 201)} {
		require.Error(t, CheckRequestID(id), "%q", id)
	}

	require.NoError(t, CheckRequestID("workers-x7k2p"))
}

func TestMarkIsReadBackAsLibvirtGivesIt(t *testing.T) {
	want := Mark{
		Provider: "libvirt", Request: `a"<&>`, Set: "set", Pool: "default", Version: "v0.1.0",
		Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Boot: "0123", Autostart: "no",
		DiskPools: []string{"a b", "<c>"}, Labels: []Label{{Name: "role", Value: "db"}, {Name: "empty"}},
	}
	element, err := want.Element()
	require.NoError(t, err)
	require.Contains(t, element, fmt.Sprintf(`xmlns="%s"`, MarkNamespace))

	for _, text := range []string{element, strings.Replace(element, fmt.Sprintf(` xmlns="%s"`, MarkNamespace), "", 1), "\n  " + element + "\n"} {
		got, err := ParseMark(text)
		require.NoError(t, err)

		got.XMLName = want.XMLName
		require.Equal(t, want, got)
	}

	require.False(t, want.StartsWithHost())
	require.Equal(t, []string{"default", "a b", "<c>"}, want.Pools())
	require.True(t, want.Owns(driver.NewIdentity(want.Ref()).UUID))
	require.False(t, want.Owns("0d7d5c0e-5bd0-4a49-9d8e-3c5b8f2c1a11"))
}

func FuzzMark(f *testing.F) {
	f.Add(`<machine provider="p" request="r" created="2026-01-02T03:04:05Z"/>`)
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseMark(text)
		if err != nil {
			return
		}

		if element, err := m.Element(); err == nil {
			again, err := ParseMark(element)
			require.NoError(t, err)
			require.Equal(t, m.Ref(), again.Ref())
		}
	})
}

func TestMarkOfASeedLiesBesideItsFileSystem(t *testing.T) {
	iso := slices.Concat(make([]byte, 32<<10), []byte(strings.Repeat("x", 4096)))
	m := Mark{Provider: "p", Request: "r", Pool: "a", DiskPools: []string{"b", "c"}, Labels: []Label{{Name: "n", Value: "v"}}}

	out, err := MarkSeed(iso, m)
	require.NoError(t, err)
	require.Len(t, out, len(iso))
	require.Equal(t, iso[MarkSize:], out[MarkSize:])
	require.NotContains(t, string(iso), "request", "the file system that was handed over stays as it is")

	got, err := ParseSeedMark(out[:MarkSize])
	require.NoError(t, err)
	require.Equal(t, m.Ref(), got.Ref())
	require.Equal(t, m.Pools(), got.Pools())

	_, err = MarkSeed(out, m)
	require.ErrorContains(t, err, "no room for a mark")

	m.Pool = strings.Repeat("p", MarkSize)
	_, err = MarkSeed(iso, m)
	require.ErrorContains(t, err, "of at most 8192")
}

func TestSecretsGoFirstAndTheEvidenceLast(t *testing.T) {
	n := NamesOf(driver.Ref{ProviderID: "p", RequestID: "r"})

	require.Equal(t, []string{n.Seed, n.Disk(0), n.Disk(1), n.Root},
		InOrderOfRemoval(n, []string{n.Disk(0), n.Disk(1), n.Root, n.Seed}, ""))
	require.Equal(t, []string{n.Disk(0), n.Root, n.Seed}, InOrderOfRemoval(n, []string{n.Seed, n.Root, n.Disk(0)}, n.Seed))
	require.Equal(t, []string{n.Raw().Disk(0), n.Raw().Root}, InOrderOfRemoval(n, []string{n.Raw().Root, n.Raw().Disk(0)}, ""))
}
