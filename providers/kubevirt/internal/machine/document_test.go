package machine

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/classdata/documenttest"
)

const document = "../../docs/class-data.md"

func TestTheDocumentHasEveryField(t *testing.T) {
	documenttest.RequireFields[ClassData](t, document, *update)
}

func TestEveryExampleOfTheDocumentIsGoodClassData(t *testing.T) {
	kinds := served(t)

	for _, example := range documenttest.Examples(t, document, 20) {
		data, err := Decode(example, testOperator)
		require.NoError(t, err, example)

		for _, o := range objects(t, data) {
			fields := manifest(t, o)
			if d, ok := kinds[fmt.Sprint(fields["apiVersion"], "/", fields["kind"])]; ok {
				require.NoError(t, d.check(fields), example)
			}
		}
	}
}
