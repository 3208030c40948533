// Package definitions has the CustomResourceDefinitions of a cluster with KubeVirt: those of KubeVirt, the Containerized Data
// Importer, volume snapshots and Multus networks, derived from the Go types that those projects publish. A real API server is given
// them, and the simulated one validates by them.
package definitions

import (
	"embed"
	"fmt"
	"io/fs"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

//go:generate env GOWORK=off go -C ../../../tools/kube/definitions run . ../../../sim/kubevirt/definitions

//go:embed *.yaml
var files embed.FS

// All returns the definitions, in the order of their files' names. They are the caller's own.
func All() ([]*apiextensions.CustomResourceDefinition, error) {
	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		return nil, err
	}

	all := make([]*apiextensions.CustomResourceDefinition, 0, len(names))

	for _, name := range names {
		data, err := files.ReadFile(name)
		if err != nil {
			return nil, err
		}

		definition := &apiextensions.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(data, definition); err != nil {
			return nil, fmt.Errorf("decode definition %q: %w", name, err)
		}

		all = append(all, definition)
	}

	return all, nil
}
