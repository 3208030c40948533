package machine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/classdata/documenttest"
)

const document = "../../docs/class-data.md"

func TestTheDocumentHasEveryField(t *testing.T) {
	documenttest.RequireFields[ClassData](t, document, *update)
}

func TestEveryExampleOfTheDocumentIsGoodClassData(t *testing.T) {
	for _, example := range documenttest.Examples(t, document, 11) {
		data, err := classdata.Decode[ClassData](example)
		require.NoError(t, err, example)

		for _, pool := range data.Pools() {
			require.NotContains(t, pool, "/")
		}

		h := kvmHost(t, data)
		h.Nodes[0].Pages[1<<20] = 64

		if len(data.PCIDevices) == 0 {
			require.NoError(t, data.CheckHost(h), example)
		}

		_, err = describe(data, h)
		require.NoError(t, err, example)
	}
}
