package conformance

import (
	"fmt"
	"strings"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

var shutdownCases = []testCase{
	{
		id: "SH-01", name: "shutdown/during-each-cloud-call", uses: []means{cloudView, simulatedOmni, simulatedCloud},
		rule: "A provider that is told to end during any call to the cloud ends promptly, calls no machine failed, and goes on after a restart.",
		run:  (*env).lifeWithoutFailure,
		troubles: atEachCloudCall("end-during", func(e *env) ledger.Fault {
			return ledger.Fault{Kind: ledger.Slow, For: 5 * time.Second, Then: e.endSoon}
		}),
	},
	{
		id: "SH-02", name: "shutdown/while-any-call-hangs", uses: []means{cloudView, simulatedOmni, simulatedCloud},
		rule: "A provider ends promptly while any call to the cloud hangs.",
		run:  (*env).lifeWithoutFailure,
		troubles: atEachCloudCall("hang-during", func(e *env) ledger.Fault {
			return ledger.Fault{Kind: ledger.Hang, For: time.Hour, Then: e.endSoon}
		}),
	},
	{
		id: "SH-03", name: "shutdown/during-each-write-to-omni", uses: []means{cloudView, simulatedOmni, ownProcess},
		rule: "A provider that is told to end during any write to Omni ends promptly, calls no machine failed, and goes on after a restart.",
		run:  (*env).lifeWithoutFailure,
		troubles: func(made calls) (all []trouble) {
			for n := 1; n <= made.omni; n++ {
				all = append(all, trouble{name: fmt.Sprintf("write-%d", n), arm: func(e *env) {
					e.writes.Inject(ledger.Fault{Kind: ledger.Slow, For: e.pace.cut(5 * time.Second), Nth: n, Then: e.endSoon})
				}})
			}

			return all
		},
	},
}

// endSoon ends the provider in order while the call under way takes its time, and starts it again.
func (e *env) endSoon() {
	e.beside(func() {
		if sleep(e.ctx, time.Second) == nil {
			e.restart()
		}
	})
}

// lifeWithoutFailure is lifeOfOneMachine with no word of a failure.
func (e *env) lifeWithoutFailure() {
	e.lifeOfOneMachine()

	for _, s := range e.told("r-1") {
		if s.GetStage() == specs.MachineRequestStatusSpec_FAILED || strings.Contains(s.GetError()+s.GetStatus(), "context canceled") {
			e.fail("the end of the provider is no failure of the machine", "%s", s)
		}
	}

	if log := e.log.String(); strings.Contains(log, "\nerror") && strings.Contains(log, "context canceled") {
		e.fail("the end of the provider is no error", "the log tells of one")
	}
}
