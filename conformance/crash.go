package conformance

import "fmt"

var crashCases = []testCase{
	{
		id: "CR-01", name: "crash/after-each-cloud-call",
		rule: "A crash after any call to the cloud, its reply seen or lost, leads after a restart to exactly one machine, and to nothing once the request is gone.",
		run:  (*env).lifeOfOneMachine,
		troubles: func(made calls) []trouble {
			return crashes(made.cloud, func(e *env, n int, lost bool) { e.ledger.CrashAfter(n, lost, e.crash) })
		},
	},
	{
		id: "CR-02", name: "crash/after-each-write-to-omni",
		rule: "A crash after any write to Omni, its reply seen or lost, leads after a restart to exactly one machine, and to nothing once the request is gone.",
		run:  (*env).lifeOfOneMachine,
		troubles: func(made calls) []trouble {
			return crashes(made.omni, func(e *env, n int, lost bool) { e.writes.CrashAfter(n, lost, e.crash) })
		},
	},
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
