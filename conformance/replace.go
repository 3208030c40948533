package conformance

import (
	"fmt"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// replaceCases take machines away in the cloud, behind the provider's back.
var replaceCases = []testCase{
	{
		id: "VA-01", name: "replace/before-it-joined", needs: []Feature{Replace}, uses: []means{simulatedMachines, cloudView, cloudHand},
		rule: "A machine that vanishes from the cloud before it joined is made again, once.",
		run: func(e *env) {
			release := e.holdMachines()

			e.set("pool", 1)
			e.awaitMachines(1)

			old := e.machines()

			e.delete(old...)
			release()
			e.awaitReplaced("pool", 1, old...)
			e.inPeace(calm, e.machine())
		},
	},
	{
		id: "VA-02", name: "replace/while-provisioning", uses: []means{simulatedOmni, cloudView, cloudHand},
		rule: "A machine that vanishes from the cloud while it is being made is made again, once.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitMachines(1)
			e.stop()

			old := e.machines()

			e.forgetProgress("r-1")
			e.delete(old...)
			e.start()
			e.awaitMachines(1)
			e.awaitJoined("r-1")
			e.inPeace(calm, e.machine())
		},
	},
	{
		id: "VA-03", name: "replace/without-a-set", needs: []Feature{Replace}, uses: []means{cloudView, cloudHand},
		rule: "A request without a set whose machine vanishes says so and stays without a machine until its annotation asks for a new one.",
		run: func(e *env) {
			e.request("r-1")

			uuid := e.awaitJoined("r-1")

			e.deleteMachine()
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
		id: "VA-04", name: "replace/provider-was-off", needs: []Feature{Replace}, uses: []means{cloudView, cloudHand},
		rule: "A machine of a set that vanished while the provider was off is replaced when the provider is back.",
		run: func(e *env) {
			e.set("pool", 2)
			e.awaitSet("pool", 2)

			old := e.machines()

			e.stop()
			e.delete(old[0])
			e.start()
			e.awaitReplaced("pool", 2, old[0])
		},
	},
	{
		id: "VA-05", name: "replace/omni-unreachable", needs: []Feature{Replace}, uses: []means{simulatedOmni, cloudView, cloudHand},
		rule: "A machine of a set that vanishes while the provider cannot reach Omni is replaced when it can again.",
		run: func(e *env) {
			e.set("pool", 2)
			e.awaitSet("pool", 2)

			old := e.machines()

			e.partition(true)
			e.delete(old[0])
			e.inPeace(calm, old[1])
			e.partition(false)
			e.awaitReplaced("pool", 2, old[0])
		},
	},
	{
		id: "VA-06", name: "replace/several-at-once", needs: []Feature{Replace}, uses: []means{cloudView, cloudHand},
		rule: "Machines of a set that vanish together are replaced, each once, and the others are left in peace.",
		run: func(e *env) {
			e.set("pool", 5)
			e.awaitSet("pool", 5)

			old := e.machines()

			e.delete(old[1:]...)
			e.awaitReplaced("pool", 5, old[1:]...)
			e.inPeace(calm, e.machines()...)
			equal(e, "machine that had not vanished", fmt.Sprint(old[0]), fmt.Sprint(e.find(old[0].ID)))
		},
	},
	{
		id: "VA-07", name: "replace/node-of-a-cluster", needs: []Feature{Replace}, uses: []means{simulatedOmni, cloudView, cloudHand},
		rule: "When a cluster's node vanishes the request's status names the command that makes Omni let it go, and the machine is replaced after that.",
		run:  func(e *env) { e.loseNode(e.deleteLink) },
	},
	{
		id: "VA-08", name: "replace/node-forced-out", needs: []Feature{Replace}, uses: []means{simulatedOmni, cloudView, cloudHand},
		rule: "A cluster's node that vanished is replaced once the operator forces it out.",
		run:  func(e *env) { e.loseNode(e.forceDestroy) },
	},
	{
		id: "VA-09", name: "replace/unreachable-at-start", uses: []means{cloudView, simulatedCloud},
		rule: "A provider that starts while it cannot see its cloud takes no machine for gone.",
		run: func(e *env) {
			e.set("pool", 3)
			e.awaitSet("pool", 3)

			machines := e.machines()

			e.stop()
			e.ledger.Outage(true)
			e.start()
			e.overLooks(func() { e.inPeace(calm, machines...) })
			e.ledger.Outage(false)
			e.inPeace(calm, machines...)
			e.awaitSet("pool", 3)
		},
	},
	{
		id: "VA-10", name: "replace/list-lags-behind", needs: []Feature{Replace, LaggingLists}, uses: []means{cloudView, simulatedCloud},
		rule: "A machine that one list of the cloud does not show is not taken for gone.",
		run: func(e *env) {
			e.set("pool", 3)
			e.awaitSet("pool", 3)

			machines := e.machines()

			for range 3 {
				e.hide(machines[0], 1)
				e.inPeace(calm, machines...)
			}
		},
	},
}

// loseNode lets the machine of a cluster's only node vanish. letGo is what the operator does about it.
func (e *env) loseNode(letGo func(uuid string)) {
	e.cluster("demo", 1)
	e.awaitSet(e.workers("demo"), 1)
	e.awaitNodes("demo", 1)

	old, request := e.machine(), e.requests()[0]
	uuid := e.status(request).GetId()

	e.deleteMachine()
	e.awaitError(request, "omnictl delete link "+uuid)
	e.noMachine(calm)
	letGo(uuid)
	e.awaitReplaced(e.workers("demo"), 1, old)
	e.awaitNodes("demo", 1)
}

// delete takes machines away, behind the provider's back.
func (e *env) delete(machines ...ledger.Machine) {
	for _, m := range machines {
		if err := e.cloud.DeleteMachine(m.ID); err != nil {
			panic(fmt.Errorf("delete a machine in the cloud: %w", err))
		}
	}
}

// awaitMachines waits until the cloud has that many machines, which may not be on yet.
func (e *env) awaitMachines(n int) {
	e.await(fmt.Sprintf("the cloud has %d machines", n), func() (string, bool) { return describe(e.machines()), len(e.machines()) == n })
}

// find returns the cloud's machine of that id.
func (e *env) find(id string) ledger.Machine {
	for _, m := range e.machines() {
		if m.ID == id {
			return m
		}
	}

	e.fail("the cloud has machine "+id, "%s", describe(e.machines()))

	return ledger.Machine{}
}
