// Package definitions holds the CustomResourceDefinitions that a cluster with KubeVirt has: those of KubeVirt, the
// Containerized Data Importer, volume snapshots and Multus networks, derived from the Go types of those projects. They are what
// a real API server is given, and what the simulated one validates by.
package definitions

import (
	"embed"
	"io/fs"
)

//go:generate env GOWORK=off go -C ../../../tools/kube/definitions run . ../../../sim/kubevirt/definitions

//go:embed *.yaml
var files embed.FS

// YAML returns the definitions, a document of kind CustomResourceDefinition each, by the names of their files.
func YAML() map[string][]byte {
	documents := map[string][]byte{}

	names, err := fs.Glob(files, "*.yaml")
	if err != nil {
		panic(err) // The pattern is good.
	}

	for _, name := range names {
		if documents[name], err = files.ReadFile(name); err != nil {
			panic(err) // It is in the program.
		}
	}

	return documents
}
