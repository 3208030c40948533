package conformance

import (
	"fmt"
	"slices"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// simpleFaults are those that every simulated cloud plays, as its books do.
var simpleFaults = []ledger.FaultKind{"", ledger.Cut, ledger.Lost, ledger.Hang, ledger.Slow}

// disturb lets a fault befall calls to the cloud until undo is called. A kind that the subject's cloud does not play becomes a
// lost connection, which is as good a reason to try again.
func (e *env) disturb(f ledger.Fault) (undo func()) {
	if !slices.Contains(simpleFaults, f.Kind) && !slices.Contains(e.subject.Faults, f.Kind) {
		f.Kind = ledger.Cut
	}

	switch {
	case f.Kind == ledger.Hang:
		f.For = min(f.For, e.pace.hang)
	case f.Kind == ledger.Slow && f.Times < 0:
		// It is every call that is slow.
		f.For = e.pace.cut(10*f.For) / 10
	default:
		f.For = e.pace.cut(f.For)
	}

	return e.ledger.Inject(f)
}

// disturbOmni lets a fault befall the provider's calls to Omni until undo is called.
func (e *env) disturbOmni(f omni.Fault) (undo func()) {
	f.Provider, f.Delay = e.provider, e.pace.cut(f.Delay)

	return e.omni.Inject(f)
}

// beside does something in the course of a case. Its failure ends the case.
func (e *env) beside(f func()) {
	e.tasks.Go(func() {
		defer func() {
			switch p := recover().(type) {
			case nil:
			case *failure:
				e.broken.CompareAndSwap(nil, p)
			default:
				panic(p)
			}
		}()

		f()
	})
}

// broke ends the case if something beside it has failed.
func (e *env) broke() {
	if f := e.broken.Load(); f != nil {
		panic(f)
	}
}

// mostTroubles bounds the runs of a fault. A life of more calls than that is one that waits for a slow cloud, looking again and
// again; then the fault befalls some of them, spread evenly.
const mostTroubles = 40

// atEachCloudCall makes troubles that let the fault befall each call to the cloud in turn.
func atEachCloudCall(name string, fault func(e *env) ledger.Fault) func(calls) []trouble {
	return func(made calls) (all []trouble) {
		for n := 1; n <= made.cloud; n += 1 + made.cloud/mostTroubles {
			all = append(all, trouble{name: fmt.Sprintf("%s-call-%d", name, n), arm: func(e *env) {
				f := fault(e)
				f.Nth = n
				e.disturb(f)
			}})
		}

		return all
	}
}

// atEachWrite makes troubles that let the fault befall each write to Omni in turn.
func atEachWrite(name string, fault omni.Fault) func(calls) []trouble {
	return func(made calls) (all []trouble) {
		for n := 1; n <= made.omni; n++ {
			all = append(all, trouble{name: fmt.Sprintf("%s-write-%d", name, n), arm: func(e *env) {
				f := fault
				f.Writes, f.Nth = true, n
				e.disturbOmni(f)
			}})
		}

		return all
	}
}

// every keeps one of so many troubles, for what need not be tried at each call.
func every(nth int, troubles func(calls) []trouble) func(calls) []trouble {
	return func(made calls) (some []trouble) {
		for i, t := range troubles(made) {
			if i%nth == 0 {
				some = append(some, t)
			}
		}

		return some
	}
}

// outage keeps the cloud out of reach for d.
func (e *env) outage(d time.Duration) {
	e.ledger.Outage(true)
	_ = sleep(e.ctx, e.pace.cut(d))
	e.ledger.Outage(false)
}

// creations returns how many calls there were that make a machine.
func (e *env) creations() int { return e.ledger.CallsOf(e.subject.CreateOp) }

// kept returns how many objects of each kind there are that serve several machines.
func (e *env) kept() map[string]int {
	n := map[string]int{}

	for _, o := range e.ledger.Objects() {
		if o.Keep {
			n[o.Kind]++
		}
	}

	return n
}

// within waits for check, but not longer than d.
func (e *env) within(d time.Duration, want string, check func() (string, bool)) {
	start := time.Now()

	e.await(want+" within "+d.String(), func() (string, bool) {
		got, ok := check()
		if !ok && time.Since(start) > d {
			e.fail(want+" within "+d.String(), "%s", got)
		}

		return got, ok
	})
}

// provisioned reports whether the provider says that the request has its machine.
func (e *env) provisioned(id string) bool {
	return e.status(id).GetStage() == specs.MachineRequestStatusSpec_PROVISIONED
}

// tornDown reports whether a request is being torn down, or gone.
func (e *env) tornDown(id string) bool {
	r, err := e.state.Get(e.ctx, infra.NewMachineRequest(e.full(id)).Metadata())

	return state.IsNotFoundError(err) || err == nil && r.Metadata().Phase() == resource.PhaseTearingDown
}

// goneYet destroys a request that is torn down if nobody holds on to it, or says who does.
func (e *env) goneYet(id string) (held string, gone bool) {
	return e.destroy(infra.NewMachineRequest(e.full(id)).Metadata())
}
