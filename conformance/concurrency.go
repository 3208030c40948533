package conformance

import (
	"fmt"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

var concurrencyCases = []testCase{
	{
		id: "CO-01", name: "concurrency/fifty-at-once", uses: []means{cloudView, simulatedCloud},
		rule: "Fifty requests at once get fifty machines that have nothing in common but one image, and are gone at once when they are not wanted.",
		run: func(e *env) {
			e.set("pool", 50)
			e.awaitSet("pool", 50)
			e.distinct(50)

			for kind, n := range e.kept() {
				equal(e, "objects of kind "+kind+" that serve all machines of a place", 1, float64(n)/float64(e.placesInUse()))
			}

			e.set("pool", 0)
			e.await("all machines are gone", func() (string, bool) { return describe(e.machines()), len(e.machines()) == 0 })
		},
	},
	{
		id: "CO-02", name: "concurrency/half-made-half-removed", uses: []means{cloudView},
		rule: "Machines that are made and machines that are removed at the same time do not get in each other's way.",
		run: func(e *env) {
			e.set("old", 10)
			e.awaitSet("old", 10)
			e.set("old", 0)
			e.set("new", 10)
			e.await("the old machines have made room for the new ones", func() (string, bool) {
				return describe(e.machines()), len(e.machines()) == 10 && len(e.requests()) == 10
			})
			e.awaitSet("new", 10)
			e.distinct(10)
		},
	},
	{
		id: "CO-03", name: "concurrency/hung-call-delays-nobody-else", uses: []means{cloudView, simulatedCloud, fakeClock},
		rule: "A call to the cloud that hangs holds up its own request and no other, whether that is made or removed.",
		run: func(e *env) {
			for n := 1; n <= 8; n++ {
				old, one, two := fmt.Sprintf("old-%d", n), fmt.Sprintf("one-%d", n), fmt.Sprintf("two-%d", n)

				e.request(old)
				e.awaitJoined(old)
				undo := e.disturb(ledger.Fault{Kind: ledger.Hang, For: 20 * time.Minute, Nth: n})
				e.request(one)
				e.request(two)
				e.within(5*time.Minute, "one of two machines is there", func() (string, bool) {
					return fmt.Sprintf("errors %q and %q", e.status(one).GetError(), e.status(two).GetError()), e.provisioned(one) || e.provisioned(two)
				})
				e.remove(old)
				e.within(5*time.Minute, "the old machine is gone", func() (string, bool) { return e.goneYet(old) })
				e.remove(one)
				e.remove(two)
				e.awaitGone(one)
				e.awaitGone(two)
				undo()
			}
		},
	},
	{
		id: "CO-04", name: "concurrency/removed-while-a-call-is-under-way", uses: []means{cloudView, simulatedCloud},
		rule: "A request that is torn down while a call takes its time leaves nothing behind, though the call may make something yet.",
		run: func(e *env) {
			e.request("r-1")
			e.await("the machine is there, or the request is torn down", func() (string, bool) {
				return e.status("r-1").GetStatus(), e.provisioned("r-1") || e.tornDown("r-1")
			})
			e.remove("r-1")
			e.awaitGone("r-1")
		},
		troubles: atEachCloudCall("remove-during", func(e *env) ledger.Fault {
			return ledger.Fault{Kind: ledger.Slow, For: 50 * time.Second, Then: func() {
				e.beside(func() {
					if sleep(e.ctx, time.Second) == nil {
						e.remove("r-1")
					}
				})
			}}
		}),
	},
}

// distinct ends the case unless there are n machines with names and UUIDs of their own.
func (e *env) distinct(n int) {
	names, uuids := map[string]bool{}, map[string]bool{}

	for _, m := range e.machines() {
		names[m.Name], uuids[m.UUID] = true, true
	}

	equal(e, "machines", n, len(e.machines()))
	equal(e, "different names", n, len(names))
	equal(e, "different UUIDs", n, len(uuids))
}
