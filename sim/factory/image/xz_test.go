package image

import (
	"bytes"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/ulikunitz/xz"
)

func TestStoredXZIsReadByADecoder(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})

	for _, size := range []int{0, 1, 2, 3, 4, xzChunk - 1, xzChunk, xzChunk + 1, 5*xzChunk + 77} {
		want := make([]byte, size)
		random.Read(want) //nolint:errcheck // Never fails.

		var packed bytes.Buffer

		writer := newStoredXZ(&packed)
		_, err := io.Copy(writer, bytes.NewReader(want))
		require.NoError(t, err)
		require.NoError(t, writer.Close())
		require.Zero(t, packed.Len()%4)

		reader, err := xz.ReaderConfig{SingleStream: true}.NewReader(&packed)
		require.NoError(t, err, size)

		got, err := io.ReadAll(reader)
		require.NoError(t, err, size)
		require.True(t, bytes.Equal(want, got), size)
	}
}
