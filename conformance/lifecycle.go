package conformance

import (
	"fmt"
	"strings"

	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
)

var lifecycleCases = []testCase{
	{
		id: "LC-01", name: "provision", uses: []means{cloudView},
		rule: "A request becomes exactly one machine, which is on, joins Omni and is matched with the request.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitProvisioned("r-1")

			machine, uuid := e.machine(), e.awaitJoined("r-1")

			equal(e, "UUID that the machine joins with", strings.ToLower(machine.UUID), uuid)
			e.throughout(calm, "the machine is left in peace", func() (string, bool) {
				now := e.machine()

				return fmt.Sprintf("machine %s, booted %d times", now.ID, now.Boots), now.ID == machine.ID && now.Boots == machine.Boots
			})
		},
	},
	{
		id: "LC-02", name: "provision/uuid-before-join", needs: []Feature{DerivedUUID}, uses: []means{cloudView, simulatedMachines},
		rule: "Omni is told the machine's UUID before the machine joins, in lower case.",
		run: func(e *env) {
			release := e.world.hold()
			defer release()

			e.request("r-1")
			e.awaitProvisioned("r-1")
			equal(e, "UUID in the request's status", strings.ToLower(e.machine().UUID), e.status("r-1").GetId())
		},
	},
	{
		id: "LC-03", name: "provision/ten-at-once", uses: []means{cloudView},
		rule: "Requests that come together get machines of their own, with names and UUIDs of their own.",
		run: func(e *env) {
			e.set("pool", 10)
			e.awaitSet("pool", 10)

			names, uuids := map[string]bool{}, map[string]bool{}

			for _, m := range e.machines() {
				names[m.Name], uuids[m.UUID] = true, true
			}

			equal(e, "machines", 10, len(e.machines()))
			equal(e, "different names", 10, len(names))
			equal(e, "different UUIDs", 10, len(uuids))
		},
	},
}

// awaitSet waits until a set has that many machines that have joined.
func (e *env) awaitSet(id string, size int) {
	e.await(fmt.Sprintf("the %d machines of set %s have joined Omni and are matched with requests", size, id), func() (string, bool) {
		requests := map[string]bool{}

		for _, m := range list[*omni.Machine](e) {
			if set, ok := m.Metadata().Labels().Get(omni.LabelMachineRequestSet); ok && set == e.full(id) {
				request, _ := m.Metadata().Labels().Get(omni.LabelMachineRequest)
				requests[request] = true
			}
		}

		return fmt.Sprintf("%d of them", len(requests)), len(requests) == size && len(e.machines()) == size
	})
}
