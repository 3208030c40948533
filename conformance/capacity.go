package conformance

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

var capacityCases = []testCase{
	{
		id: "CA-01", name: "capacity/full-for-ten-minutes", uses: []means{cloudView, simulatedCloud, fakeClock},
		rule: "A cloud without room is asked for a machine once a minute at most, the request says so, and it gets its one machine when there is room.",
		run: func(e *env) {
			undo := e.disturb(ledger.Fault{Kind: ledger.Full, Op: e.subject.CreateOp, Times: -1})

			e.request("r-1")
			e.await("the status has an error", func() (string, bool) { return e.status("r-1").String(), e.status("r-1").GetError() != "" })

			before := e.creations()

			e.sleep(10 * time.Minute)

			if n := e.creations() - before; n > 11 && slices.Contains(e.subject.Faults, ledger.Full) && e.subject.CreateOp != "" {
				e.fail("at most one try a minute", "%d in ten minutes", n)
			}

			undo()
			e.awaitJoined("r-1")
			e.machine()
		},
	},
	{
		id: "CA-02", name: "capacity/rate-limit-holds-for-all", uses: []means{cloudView, simulatedCloud},
		rule: "A cloud that asks for a pause at any call is given it by all requests, and by everything else that the provider does.",
		run: func(e *env) {
			e.disturb(ledger.Fault{Kind: ledger.Slow, For: time.Second, Times: -1})
			e.request("r-1")
			e.request("r-2")
			e.awaitJoined("r-1")
			e.awaitJoined("r-2")
			e.remove("r-1")
			e.awaitGone("r-1")
		},
		troubles: every(3, atEachCloudCall("throttled", func(*env) ledger.Fault {
			return ledger.Fault{Kind: ledger.Throttled, For: 2 * time.Minute, Grace: 10 * time.Second}
		})),
	},
	factoryCase("CA-03", "unauthorized", "refuses Omni", omni.Fault{Err: status.Error(codes.Unknown, "failed to create schematic: 401 unauthorized"), Times: -1}),
	factoryCase("CA-04", "not-found", "knows nothing of what it is asked for", omni.Fault{Err: status.Error(codes.Unknown, "failed to create schematic: 404 not found"), Times: -1}),
	factoryCase("CA-05", "slow", "takes its time", omni.Fault{Delay: 40 * time.Second, Times: -1}),
	factoryCase("CA-06", "hangs", "does not answer", omni.Fault{Drop: true, Times: -1}),
}

func factoryCase(id, kind, what string, f omni.Fault) testCase {
	return testCase{
		id: id, name: "factory/" + kind, uses: []means{cloudView, simulatedOmni},
		rule: "An image factory that " + what + " for a while is seen in the request's status, and changes nothing else.",
		run: func(e *env) {
			f.Method = "CreateSchematicFromRaw"
			undo := e.disturbOmni(f)

			e.request("r-1")
			e.await("the machine is there, or the status says why it is not", func() (string, bool) {
				return e.status("r-1").String(), e.provisioned("r-1") || e.status("r-1").GetError() != ""
			})
			e.sleep(5 * time.Minute)

			if s := e.status("r-1"); !e.provisioned("r-1") && s.GetError() == "" {
				e.fail("the status says why there is no machine", "%s", fmt.Sprint(s))
			}

			undo()
			e.awaitJoined("r-1")
			e.machine()
		},
	}
}
