package conformance

import (
	"fmt"
	"time"

	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Omni takes a provider for dead whose last heartbeat is older than mostSilence. Two of its intervals are what operators wait
// for news.
const (
	mostSilence = 31 * time.Second
	newsTime    = 2 * mostSilence
)

var healthCases = []testCase{
	unhealthyCase("HE-01", "unavailable", ledger.Unavailable),
	unhealthyCase("HE-02", "unauthorized", ledger.Unauthorized),
	unhealthyCase("HE-03", "hangs", ledger.Hang),
	{
		id: "HE-04", name: "health/heartbeat", uses: []means{simulatedOmni},
		rule: "A provider that works well is seen to live at any time, without an error.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")
			e.throughout(calm, "the heartbeat is young, and there is no error", func() (string, bool) {
				return describeHealth(e.health()), beats(e.health()) && e.health().GetError() == ""
			})
		},
	},
}

func unhealthyCase(id, kind string, fault ledger.FaultKind) testCase {
	return testCase{
		id: id, name: "health/cloud-" + kind, uses: []means{simulatedCloud},
		rule: "A cloud that does not answer as it should is seen in the provider's health within two intervals, while the provider " +
			"is seen to live, and so is its recovery.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			undo := e.disturb(ledger.Fault{Kind: fault, For: time.Hour, Times: -1})

			e.within(newsTime, "the health has an error", func() (string, bool) { return describeHealth(e.health()), e.health().GetError() != "" })
			e.throughout(5*time.Minute, "the heartbeat is young, and the error stays", func() (string, bool) {
				return describeHealth(e.health()), beats(e.health()) && e.health().GetError() != ""
			})
			undo()
			e.within(3*time.Minute, "the error has gone", func() (string, bool) { return describeHealth(e.health()), e.health().GetError() == "" })
		},
	}
}

// health returns what the provider says of itself; an empty one if it says nothing.
func (e *env) health() *specs.InfraProviderHealthStatusSpec {
	h, err := safe.StateGetByID[*infra.ProviderHealthStatus](e.ctx, e.state, e.provider)
	if err != nil {
		return &specs.InfraProviderHealthStatusSpec{}
	}

	return h.TypedSpec().Value
}

// beats reports whether a heartbeat is young enough.
func beats(h *specs.InfraProviderHealthStatusSpec) bool {
	return h.GetLastHeartbeatTimestamp() != nil && time.Since(h.GetLastHeartbeatTimestamp().AsTime()) <= mostSilence
}

func describeHealth(h *specs.InfraProviderHealthStatusSpec) string {
	return fmt.Sprintf("error %q, heartbeat %s ago", h.GetError(), time.Since(h.GetLastHeartbeatTimestamp().AsTime()).Round(time.Second))
}
