package bootasset_test

import (
	"bytes"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func TestEveryPackingUnpacksToTheSameDisk(t *testing.T) {
	for _, extension := range []string{"raw.xz", "raw.zst", "raw.gz"} {
		t.Run(extension, func(t *testing.T) {
			packed, err := os.ReadFile("testdata/disk." + extension)
			require.NoError(t, err)

			open := func(data []byte) ([]byte, error) {
				f := &factory{image: data}

				image, err := f.resolver(t, func(c *bootasset.Config) { c.RawExtension = extension }).
					Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
				require.NoError(t, err)

				return read(t.Context(), image)
			}

			got, err := open(packed)
			require.NoError(t, err)
			assert.Equal(t, disk(), got)

			for _, cut := range []int{0, 1, 11, 20, 136, 138, len(packed) / 2, len(packed) - 1} {
				_, err = open(packed[:cut])
				require.ErrorContains(t, err, "boot image "+base+"/image/", "cut to %d bytes", cut)
			}

			damaged := bytes.Clone(packed)
			damaged[len(damaged)/2] ^= 0xff

			_, err = open(damaged)
			require.Error(t, err)

			_, err = open([]byte("<html>please log in to the network</html>"))
			require.ErrorContains(t, err, "boot image "+base+"/image/")
			assert.Equal(t, driver.KindTransient, driver.KindOf(err))
		})
	}
}

func TestXZThatWouldFillTheMemoryIsRefused(t *testing.T) {
	packed, err := os.ReadFile("testdata/disk.raw.xz")
	require.NoError(t, err)

	// The block header has its size, flags, two sizes of one and two bytes, and the filter's id, length and dictionary.
	at := bytes.Index(packed, []byte{0x21, 0x01}) + 2
	packed[at] = 40

	f := &factory{image: packed}
	image, err := f.resolver(t, func(c *bootasset.Config) { c.RawExtension = "raw.xz" }).
		Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
	require.NoError(t, err)

	_, err = image.Open(t.Context())
	require.ErrorContains(t, err, "needs a dictionary of 4095 MiB to unpack: at most 64 MiB are given")
	assert.Equal(t, driver.KindTerminal, driver.KindOf(err))
}

// FuzzXZ feeds hostile files to the decoder of boot images.
func FuzzXZ(f *testing.F) {
	packed, err := os.ReadFile("testdata/disk.raw.xz")
	require.NoError(f, err)
	f.Add(packed)
	f.Add(packed[:30])

	f.Fuzz(func(t *testing.T, data []byte) {
		image, err := (&factory{image: data}).resolver(t, func(c *bootasset.Config) {
			c.RawExtension = "raw.xz"
			c.Schematics = fixed(plainSchematic)
		}).Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
		require.NoError(t, err)

		r, err := image.Open(t.Context())
		if err != nil {
			return
		}
		defer r.Close()

		_, err = io.Copy(io.Discard, io.LimitReader(r, 1<<20))
		if err == nil {
			require.True(t, bytes.HasPrefix(data, []byte("\xfd7zXZ\x00")))
		}
	})
}
