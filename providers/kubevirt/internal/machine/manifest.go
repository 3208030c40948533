package machine

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
)

// Manifest is an object of this package as JSON with the fields that are ours alone, for server-side apply: what Go's types encode
// besides those, an empty status above all, would become ours.
func Manifest(o runtime.Object) ([]byte, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", o, err)
	}

	delete(fields, "status")

	out, err := json.Marshal(compact(fields))
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", o, err)
	}

	return out, nil
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
