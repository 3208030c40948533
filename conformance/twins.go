package conformance

import "fmt"

// twinCases run two processes with one provider id.
var twinCases = []testCase{
	{
		id: "TW-01", name: "one-at-a-time/twenty-requests", needs: []Feature{OneAtATime}, uses: []means{cloudView},
		rule: "Two processes with one provider id make one machine for each request, not two.",
		run: func(e *env) {
			defer e.twin().kill()

			e.set("pool", 20)
			e.awaitAtMost("pool", 20)
			e.inPeace(calm, e.machines()...)
		},
	},
	{
		id: "TW-02", name: "one-at-a-time/holder-killed", needs: []Feature{OneAtATime}, uses: []means{cloudView},
		rule: "When the process that acts is killed the other one takes over, and leaves what is there in peace.",
		run: func(e *env) {
			e.set("pool", 1)
			e.awaitSet("pool", 1)

			machine, twin := e.machine(), e.twin()

			e.inPeace(calm, machine)
			e.process().kill()
			e.succeed(twin)
			e.set("pool", 2)
			e.awaitAtMost("pool", 2)
			equal(e, "machine that was there", fmt.Sprint(machine), fmt.Sprint(e.find(machine.ID)))
		},
	},
	{
		id: "TW-03", name: "one-at-a-time/holder-ends", needs: []Feature{OneAtATime}, uses: []means{cloudView},
		rule: "When the process that acts ends in order, as in an upgrade, the other one takes over.",
		run: func(e *env) {
			e.set("pool", 1)
			e.awaitSet("pool", 1)

			twin := e.twin()

			e.stop()
			e.succeed(twin)
			e.set("pool", 2)
			e.awaitAtMost("pool", 2)
		},
	},
	{
		id: "TW-04", name: "one-at-a-time/holder-cut-off", needs: []Feature{OneAtATime}, uses: []means{cloudView, ownProcess},
		rule: "A process that cannot reach Omni changes nothing in the cloud once another one has taken over, nor when it can reach Omni again.",
		run: func(e *env) {
			first, twin := e.process(), e.twin()
			defer first.kill()

			e.set("pool", 10)
			e.awaitSome(1)
			first.isolate(true)
			e.succeed(twin)
			e.awaitAtMost("pool", 10)
			e.set("pool", 5)
			e.awaitSet("pool", 5)
			e.inPeace(calm, e.machines()...)
			first.isolate(false)
			e.inPeace(calm, e.machines()...)
		},
	},
	{
		id: "TW-05", name: "one-at-a-time/killed-in-the-middle", needs: []Feature{OneAtATime}, uses: []means{cloudView},
		rule: "What the process that acts has begun when it is killed is finished by the other one, with one machine for each request.",
		run: func(e *env) {
			twin := e.twin()

			e.set("pool", 5)
			e.awaitSome(1)
			e.process().kill()
			e.succeed(twin)
			e.awaitAtMost("pool", 5)
			e.inPeace(calm, e.machines()...)
		},
	},
}

// twin starts a second process of the provider.
func (e *env) twin() *process { return e.launch(e.provider, e.key) }

// succeed makes a twin the process that the case goes on with.
func (e *env) succeed(twin *process) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.proc = twin
}

// awaitAtMost waits until a set has that many joined machines, and ends the case when there are ever more.
func (e *env) awaitAtMost(set string, size int) {
	e.await(fmt.Sprintf("the cloud has %d machines, never more", size), func() (string, bool) {
		now := e.machines()
		if len(now) > size {
			e.fail(fmt.Sprintf("no more than %d machines", size), "%s", describe(now))
		}

		return describe(now), len(now) == size
	})
	e.awaitSet(set, size)
}

// awaitSome waits until the cloud has at least so many machines.
func (e *env) awaitSome(n int) {
	e.await(fmt.Sprintf("the cloud has %d machines", n), func() (string, bool) { return describe(e.machines()), len(e.machines()) >= n })
}
