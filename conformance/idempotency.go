package conformance

import (
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

var idempotencyCases = []testCase{
	{
		id: "ID-01", name: "idempotency/lost-races", uses: []means{simulatedOmni, cloudView},
		rule: "A write to Omni that loses a race makes the provider do its work again, with one machine as the result.",
		run: func(e *env) {
			e.everySecond(omni.Fault{Method: "Update", Provider: e.provider, Err: omni.ErrConflict})
			e.lifeOfOneMachine()
		},
	},
	{
		id: "ID-02", name: "idempotency/lost-replies-of-omni", uses: []means{simulatedOmni, cloudView},
		rule: "A write to Omni whose reply is lost is found done, with one machine as the result.",
		run: func(e *env) {
			e.everySecond(omni.Fault{Method: "Update", Provider: e.provider, LoseReply: true})
			e.everySecond(omni.Fault{Method: "Create", Provider: e.provider, LoseReply: true})
			e.lifeOfOneMachine()
		},
	},
	{
		id: "ID-03", name: "idempotency/restarts", uses: []means{cloudView},
		rule: "A provider that starts again finds its machines and leaves them in peace.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			machine := e.machine()

			for range 3 {
				e.restart()
				e.throughout(calm, "the machine is still the same", func() (string, bool) {
					now := e.machine()

					return describe(e.machines()), now.ID == machine.ID && now.Boots == machine.Boots
				})
			}
		},
	},
}

// everySecond lets the fault befall each second call of the first forty.
func (e *env) everySecond(f omni.Fault) {
	for n := 1; n < 40; n += 2 {
		f.Nth = n
		e.omni.Inject(f)
	}
}

// lifeOfOneMachine is a life from request to nothing, with one machine in between.
func (e *env) lifeOfOneMachine() {
	e.request("r-1")
	e.awaitJoined("r-1")
	e.machine()
	e.remove("r-1")
	e.awaitGone("r-1")
}
