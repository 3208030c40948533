package kubevirt_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
)

// BenchmarkNew is what every case of a test pays.
func BenchmarkNew(b *testing.B) {
	for b.Loop() {
		c, err := kubevirt.New(kubevirt.Options{})
		require.NoError(b, err)
		c.Close()
	}
}
