package conformance

var crashCases = []testCase{
	{
		id: "CR-01", name: "crash/after-each-cloud-call", crashes: true,
		rule: "A crash after any call to the cloud, its reply seen or lost, leads after a restart to exactly one machine, and to nothing once the request is gone.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")
			e.machine()
			e.remove("r-1")
			e.awaitGone("r-1")
		},
	},
}
