package conformance

import (
	"slices"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

var foreignCases = []testCase{
	{
		id: "OW-03", name: "ownership/foreign-beside-own", uses: []means{cloudView, simulatedCloud},
		rule: "Somebody else's objects with the names of the provider's own are left alone in all that is done with its own.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")
			machines, objects := e.namesakes()
			e.restart()
			e.sleep(calm)
			e.untouched(machines, objects)
			e.annotate("r-1", powerAnnotation, "off")
			e.sleep(time.Minute)
			e.annotate("r-1", powerAnnotation, "on")
			e.annotate("r-1", rebootAnnotation, "1")
			e.sleep(time.Minute)
			e.untouched(machines, objects)
			e.remove("r-1")
			e.awaitGone("r-1")
			e.sleep(calm)
			e.untouched(machines, objects)
		},
	},
	{
		id: "OW-04", name: "ownership/foreign-at-each-crash", uses: []means{cloudView, simulatedCloud},
		rule: "A provider that is restarted at any moment does not take somebody else's objects for what it made before.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")
			machines, objects := e.namesakes()
			e.remove("r-1")
			e.awaitGone("r-1")
			e.untouched(machines, objects)
		},
		troubles: every(2, func(made calls) []trouble {
			return crashes(made.cloud, func(e *env, n int, lost bool) { e.ledger.CrashAfter(n, lost, e.crash) })
		}),
	},
}

// namesakes gives somebody else an object of the name of each of the provider's own, as far as the cloud lets it, and returns
// what is not the provider's.
func (e *env) namesakes() (machines []ledger.Machine, objects []ledger.Object) {
	own := e.subject.Cloud.Machines()

	for _, o := range e.ledger.Objects() {
		if o.Keep {
			continue
		}

		id, err := e.subject.Cloud.AddForeign(o.Kind, o.Name)
		if err != nil {
			e.note("no foreign %s: %v", o, err)

			continue
		}

		for _, made := range e.ledger.Objects() {
			if made.Kind == o.Kind && made.ID == id {
				objects = append(objects, made)
			}
		}
	}

	for _, m := range e.subject.Cloud.Machines() {
		if !slices.ContainsFunc(own, func(o ledger.Machine) bool { return o.ID == m.ID }) {
			e.foreign[m.ID] = true
			machines = append(machines, m)
		}
	}

	return machines, objects
}
