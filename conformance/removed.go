package conformance

import "time"

// removedCases take machines out of Omni, behind the provider's back.
var removedCases = []testCase{
	{
		id: "RM-01", name: "removed/of-a-set", uses: []means{cloudView},
		rule: "A machine of a set that is removed from Omni goes from the cloud and is replaced.",
		run: func(e *env) {
			e.set("pool", 2)
			e.awaitSet("pool", 2)

			old := e.machines()

			e.deleteLink(lower(old[0].UUID))
			e.awaitReplaced("pool", 2, old[0])
			e.inPeace(calm, e.machines()...)
			e.find(old[1].ID)
		},
	},
	{
		id: "RM-02", name: "removed/without-a-set", needs: []Feature{Replace}, uses: []means{cloudView},
		rule: "A machine without a set that is removed from Omni goes from the cloud, and its request says why, until its annotation asks for a new one.",
		run: func(e *env) {
			e.request("r-1")

			uuid := e.awaitJoined("r-1")

			e.deleteLink(uuid)
			e.awaitNoMachine()
			e.awaitError("r-1", uuid, replaceAnnotation)
			e.noMachine(calm)
			e.restart()
			e.noMachine(calm)
			e.annotate("r-1", replaceAnnotation, "once more")
			e.awaitProvisioned("r-1")
			e.awaitJoined("r-1")
			e.inPeace(calm, e.machine())
		},
	},
	{
		id: "RM-03", name: "removed/provider-was-off", uses: []means{cloudView},
		rule: "A machine of a set that was removed from Omni while the provider was off is replaced when it is back.",
		run: func(e *env) {
			e.set("pool", 1)
			e.awaitSet("pool", 1)

			old := e.machine()

			e.stop()
			e.deleteLink(lower(old.UUID))
			e.sleep(time.Hour)
			e.start()
			e.awaitReplaced("pool", 1, old)
			e.inPeace(calm, e.machine())
		},
	},
	{
		id: "RM-04", name: "removed/omni-unreachable", uses: []means{simulatedOmni, cloudView},
		rule: "A machine of a set that was removed from Omni while the provider could not reach it is replaced when it can again.",
		run: func(e *env) {
			e.set("pool", 1)
			e.awaitSet("pool", 1)

			old := e.machine()

			e.partition(true)
			e.deleteLink(lower(old.UUID))
			e.sleep(calm)
			e.partition(false)
			e.awaitReplaced("pool", 1, old)
			e.inPeace(calm, e.machine())
		},
	},
	{
		id: "RM-05", name: "removed/node-of-a-cluster", uses: []means{simulatedOmni, cloudView},
		rule: "A cluster's node that is removed from Omni goes from the cloud and is replaced.",
		run: func(e *env) {
			e.cluster("demo", 1)
			e.awaitNodes("demo", 1)

			old := e.machine()

			e.deleteLink(lower(old.UUID))
			e.awaitReplaced(e.workers("demo"), 1, old)
			e.awaitNodes("demo", 1)
			e.inPeace(calm, e.machine())
		},
	},
}
