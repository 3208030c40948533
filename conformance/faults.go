package conformance

import (
	"fmt"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
)

var faultCases = []testCase{
	{
		id: "FA-01", name: "faults/each-reply-lost", uses: []means{cloudView, simulatedCloud},
		rule: "A call to the cloud whose reply is lost is found done, not done twice.",
		run:  (*env).lifeOfOneMachine,
		troubles: func(made calls) (all []trouble) {
			for n := 1; n <= made.cloud; n++ {
				all = append(all, trouble{name: fmt.Sprintf("call-%d", n), arm: func(e *env) { e.ledger.LoseReply(n) }})
			}

			return all
		},
	},
	{
		id: "FA-02", name: "faults/cloud-out-of-reach", uses: []means{cloudView, simulatedCloud},
		rule: "A provider that cannot see its cloud takes no machine for gone, and goes on when it can see it again.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			machine, uuid := e.machine(), e.status("r-1").GetId()

			e.ledger.Outage(true)
			e.request("r-2")
			e.overLooks(func() { e.sleep(calm) })
			equal(e, "UUID in the status of the machine that is not seen", uuid, e.status("r-1").GetId())
			e.ledger.Outage(false)
			e.awaitJoined("r-2")
			e.remove("r-2")
			e.awaitGone("r-2")
			equal(e, "machine", machine.ID, e.machine().ID)
		},
	},
	{
		id: "FA-03", name: "faults/out-of-reach-while-removing", uses: []means{simulatedCloud},
		rule: "A request is held until the cloud confirms that its machine is gone.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")
			e.ledger.Outage(true)
			e.remove("r-1")
			e.throughout(calm, "the request is held", func() (string, bool) {
				r, err := safe.StateGetByID[*infra.MachineRequest](e.ctx, e.state, "r-1")
				if err != nil {
					return err.Error(), false
				}

				return "it has no finalizer of the provider", r.Metadata().Finalizers().Has(e.provider + ".ProvisionController")
			})
			e.ledger.Outage(false)
			e.awaitGone("r-1")
		},
	},
}
