package conformance

import (
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// tenfold is how often in a row a call is repeated because nobody heard the answer.
const tenfold = 10

// repeatCases make the provider do each thing again.
var repeatCases = []testCase{
	{
		id: "RP-03", name: "idempotency/ten-replies-of-the-cloud-lost", uses: []means{cloudView, simulatedCloud},
		rule:     "From whichever call on the cloud's replies are lost ten times in a row, what was done is found done, with one machine as the result.",
		run:      (*env).lifeOfOneMachine,
		troubles: atEachCloudCall("lost", func(*env) ledger.Fault { return ledger.Fault{Kind: ledger.Lost, Times: tenfold} }),
	},
	{
		id: "RP-04", name: "idempotency/ten-replies-of-omni-lost", uses: []means{cloudView, simulatedOmni, ownProcess},
		rule:     "From whichever write on Omni's replies are lost ten times in a row, what was done is found done, with one machine as the result.",
		run:      (*env).lifeOfOneMachine,
		troubles: atEachWrite("lost", omni.Fault{LoseReply: true, Times: tenfold}),
	},
	{
		id: "RP-05", name: "idempotency/all-phases-twice", uses: []means{simulatedOmni, cloudView},
		rule: "A machine that is there is not touched when all the work on its request is done once more.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			machine := e.machine()

			for range 2 {
				e.stop()
				e.forgetProgress("r-1")
				e.start()
				e.awaitProvisioned("r-1")
				e.inPeace(calm, machine)
			}
		},
	},
}
