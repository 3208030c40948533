package lifecycle_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// takeBudget returns how many calls were made for each of so many machines since it was last asked, and how many of them wrote.
func (w *world) takeBudget(what string, machines int) (calls, writes float64) {
	kinds := map[string]int{}

	for _, call := range w.takeCalls() {
		kinds[call]++
		calls++

		if !strings.HasPrefix(call, "get ") {
			writes++
		}
	}

	calls, writes = calls/float64(machines), writes/float64(machines)
	w.t.Logf("%-12s %d machines: %.2f calls, %.2f writes each: %v", what, machines, calls, writes, kinds)

	return calls, writes
}

// Round trips to Omni are what a machine's provisioning waits for when the cloud is fast.
func TestMachineTakesFewCallsToOmni(t *testing.T) {
	for _, machines := range []int{1, 100} {
		for name, change := range map[string]func(*infra.MachineRequest){
			"of a set":  func(*infra.MachineRequest) {},
			"of no set": ofNoSet,
		} {
			t.Run(fmt.Sprintf("%d %s", machines, name), func(t *testing.T) {
				run(t, func(w *world) {
					ids := make([]string, machines)

					w.holdAll(0)
					w.wait(time.Minute)
					w.takeCalls()

					for i := range ids {
						ids[i] = fmt.Sprintf("pool-%d", i)
						w.request(ids[i], change)
					}

					w.wait(time.Second)

					for _, id := range ids {
						require.Equal(t, specs.MachineRequestStatusSpec_PROVISIONED, w.stage(id))
					}

					calls, writes := w.takeBudget("made", machines)
					assert.LessOrEqual(t, calls, 14.0)
					assert.LessOrEqual(t, writes, 6.0, "also when Omni's finalizer comes between a read and a write")

					for _, id := range ids {
						status, _ := w.status(id)
						w.join(id, status.TypedSpec().Value.Id)
					}

					w.wait(5 * time.Minute)

					calls, _ = w.takeBudget("joined", machines)
					assert.LessOrEqual(t, calls, 2.0, "what is seen of it, and that it has joined")

					w.wait(time.Hour)

					calls, _ = w.takeBudget("at rest", machines)
					assert.Zero(t, calls)

					for _, id := range ids {
						w.teardown(id)
					}

					w.wait(time.Minute)

					for _, id := range ids {
						require.Empty(t, w.finalizers(id))
					}

					calls, _ = w.takeBudget("removed", machines)
					assert.LessOrEqual(t, calls, 8.0)
				}, func(w *world) { w.cloud.quick = 3 })
			})
		}
	}
}
