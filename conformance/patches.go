package conformance

import (
	"fmt"
	"maps"
	"slices"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
)

var patchCases = []testCase{
	{
		id: "CP-01", name: "config-patches", needs: []Feature{ConfigPatches},
		rule: "Each request has config patches of its own, with contents of its own, which reach its machine and go with it.",
		run: func(e *env) {
			const size = 6

			e.set("pool", size)
			e.awaitSet("pool", size)

			before := e.patches()
			equal(e, "requests with patches", size, len(before))

			contents := map[string]bool{}

			for _, patches := range before {
				for _, content := range patches {
					contents[content] = true
				}
			}

			equal(e, "different contents", e.appliedPatches(), len(contents))
			e.set("pool", 1)
			e.await("one request is left", func() (string, bool) { return fmt.Sprint(e.requests()), len(e.requests()) == 1 })
			equal(e, "patches of the request that stays", fmt.Sprint(before[e.requests()[0]]), fmt.Sprint(e.patches()[e.requests()[0]]))
			equal(e, "requests with patches", 1, len(e.patches()))
		},
	},
}

// patches returns the contents of the config patches that the provider asks for, by request and name.
func (e *env) patches() map[string]map[string]string {
	all := map[string]map[string]string{}

	for _, r := range list[*infra.ConfigPatchRequest](e) {
		data, err := r.TypedSpec().Value.GetUncompressedData()
		if err != nil {
			panic(fmt.Errorf("read config patch request %q: %w", r.Metadata().ID(), err))
		}

		id, _ := r.Metadata().Labels().Get(omni.LabelMachineRequest)

		if all[id] == nil {
			all[id] = map[string]string{}
		}

		all[id][r.Metadata().ID()] = string(data.Data())
		data.Free()
	}

	return all
}

// appliedPatches returns the number of config patches that Omni has for machines, which has to be that of those asked for.
func (e *env) appliedPatches() int {
	asked := 0

	for _, patches := range e.patches() {
		asked += len(patches)
	}

	e.await(fmt.Sprintf("Omni has %d config patches for machines", asked), func() (string, bool) {
		found := map[string]bool{}

		for _, patch := range list[*omni.ConfigPatch](e) {
			if _, ok := patch.Metadata().Labels().Get(omni.LabelMachine); ok {
				found[patch.Metadata().ID()] = true
			}
		}

		return fmt.Sprint(slices.Sorted(maps.Keys(found))), len(found) == asked
	})

	return asked
}
