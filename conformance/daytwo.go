package conformance

import (
	"fmt"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Operators set these annotations on machine requests.
const (
	powerAnnotation  = "omni-infra.dev/power"
	rebootAnnotation = "omni-infra.dev/reboot-id"
)

var dayTwoCases = []testCase{
	{
		id: "DT-01", name: "power", needs: []Feature{Power}, uses: []means{cloudView},
		rule: "A machine is off while its request says so, also after the provider was restarted, and on again when the request says that.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			for _, power := range []string{"off", "on"} {
				want := func() (string, bool) {
					now := e.machines()

					return describe(now), len(now) == 1 && now[0].On == (power == "on")
				}

				e.annotate("r-1", powerAnnotation, power)
				e.await("the machine is "+power, want)
				e.restart()
				e.throughout(calm, "the machine stays "+power, want)
			}
		},
	},
	{
		id: "DT-02", name: "reboot", needs: []Feature{Reboot}, uses: []means{cloudView, bootCount},
		rule: "Each new reboot id restarts the machine once, and once only, also when the provider was restarted.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			for n := range 2 {
				want := e.machine().Boots + 1
				check := func() (string, bool) {
					now := e.machines()

					return fmt.Sprintf("%d boots", boots(now)), boots(now) == want
				}

				e.annotate("r-1", rebootAnnotation, fmt.Sprintf("reboot-%d", n))
				e.await(fmt.Sprintf("%d boots", want), check)
				e.restart()
				e.throughout(calm, fmt.Sprintf("no more than %d boots", want), check)
			}
		},
	},
	{
		id: "DT-03", name: "replace/machine-vanished", needs: []Feature{Replace}, uses: []means{cloudView, cloudHand},
		rule: "A machine of a set that vanishes from the cloud is replaced, and nothing of it is left.",
		run: func(e *env) {
			e.set("pool", 1)
			e.awaitSet("pool", 1)

			old := e.machine()

			e.deleteMachine()
			e.await("another machine has taken its place", func() (string, bool) {
				now := e.machines()

				return describe(now), len(now) == 1 && now[0].ID != old.ID
			})
			e.awaitSet("pool", 1)
			e.throughout(calm, "there is one machine", func() (string, bool) { return describe(e.machines()), len(e.machines()) == 1 })
		},
	},
	{
		id: "DT-04", name: "partition/omni-unreachable", uses: []means{simulatedOmni, cloudView},
		rule: "A provider that cannot reach Omni for a while leaves its machines in peace, and goes on when it can again.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			machine := e.machine()

			e.omni.PartitionAPI(true)
			e.sleep(calm)
			e.omni.PartitionAPI(false)
			e.request("r-2")
			e.awaitJoined("r-2")
			e.remove("r-2")
			e.awaitGone("r-2")
			e.throughout(calm, "the machine is still the same", func() (string, bool) {
				now := e.machine()

				return describe(e.machines()), now.ID == machine.ID && now.Boots == machine.Boots
			})
		},
	},
}

func boots(machines []ledger.Machine) (n int) {
	for _, m := range machines {
		n += m.Boots
	}

	return n
}
