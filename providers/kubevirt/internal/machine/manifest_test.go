package machine

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

// manifest is an object with the fields that are ours alone: Go's types encode an empty status besides.
func manifest(t testing.TB, o runtime.Object) map[string]any {
	t.Helper()

	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	require.NoError(t, err)

	delete(fields, "status")

	// The way of all numbers over the wire.
	raw, err := yaml.Marshal(compact(fields))
	require.NoError(t, err)

	var out map[string]any
	require.NoError(t, yaml.UnmarshalStrict(raw, &out))

	return out
}

// compact takes out keys without a value: creation times that the server sets, and requirements that ask for nothing.
func compact(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if inner = compact(inner); inner == nil || key == "resources" && len(inner.(map[string]any)) == 0 {
				delete(v, key)
			} else {
				v[key] = inner
			}
		}
	case []any:
		for i := range v {
			v[i] = compact(v[i])
		}
	}

	return value
}
