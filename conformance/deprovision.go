package conformance

import (
	"context"
	"fmt"
	"time"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
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
		id: "DP-02", name: "deprovision/machine-already-gone",
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
			e.await("the provider begins to make a machine", func() (string, bool) { return "nothing is made", e.hasObjects() })
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
			time.Sleep(time.Hour)
			e.start()
			e.awaitGone("r-1")
			e.awaitGone("r-2")
		},
	},
	{
		id: "DP-06", name: "deprovision/omni-holds-the-machine",
		rule: "The machine is not touched before Omni has let go of it, which may be draining the node.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			status := infra.NewMachineRequestStatus("r-1").Metadata()
			e.do("hold the status", func(ctx context.Context) error { return e.omni.State().AddFinalizer(ctx, status, "conformance") })

			machine := e.machine()

			e.remove("r-1")
			e.throughout(calm, "the machine runs while Omni holds on to its status", func() (string, bool) {
				now := e.machines()

				return describe(now), len(now) == 1 && now[0].On && now[0].Boots == machine.Boots
			})
			e.do("let the status go", func(ctx context.Context) error { return e.omni.State().RemoveFinalizer(ctx, status, "conformance") })
			e.awaitGone("r-1")
		},
	},
}

// deleteMachine takes the only machine away, behind the provider's back.
func (e *env) deleteMachine() {
	if err := e.subject.Cloud.DeleteMachine(e.machine().ID); err != nil {
		panic(fmt.Errorf("delete a machine in the cloud: %w", err))
	}
}

// hasObjects reports whether the provider has made anything that has to go with its request.
func (e *env) hasObjects() bool {
	for _, o := range e.ledger.Objects() {
		if !o.Keep {
			return true
		}
	}

	return false
}
