package conformance

var powerCases = []testCase{
	{
		id: "PW-01", name: "power/omni-restarts", needs: []Feature{Power}, uses: []means{simulatedOmni, cloudView},
		rule: "A machine that was switched off on purpose stays off when Omni restarts.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")
			e.annotate("r-1", powerAnnotation, "off")
			e.awaitPower(false)
			e.restartOmni(restartTime)
			e.inPeace(calm, e.machines()...)
			e.annotate("r-1", powerAnnotation, "on")
			e.awaitPower(true)
		},
	},
	{
		id: "PW-02", name: "power/not-before-it-joined", needs: []Feature{Power, Reboot}, uses: []means{simulatedMachines, cloudView, bootCount},
		rule: "A machine that has not joined yet is neither switched nor rebooted, however long that takes: Omni has to collect its facts first.",
		run: func(e *env) {
			release := e.holdMachines()

			e.request("r-1")

			machine := e.awaitProvisioned("r-1")

			e.annotate("r-1", powerAnnotation, "off")
			e.annotate("r-1", rebootAnnotation, "early")
			e.inPeace(2*calm, machine)
			release()
			e.awaitPower(false)
		},
	},
	{
		id: "PW-03", name: "power/not-while-torn-down", needs: []Feature{Power, Reboot}, uses: []means{simulatedOmni, cloudView, bootCount},
		rule: "A machine whose request is torn down is neither switched nor rebooted.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			release := e.holdStatus("r-1")

			e.remove("r-1")
			e.annotate("r-1", powerAnnotation, "off")
			e.annotate("r-1", rebootAnnotation, "late")
			e.inPeace(calm, e.machine())
			release()
			e.awaitGone("r-1")
		},
	},
	{
		id: "PW-04", name: "power/infra-machine-first", needs: []Feature{Power}, uses: []means{simulatedOmni, cloudView},
		rule: "What Omni asks of a machine comes before what the annotation says, and the annotation counts again afterwards.",
		run: func(e *env) {
			e.request("r-1")

			uuid := e.awaitJoined("r-1")

			e.annotate("r-1", powerAnnotation, "on")
			e.prefer(uuid, false)
			e.awaitPower(false)
			e.prefer(uuid, true)
			e.awaitPower(true)
			e.annotate("r-1", powerAnnotation, "off")
			e.inPeace(calm, e.machine())
			e.preferNothing(uuid)
			e.awaitPower(false)
		},
	},
	{
		id: "PW-05", name: "power/is-reported", needs: []Feature{Power},
		rule: "Omni is told whether the machine is on, as long as there is a machine.",
		run: func(e *env) {
			e.request("r-1")

			uuid := e.awaitJoined("r-1")

			e.awaitReport(uuid, true)
			e.annotate("r-1", powerAnnotation, "off")
			e.awaitReport(uuid, false)
			e.annotate("r-1", powerAnnotation, "on")
			e.awaitReport(uuid, true)
			e.remove("r-1")
			e.awaitGone("r-1")
			e.noReport(uuid)
		},
	},
	{
		id: "PW-06", name: "power/no-such-value", needs: []Feature{Power}, uses: []means{cloudView},
		rule: "An annotation with a value that does not exist is named in the request's status with what would be right, and changes nothing.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			machine := e.machine()

			e.annotate("r-1", powerAnnotation, "sideways")
			e.awaitError("r-1", powerAnnotation, "sideways", "off")
			e.inPeace(calm, machine)
			e.annotate("r-1", powerAnnotation, "off")
			e.awaitPower(false)
			e.awaitNoError("r-1")
		},
	},
	{
		id: "PW-07", name: "power/switched-off-at-the-console", needs: []Feature{Power, Console}, uses: []means{cloudView, cloudHand},
		rule: "A machine that somebody switches off in the cloud is reported so and left off, until its request says that it is to be on.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitProvisioned("r-1")

			uuid := e.awaitJoined("r-1")

			e.switchOff(e.machine())
			e.awaitReport(uuid, false)
			e.inPeace(calm, e.machines()...)
			e.restart()
			e.inPeace(calm, e.machines()...)
			e.annotate("r-1", powerAnnotation, "on")
			e.awaitPower(true)
			e.awaitReport(uuid, true)
		},
	},
	{
		id: "PW-08", name: "power/provider-was-off", needs: []Feature{Power}, uses: []means{cloudView},
		rule: "What was asked of a machine while the provider was off is done when it is back.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			for _, power := range []string{"off", "on"} {
				e.stop()
				e.annotate("r-1", powerAnnotation, power)
				e.sleep(restartTime)
				e.start()
				e.awaitPower(power == "on")
			}
		},
	},
	{
		id: "RB-01", name: "reboot/crash-at-each-cloud-call", needs: []Feature{Reboot}, uses: []means{cloudView, bootCount, simulatedCloud}, window: true,
		rule:     "A crash after any call to the cloud on the way to a reboot, its reply seen or lost, leads after a restart to exactly one reboot.",
		run:      (*env).rebootOnce,
		troubles: crashesAtCloudCalls,
	},
	{
		id: "RB-02", name: "reboot/crash-at-each-write-to-omni", needs: []Feature{Reboot}, uses: []means{cloudView, bootCount, ownProcess}, window: true,
		rule:     "A crash after any write to Omni on the way to a reboot, its reply seen or lost, leads after a restart to exactly one reboot.",
		run:      (*env).rebootOnce,
		troubles: crashesAtWrites,
	},
	{
		id: "RB-03", name: "reboot/provider-was-off", needs: []Feature{Reboot}, uses: []means{simulatedOmni, cloudView, bootCount},
		rule: "A reboot that was asked for while the provider was off happens once when it is back, and Omni's restart brings no other.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			machine := e.machine()
			machine.Boots++

			e.stop()
			e.annotate("r-1", rebootAnnotation, "once")
			e.start()
			e.awaitBoots(machine.Boots)
			e.restartOmni(restartTime)
			e.inPeace(calm, machine)
		},
	},
}

// rebootOnce asks for one reboot, and sees that there is no other.
func (e *env) rebootOnce() {
	e.request("r-1")

	uuid := e.awaitJoined("r-1")

	e.awaitReport(uuid, true)

	machine := e.machine()
	machine.Boots++

	e.window(func() {
		e.annotate("r-1", rebootAnnotation, "once")
		e.awaitBoots(machine.Boots)
		e.await("Omni is told of the reboot", func() (string, bool) {
			got := e.report(uuid).GetLastRebootId()

			return "last reboot id " + got, got == "once"
		})
	})
	e.inPeace(calm, machine)
}
