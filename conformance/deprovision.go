package conformance

import (
	"fmt"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"
)

var deprovisionCases = []testCase{
	{
		id: "DP-01", name: "deprovision",
		rule: "When a request is torn down its machine and all that belongs to it goes, and only then the request.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")
			e.remove("r-1")
			e.awaitGone("r-1")
		},
	},
	{
		id: "DP-02", name: "deprovision/machine-already-gone", uses: []means{cloudView, cloudHand},
		rule: "What is gone from the cloud already is no obstacle to the end of its request.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")
			e.stop()
			e.deleteMachine()
			e.remove("r-1")
			e.start()
			e.awaitGone("r-1")
		},
	},
	{
		id: "DP-03", name: "deprovision/while-provisioning",
		rule: "A request that is torn down while its machine is being made leaves nothing behind.",
		run: func(e *env) {
			e.request("r-1")
			e.await("the provider begins to make a machine", func() (string, bool) { return "nothing is made", e.begun("r-1") })
			e.remove("r-1")
			e.awaitGone("r-1")
		},
	},
	{
		id: "DP-04", name: "deprovision/before-any-call",
		rule: "A request that is torn down at once ends, and leaves nothing behind.",
		run: func(e *env) {
			e.request("r-1")
			e.remove("r-1")
			e.awaitGone("r-1")
		},
	},
	{
		id: "DP-05", name: "deprovision/provider-was-off",
		rule: "Requests that were torn down while the provider was off end when it is back, and no machine is made for them.",
		run: func(e *env) {
			e.request("r-1")
			e.request("r-2")
			e.awaitJoined("r-1")
			e.awaitJoined("r-2")
			e.stop()
			e.remove("r-1")
			e.remove("r-2")
			e.sleep(time.Hour)
			e.start()
			e.awaitGone("r-1")
			e.awaitGone("r-2")
		},
	},
	{
		id: "DP-06", name: "deprovision/omni-holds-the-machine", uses: []means{simulatedOmni, cloudView},
		rule: "The machine is not touched before Omni has let go of it, which may be draining the node.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			machine, release := e.machine(), e.holdStatus("r-1")

			e.remove("r-1")
			e.inPeace(calm, machine)
			release()
			e.awaitGone("r-1")
		},
	},
}

// deleteMachine takes the only machine away, behind the provider's back.
func (e *env) deleteMachine() {
	if err := e.cloud.DeleteMachine(e.machine().ID); err != nil {
		panic(fmt.Errorf("delete a machine in the cloud: %w", err))
	}
}

// begun reports whether the provider has made anything that has to go with its request, or, where that cannot be seen, says that
// it is about to.
func (e *env) begun(id string) bool {
	if e.ledger == nil {
		return e.status(id).GetStage() != specs.MachineRequestStatusSpec_UNKNOWN
	}

	return len(e.made()) > 0
}

// made returns what the provider has made in the cloud and has to take away again.
func (e *env) made() (left []string) {
	if e.ledger == nil {
		for _, m := range e.machines() {
			left = append(left, fmt.Sprintf("machine %s %q", m.ID, m.Name))
		}

		return left
	}

	for _, o := range e.ledger.Objects() {
		if !o.Keep {
			left = append(left, o.String())
		}
	}

	return left
}
