//go:build real

package apiserver_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/controlplane"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/definitions"
)

// TestRealServerAnswersAsWritten holds the golden file to a real server, and with -update writes it anew.
func TestRealServerAnswersAsWritten(t *testing.T) {
	plane, err := controlplane.Start(t.Context())
	require.NoError(t, err)

	defer func() { require.NoError(t, plane.Close()) }()

	all, err := definitions.All()
	require.NoError(t, err)
	require.NoError(t, plane.Define(t.Context(), all))

	runFidelity(t, plane.Admin())
}
