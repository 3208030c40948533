package conformance

import (
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/siderolabs/omni/client/api/omni/specs"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

var statusCases = []testCase{
	{
		id: "SU-01", name: "status/error-stays", uses: []means{simulatedCloud},
		rule: "The error of a request is in its status through all retries, with the stage provisioning, and goes when they succeed.",
		run: func(e *env) {
			undo := e.disturb(ledger.Fault{Kind: ledger.Hang, For: 10 * time.Second, Times: -1})

			e.request("r-1")
			e.await("the status has an error", func() (string, bool) { return e.status("r-1").String(), e.status("r-1").GetError() != "" })

			seen := e.share(5*time.Minute, 100*time.Millisecond, func() bool {
				return e.status("r-1").GetError() != "" && e.status("r-1").GetStage() == specs.MachineRequestStatusSpec_PROVISIONING
			})
			if seen < 0.95 {
				e.fail("error and stage are there in 95 of 100 looks", "%.0f of 100; now %s", seen*100, e.status("r-1"))
			}

			undo()
			e.awaitJoined("r-1")
			e.await("the error has gone", func() (string, bool) { return e.status("r-1").GetError(), e.status("r-1").GetError() == "" })
		},
	},
	{
		id: "SU-02", name: "status/text-moves-forward", uses: []means{simulatedOmni, simulatedCloud},
		rule: "While a machine is made its status says at which step that is, and the steps and percentages of one try never go back.",
		run: func(e *env) {
			undo := e.disturb(ledger.Fault{Kind: ledger.Slow, For: 5 * time.Second, Times: -1})

			e.request("r-1")
			e.awaitProvisioned("r-1")
			undo()

			texts := e.texts("r-1")
			if len(texts) < 2 {
				e.fail("at least two different texts", "%q", texts)
			}

			for i := 1; i < len(texts); i++ {
				if behind(texts[i-1], texts[i]) {
					e.fail("steps and percentages grow", "%q comes before %q", texts[i-1], texts[i])
				}
			}
		},
	},
	{
		id: "SU-03", name: "status/nothing-after-the-end", uses: []means{simulatedOmni},
		rule: "A status that Omni was told to be final is not written again without need.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")
			e.sleep(time.Minute)

			before := len(e.told("r-1"))
			if before == 0 {
				e.fail("the status of r-1 was written at least once", "the suite has seen no version of it")
			}

			e.restart()
			e.sleep(calm)
			equal(e, "versions of the status", before, len(e.told("r-1")))
		},
	},
}

// share looks at a fact again and again and returns in which part of the looks it held.
func (e *env) share(d, pause time.Duration, holds func() bool) float64 {
	looks, held := 0, 0

	for start := time.Now(); time.Since(start) < e.pace.cut(d); time.Sleep(pause) {
		if looks++; holds() {
			held++
		}
	}

	return float64(held) / float64(looks)
}

// texts returns the different texts of a request's status before its machine was there, in their order.
func (e *env) texts(id string) (texts []string) {
	for _, s := range e.told(id) {
		switch {
		case s.GetStage() != specs.MachineRequestStatusSpec_PROVISIONING || s.GetStatus() == "":
		case len(texts) == 0 || texts[len(texts)-1] != s.GetStatus():
			texts = append(texts, s.GetStatus())
		}
	}

	return texts
}

var (
	stepOf    = regexp.MustCompile(`\b(\d+)/(\d+)\b`)
	percentOf = regexp.MustCompile(`\b(\d+)\s?%`)
)

// behind reports whether the second of two texts tells of less progress than the first.
func behind(first, second string) bool {
	if a, b := number(stepOf, first), number(stepOf, second); a >= 0 && b >= 0 && a != b {
		return b < a
	}

	a, b := number(percentOf, first), number(percentOf, second)

	return a >= 0 && b >= 0 && b < a
}

func number(form *regexp.Regexp, text string) int {
	m := form.FindStringSubmatch(text)
	if m == nil {
		return -1
	}

	n, err := strconv.Atoi(m[1])
	if err != nil {
		panic(fmt.Errorf("read %q: %w", text, err))
	}

	return n
}
