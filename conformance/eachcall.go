package conformance

import (
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// eachCallCases are one table: what may befall a call, by every call of a machine's life.
var eachCallCases = []testCase{
	atEachCall("FA-04", "not-found", "says that something is not there", ledger.Fault{Kind: ledger.NotFound}),
	atEachCall("FA-05", "conflict", "finds another operation in progress", ledger.Fault{Kind: ledger.Conflict}),
	atEachCall("FA-06", "throttled", "is answered with a time to wait", ledger.Fault{Kind: ledger.Throttled, For: 45 * time.Second}),
	atEachCall("FA-07", "unavailable", "meets a failure of the cloud", ledger.Fault{Kind: ledger.Unavailable}),
	atEachCall("FA-08", "full", "finds no room", ledger.Fault{Kind: ledger.Full}),
	atEachCall("FA-09", "unauthorized", "is refused for its credentials", ledger.Fault{Kind: ledger.Unauthorized, Times: 3}),
	atEachCall("FA-10", "cut", "loses its connection", ledger.Fault{Kind: ledger.Cut}),
	atEachCall("FA-11", "hang", "gets no answer for minutes", ledger.Fault{Kind: ledger.Hang, For: 5 * time.Minute}),
	atEachCall("FA-12", "slow", "takes a minute", ledger.Fault{Kind: ledger.Slow, For: 50 * time.Second}),
	{
		id: "FA-13", name: "faults/each-call/outage", uses: []means{cloudView, simulatedCloud},
		rule: "A cloud that is out of reach for ten minutes from any call on delays a machine's life and changes nothing else.",
		run:  (*env).lifeOfOneMachine,
		troubles: atEachCloudCall("outage", func(e *env) ledger.Fault {
			return ledger.Fault{Then: func() { e.beside(func() { e.outage(10 * time.Minute) }) }}
		}),
	},

	atEachOmniWrite("FO-01", "unavailable", "finds Omni unavailable", omni.Fault{Err: omni.ErrUnavailable}),
	atEachOmniWrite("FO-02", "conflict", "loses a race", omni.Fault{Err: omni.ErrConflict}),
	atEachOmniWrite("FO-03", "internal", "meets a failure of Omni for a while", omni.Fault{Err: status.Error(codes.Internal, "injected fault"), Times: 5}),
	atEachOmniWrite("FO-04", "reply-lost", "loses its reply", omni.Fault{LoseReply: true}),
	atEachOmniWrite("FO-05", "hang", "gets no answer", omni.Fault{Drop: true}),
	atEachOmniWrite("FO-06", "slow", "takes long", omni.Fault{Delay: 20 * time.Second}),
	{
		id: "FO-07", name: "omni/denied-for-a-while", uses: []means{simulatedOmni},
		rule: "A provider that Omni denies everything for a while goes on when it is allowed again.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			undo := e.disturbOmni(omni.Fault{Writes: true, Times: -1, Err: status.Error(codes.PermissionDenied, "injected fault")})
			e.request("r-2")
			e.remove("r-1")
			e.sleep(calm)
			undo()
			e.awaitGone("r-1")
			e.awaitJoined("r-2")
		},
	},
}

func atEachCall(id, kind, what string, f ledger.Fault) testCase {
	return testCase{
		id: id, name: "faults/each-call/" + kind, uses: []means{cloudView, simulatedCloud},
		rule:     "A machine's life goes on as if nothing had been when any call to the cloud " + what + ": one machine, then nothing.",
		run:      (*env).lifeOfOneMachine,
		troubles: atEachCloudCall(kind, func(*env) ledger.Fault { return f }),
	}
}

func atEachOmniWrite(id, kind, what string, f omni.Fault) testCase {
	return testCase{
		id: id, name: "omni/each-write/" + kind, uses: []means{cloudView, simulatedOmni, ownProcess},
		rule:     "A machine's life goes on as if nothing had been when any write to Omni " + what + ": one machine, then nothing.",
		run:      (*env).lifeOfOneMachine,
		troubles: atEachWrite(kind, f),
	}
}
