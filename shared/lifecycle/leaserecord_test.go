package lifecycle_test

import (
	"bytes"
	"encoding/hex"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// The stored form is read by processes of other releases.
func TestStoredLeaseNeverChanges(t *testing.T) {
	const stored = "08011206686f73742d611a01412003281e308094e6cb0638808090d7cea4b2c718"

	data, err := lifecycle.EncodeLease("host-a", "A", 3, 30*time.Second, time.Unix(1_769_572_864, 0))
	require.NoError(t, err)
	assert.Equal(t, stored, hex.EncodeToString(data))
}

func FuzzStoredLease(f *testing.F) {
	data, err := lifecycle.EncodeLease("host-a", "A", 3, 30*time.Second, time.Unix(1_769_572_864, 0))
	require.NoError(f, err)
	f.Add(data)
	f.Add([]byte{0x28, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Add([]byte("not a lease"))

	f.Fuzz(func(t *testing.T, data []byte) {
		holder, rests := lifecycle.DecodeLease(bytes.Clone(data), 30*time.Second)

		// Whatever is there, no process waits for ever, and none takes what somebody may hold without a wait.
		assert.LessOrEqual(t, rests, 12*time.Minute, holder)
		assert.GreaterOrEqual(t, rests, time.Second, holder)
	})
}
