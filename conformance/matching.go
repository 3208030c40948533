package conformance

import (
	"fmt"

	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// matchingCases are about which machine belongs to which request.
var matchingCases = []testCase{
	{
		id: "MA-01", name: "matching/by-token", needs: []Feature{MatchByToken}, uses: []means{simulatedOmni, simulatedMachines},
		rule: "The join token alone says whose machine it is: it is matched though its UUID was told to nobody, and its UUID is told then.",
		run: func(e *env) {
			release := e.holdMachines()

			e.request("r-1")
			e.awaitProvisioned("r-1")
			e.stop()
			e.forgetUUID("r-1")
			release()
			e.awaitLink("r-1")
			e.start()
			e.awaitJoined("r-1")
		},
	},
	{
		id: "MA-02", name: "matching/uuid-taken", needs: []Feature{MatchByToken, DerivedUUID}, uses: []means{simulatedOmni, simulatedMachines},
		rule: "A machine whose UUID somebody else has joined with gets another one from Omni; the request's status follows, and the machine is left in peace.",
		run: func(e *env) {
			release := e.holdMachines()

			e.request("r-1")

			uuid := lower(e.awaitProvisioned("r-1").UUID)

			defer e.joinStranger(uuid, e.plainJoinConfig)()

			release()
			e.await("the status has another UUID than the stranger's", func() (string, bool) {
				now := e.status("r-1").GetId()

				return now, now != uuid && now == e.awaitJoined("r-1")
			})
			e.inPeace(calm, e.machine())
			e.remove("r-1")
			e.awaitGone("r-1")
		},
	},
	{
		id: "MA-04", name: "matching/tokens-mode-legacy", uses: []means{simulatedOmni, cloudView},
		rule: "Machines join an Omni whose join tokens mode is legacy.",
		omni: omni.Options{JoinTokensMode: omni.JoinTokensLegacy},
		run:  (*env).lifeOfOneMachine,
	},
	{
		id: "MA-05", name: "matching/tokens-mode-legacy-allowed", uses: []means{simulatedOmni, cloudView},
		rule: "Machines join an Omni whose join tokens mode is legacyAllowed.",
		omni: omni.Options{JoinTokensMode: omni.JoinTokensLegacyAllowed},
		run:  (*env).lifeOfOneMachine,
	},
	{
		id: "MA-07", name: "matching/old-omni", needs: []Feature{OldOmni}, uses: []means{simulatedOmni, cloudView},
		rule: "Machines join an Omni that is too old to have a join configuration for each provider.",
		run: func(e *env) {
			e.stop()
			e.ageOmni()
			e.start()
			e.lifeOfOneMachine()
		},
	},
	{
		id: "MA-08", name: "matching/neighbours-machine", uses: []means{simulatedOmni, simulatedMachines, cloudView},
		rule: "A machine that another provider's token names as that of a request does not become the request's machine.",
		run: func(e *env) {
			other := e.provider + "-2"

			p := e.launch(other, e.createProvider(other))
			defer p.kill()

			e.request("r-1")

			uuid := e.awaitJoined("r-1")

			defer e.joinStranger("5721a1ba-0000-4000-8000-000000000001", func() ([]byte, error) { return e.joinConfig(other, "r-1") })()

			e.awaitLinks(2)
			e.throughout(calm, "the request's machine has UUID "+uuid, func() (string, bool) { return e.status("r-1").GetId(), e.status("r-1").GetId() == uuid })
			e.inPeace(calm, e.machine())
		},
	},
	{
		id: "MA-09", name: "matching/labels",
		rule: "The labels of a request are on its status.",
		run: func(e *env) {
			e.requestLabelled("r-1", "rack", "r7")
			e.set("pool", 1)
			e.await("both requests are there", func() (string, bool) { return fmt.Sprint(e.requests()), len(e.requests()) == 2 })

			for _, id := range e.requests() {
				e.await("status "+id+" has the labels of its request", func() (string, bool) {
					request, status := e.labels(id)

					for key, value := range request {
						if status[key] != value {
							return fmt.Sprintf("%v, want %v", status, request), false
						}
					}

					return "", true
				})
			}
		},
	},
}
