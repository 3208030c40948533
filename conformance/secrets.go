package conformance

import "github.com/omni-infra/omni-infra-providers/sim/ledger"

// Every case ends with a search for secrets in all that was seen. These make the provider say more than it does else.
var secretCases = []testCase{
	{
		id: "SE-01", name: "secrets/echoed-by-the-cloud", uses: []means{cloudView, simulatedOmni, simulatedCloud},
		rule: "A cloud that repeats a whole request in its error makes the provider give no secret away.",
		run:  (*env).lifeOfOneMachine,
		troubles: func(made calls) []trouble {
			// The calls are not in the same order each time, and the one that makes the machine has the most to give away.
			making := trouble{name: "echo-making", arm: func(e *env) { e.disturb(ledger.Fault{Kind: ledger.Echo, Op: e.subject.CreateOp}) }}

			return append(atEachCloudCall("echo", func(*env) ledger.Fault { return ledger.Fault{Kind: ledger.Echo} })(made), making)
		},
	},
}
