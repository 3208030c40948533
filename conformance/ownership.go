package conformance

import (
	"fmt"
	"slices"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

var ownershipCases = []testCase{
	{
		id: "OW-01", name: "ownership/foreign-objects-untouched", uses: []means{cloudView, simulatedCloud},
		rule: "Objects without the provider's mark are not adopted, changed or deleted, even if they have the very names that it uses.",
		run: func(e *env) {
			// The first round shows which names the provider uses.
			e.request("r-1")
			e.awaitJoined("r-1")

			used := slices.DeleteFunc(e.ledger.Objects(), func(o ledger.Object) bool { return o.Keep })

			e.remove("r-1")
			e.awaitGone("r-1")
			e.addForeign(used)

			machines, objects := e.subject.Cloud.Machines(), e.ledger.Objects()

			// A cloud with unique names leaves no room for the second machine. Then the provider has to say so; both is right.
			e.request("r-1")
			e.await("the request gets a machine of its own, or an error", func() (string, bool) {
				s := e.status("r-1")

				return fmt.Sprintf("stage %s, status %q", s.GetStage(), s.GetStatus()), s.GetError() != "" || len(e.machines()) == 1
			})
			e.untouched(machines, objects)
			e.remove("r-1")
			e.awaitGone("r-1")
			e.untouched(machines, objects)
		},
	},
	{
		id: "OW-02", name: "ownership/two-providers", uses: []means{cloudView},
		rule: "Two providers that share a cloud leave each other's machines alone.",
		run: func(e *env) {
			other := e.provider + "-2"

			p := e.launch(other, e.createProvider(other))
			defer p.kill()

			e.request("r-1")
			e.requestFrom(other, "r-2", e.data)
			e.awaitJoined("r-1")
			e.awaitJoined("r-2")
			e.remove("r-1")
			e.awaitGone("r-1")

			theirs := e.machine()

			e.restart()
			e.throughout(calm, "the neighbour's machine is still there", func() (string, bool) {
				now := e.machines()

				return describe(now), len(now) == 1 && now[0].ID == theirs.ID && now[0].On && now[0].Boots == theirs.Boots
			})
			e.remove("r-2")
			e.awaitGone("r-2")
		},
	},
}

// addForeign gives somebody else objects of these names.
func (e *env) addForeign(like []ledger.Object) {
	for _, o := range like {
		before := e.subject.Cloud.Machines()

		if _, err := e.subject.Cloud.AddForeign(o.Kind, o.Name); err != nil {
			panic(fmt.Errorf("add a foreign %s: %w", o.Kind, err))
		}

		for _, m := range e.subject.Cloud.Machines() {
			if !slices.ContainsFunc(before, func(b ledger.Machine) bool { return b.ID == m.ID }) {
				e.foreign[m.ID] = true
			}
		}
	}
}

// untouched compares somebody else's objects with what they were.
func (e *env) untouched(machines []ledger.Machine, objects []ledger.Object) {
	now := e.subject.Cloud.Machines()

	for _, want := range machines {
		i := slices.IndexFunc(now, func(m ledger.Machine) bool { return m.ID == want.ID })

		switch {
		case i < 0:
			e.fail(fmt.Sprintf("somebody else's machine %s stays as it is", want.ID), "it is gone")
		case fmt.Sprint(now[i]) != fmt.Sprint(want):
			e.fail(fmt.Sprintf("somebody else's machine stays as it is: %v", want), "%v", now[i])
		}
	}

	for _, want := range objects {
		if !slices.Contains(e.ledger.Objects(), want) {
			e.fail(fmt.Sprintf("somebody else's %s stays as it is", want), "it is gone")
		}
	}
}
