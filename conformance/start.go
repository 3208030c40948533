package conformance

var startCases = []testCase{
	{
		id: "GO-01", name: "start",
		rule: "A provider that starts tells Omni its name and the JSON schema of its class data, and ends promptly and without an error when it is told to.",
		run: func(e *env) {
			e.schema()
			e.restart()
		},
	},
}
