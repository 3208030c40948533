package apiserver_test

import (
	"testing"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/definitions"
)

// A server is made for every case of a conformance suite.
func BenchmarkNew(b *testing.B) {
	all, err := definitions.All()
	if err != nil {
		b.Fatal(err)
	}

	for b.Loop() {
		s, err := apiserver.New(apiserver.Options{Definitions: all})
		if err != nil {
			b.Fatal(err)
		}

		s.Close()
	}
}
