package conformance

import (
	"time"
)

// teardownCases end requests at times and in places where it is hard.
var teardownCases = []testCase{
	{
		id: "TD-01", name: "deprovision/never-joined", uses: []means{simulatedMachines, cloudView},
		rule: "A machine that never joined Omni goes with its request.",
		run: func(e *env) {
			defer e.holdMachines()()

			e.request("r-1")
			e.awaitProvisioned("r-1")
			e.remove("r-1")
			e.awaitGone("r-1")
		},
	},
	{
		id: "TD-02", name: "deprovision/set-while-provider-was-off", uses: []means{cloudView},
		rule: "A set that was removed while the provider was off takes all its machines with it when the provider is back, and no other machine is made.",
		run: func(e *env) {
			e.set("pool", 5)
			e.awaitSet("pool", 5)

			known := e.machines()

			e.stop()
			e.set("pool", 0)
			e.sleep(time.Hour)
			e.start()
			e.await("all machines of the set are gone", func() (string, bool) {
				e.noneBut(known)

				return describe(e.machines()), len(e.machines()) == 0 && len(e.requests()) == 0
			})
		},
	},
	{
		id: "TD-03", name: "deprovision/omni-unreachable", uses: []means{simulatedOmni, cloudView},
		rule: "A request that is torn down while the provider cannot reach Omni ends when it can again.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			machine := e.machine()

			e.partition(true)
			e.remove("r-1")
			e.inPeace(calm, machine)
			e.partition(false)
			e.awaitGone("r-1")
		},
	},
	{
		id: "TD-04", name: "deprovision/node-of-a-cluster", uses: []means{simulatedOmni, cloudView},
		rule: "A node that leaves its cluster is reset by Omni before its machine goes; the other nodes are left in peace.",
		run: func(e *env) {
			e.cluster("demo", 2)
			e.awaitSet(e.workers("demo"), 2)
			e.awaitNodes("demo", 2)

			before := e.machines()

			e.cluster("demo", 1)
			e.awaitSet(e.workers("demo"), 1)
			e.awaitNodes("demo", 1)
			e.inPeace(calm, e.stayed(before)...)
		},
	},
	{
		id: "TD-05", name: "deprovision/needs-nothing-but-the-id", uses: []means{simulatedOmni, cloudView},
		rule: "A request ends though its class data, the join configuration and the image factory are gone.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")
			e.stop()
			e.loseSettings("r-1")
			e.start()
			e.remove("r-1")
			e.awaitGone("r-1")
		},
	},
	{
		id: "TD-06", name: "deprovision/record-gone", uses: []means{simulatedOmni, cloudView},
		rule: "A request ends, and its machine with it, though all that the provider had stored in Omni of it is gone.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")
			e.stop()
			e.forgetRecords()
			e.remove("r-1")
			e.start()
			e.awaitGone("r-1")
		},
	},
	{
		id: "TD-07", name: "deprovision/machine-gone-before-it-joined", uses: []means{simulatedMachines, cloudView, cloudHand},
		rule: "What vanished from the cloud before it joined is no obstacle to the end of its request.",
		run: func(e *env) {
			defer e.holdMachines()()

			e.request("r-1")
			e.awaitProvisioned("r-1")
			e.deleteMachine()
			e.remove("r-1")
			e.awaitGone("r-1")
		},
	},
}
