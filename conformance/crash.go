package conformance

import (
	"fmt"
	"time"
)

var crashCases = []testCase{
	{
		id: "CR-01", name: "crash/after-each-cloud-call", uses: []means{cloudView, simulatedCloud},
		rule:     "A crash after any call to the cloud, its reply seen or lost, leads after a restart to exactly one machine, and to nothing once the request is gone.",
		run:      (*env).lifeOfOneMachine,
		troubles: crashesAtCloudCalls,
	},
	{
		id: "CR-02", name: "crash/after-each-write-to-omni", uses: []means{cloudView, ownProcess},
		rule:     "A crash after any write to Omni, its reply seen or lost, leads after a restart to exactly one machine, and to nothing once the request is gone.",
		run:      (*env).lifeOfOneMachine,
		troubles: crashesAtWrites,
	},
	{
		id: "CR-03", name: "crash/killed-while-it-works", uses: []means{cloudView},
		rule: "A provider that is killed while it makes a machine, and while it removes one, goes on when it is back: one machine, then nothing.",
		run: func(e *env) {
			e.request("r-1")
			e.await("the provider begins to make a machine", func() (string, bool) { return "nothing is made", e.begun("r-1") })
			e.killAndStart()
			e.awaitJoined("r-1")
			e.machine()
			e.remove("r-1")
			e.sleep(time.Second)
			e.killAndStart()
			e.awaitGone("r-1")
		},
	},
}

func crashesAtCloudCalls(made calls) []trouble {
	return crashes(made.cloud, func(e *env, n int, lost bool) { e.ledger.CrashAfter(e.base.cloud+n, lost, e.crash) })
}

func crashesAtWrites(made calls) []trouble {
	return crashes(made.omni, func(e *env, n int, lost bool) { e.writes.CrashAfter(e.base.omni+n, lost, e.crash) })
}

// crashes returns the two ways to die at each of the calls.
func crashes(calls int, plan func(e *env, n int, lost bool)) []trouble {
	var all []trouble

	for n := 1; n <= calls; n++ {
		all = append(all,
			trouble{name: fmt.Sprintf("call-%d-reply-lost", n), arm: func(e *env) { plan(e, n, true) }},
			trouble{name: fmt.Sprintf("call-%d-reply-seen", n), arm: func(e *env) { plan(e, n, false) }},
		)
	}

	return all
}
