package oxide_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/oxide"
	"github.com/omni-infra/omni-infra-providers/sim/oxide/openapi"
)

// TestOperationsAreThoseOfTheDocument says by its skip that nothing here was held against the document when it was not there: the
// traffic of all other tests of this package is, if it is.
func TestOperationsAreThoseOfTheDocument(t *testing.T) {
	d, err := openapi.FromEnv()
	require.NoError(t, err)

	if d == nil {
		t.Skipf("not run: %s does not name Oxide's OpenAPI document, so that no traffic of this package is held against it", openapi.Env)
	}

	require.Equal(t, "2026060800.0.0", d.Version(), "the version that oxide.go asks for")

	known := d.Operations()
	for call, id := range oxide.Operations() {
		require.Equal(t, known[call], id, call)
	}
}
