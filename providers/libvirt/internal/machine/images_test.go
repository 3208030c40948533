package machine

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestVolumesOfAnImageAreToldApart(t *testing.T) {
	const provider = "libvirt"

	image := ImageName(provider, "key")
	data := ImageData(image, [4]byte{1, 2, 0xfe, 0xff})
	ready := ImageReady(data)
	unused := ImageUnused(image, testTime)

	require.Equal(t, image+"-0102feff.raw", data)

	for _, volume := range []string{data, ready, unused, image + ".qcow2"} {
		got, ok := ImageOfVolume(provider, volume)
		require.True(t, ok)
		require.Equal(t, image, got)

		_, ok = ImageOfVolume("other", volume)
		require.False(t, ok)

		require.Equal(t, volume == data, IsImageData(provider, volume), volume)

		of, ok := DataOfReady(provider, volume)
		require.Equal(t, volume == ready, ok, volume)

		if ok {
			require.Equal(t, data, of)
		}

		since, ok := UnusedSince(provider, volume)
		require.Equal(t, volume == unused, ok, volume)

		if ok {
			require.True(t, testTime.Equal(since))
		}
	}
}

func FuzzImageVolumes(f *testing.F) {
	image := ImageName("p", "key")
	f.Add(ImageData(image, [4]byte{}))
	f.Add(ImageUnused(image, time.Unix(1<<40, 0)))
	f.Add(image + "-ffffffffffffffff.unused")

	f.Fuzz(func(t *testing.T, volume string) {
		of, ok := ImageOfVolume("p", volume)
		if !ok {
			require.False(t, IsImageData("p", volume))

			return
		}

		require.True(t, strings.HasPrefix(volume, of))

		if since, ok := UnusedSince("p", volume); ok {
			again, ok := UnusedSince("p", ImageUnused(of, since))
			require.True(t, ok)
			require.True(t, since.Equal(again))
		}
	})
}
