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
	for _, example := range documenttest.Examples(t, document, 7) {
		data, err := classdata.Decode[ClassData](example)
		require.NoError(t, err, example)
		require.NotEmpty(t, describe(t, data))
	}
}
