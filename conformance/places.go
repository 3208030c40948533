package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// placeCases cut off one of the places where machines are made.
var placeCases = []testCase{
	othersGoOnCase("PL-01", "cut-off", false),
	othersGoOnCase("PL-02", "silent", true),
	{
		id: "PL-03", name: "places/out-of-reach-is-not-gone", needs: []Feature{Places}, uses: []means{cloudView, simulatedCloud},
		rule: "No machine is taken for gone because its place is out of reach, also by a provider that starts meanwhile.",
		run: func(e *env) {
			e.set("pool", 4)
			e.awaitSet("pool", 4)

			machines := e.machines()

			for n, place := range e.places() {
				restore := e.cutPlace(place, n%2 == 1)

				e.overLooks(func() { e.inPeace(calm, machines...) })
				e.restart()
				e.overLooks(func() { e.inPeace(calm, machines...) })
				restore()
				e.inPeace(calm, machines...)
			}

			e.awaitSet("pool", 4)
		},
	},
	{
		id: "PL-04", name: "places/vanished-at-another", needs: []Feature{Places, Replace}, uses: []means{cloudView, cloudHand, simulatedCloud},
		rule: "A machine that vanishes is noticed and replaced while a place is out of reach that has never had it.",
		run: func(e *env) {
			e.set("pool", 1)
			e.awaitSet("pool", 1)

			far := e.machine()
			restore := e.cutPlace(far.Place, false)

			e.set("pool", 3)
			e.awaitSet("pool", 3)

			near := e.near(far.Place)

			e.delete(near[0])
			e.await("another machine has taken its place", func() (string, bool) {
				now := e.near(far.Place)

				return describe(e.machines()), len(now) == 2 && e.allJoined(now) && !slices.ContainsFunc(now, func(m ledger.Machine) bool { return m.ID == near[0].ID })
			})
			e.find(near[1].ID)
			e.find(far.ID)
			restore()
			e.awaitSet("pool", 3)
			e.inPeace(calm, e.machines()...)
		},
	},
	{
		id: "PL-05", name: "places/removed-while-out-of-reach", needs: []Feature{Places}, uses: []means{cloudView, simulatedCloud},
		rule: "A request whose machine is at a place that is out of reach is held until the place confirms that nothing is left, also by a provider that starts meanwhile.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			restore := e.cutPlace(e.machine().Place, false)

			e.remove("r-1")
			e.keepsWaiting("r-1")
			e.restart()
			e.keepsWaiting("r-1")
			restore()
			e.awaitGone("r-1")
		},
	},
	{
		id: "PL-06", name: "places/not-made-elsewhere", needs: []Feature{Places}, uses: []means{simulatedOmni, cloudView, simulatedCloud},
		rule: "A machine that is being made at a place is not made at another one when the first gets out of reach, also by a provider that starts meanwhile.",
		run: func(e *env) {
			e.request("r-1")
			e.awaitJoined("r-1")

			machine := e.machine()

			e.stop()
			e.forgetProgress("r-1")
			restore := e.cutPlace(machine.Place, false)
			e.start()
			e.inPeace(calm, machine)
			restore()
			e.awaitProvisioned("r-1")
			e.inPeace(calm, machine)
		},
	},
	{
		id: "PL-07", name: "places/health-names-it", needs: []Feature{Places}, uses: []means{simulatedOmni, cloudView, simulatedCloud},
		rule: "A place that is out of reach is named in the provider's health within two intervals, while the provider is seen to live; so is its recovery.",
		run: func(e *env) {
			for _, silent := range []bool{false, true} {
				for _, place := range e.places() {
					restore := e.cutPlace(place, silent)
					named := func() (string, bool) {
						h := e.health()

						return describeHealth(h), beats(h) && strings.Contains(h.GetError(), place)
					}

					e.within(newsTime, fmt.Sprintf("the health names %q", place), named)
					e.throughout(5*time.Minute, "the heartbeat is young, and the error stays", named)
					restore()
					e.within(3*time.Minute, "the error has gone", func() (string, bool) { return describeHealth(e.health()), e.health().GetError() == "" })
				}
			}
		},
	},
}

// othersGoOnCase keeps one place busy with what cannot be done.
func othersGoOnCase(id, kind string, silent bool) testCase {
	const many = 12

	return testCase{
		id: id, name: "places/others-go-on-" + kind, needs: []Feature{Places}, uses: []means{cloudView, simulatedCloud},
		rule: "However much there is to do at a place that is out of reach, machines are made and removed at the others without delay.",
		run: func(e *env) {
			here := e.places()[0]

			release := e.only(here)

			for n := range many {
				e.request(fmt.Sprintf("old-%d", n))
			}

			for n := range many {
				e.awaitJoined(fmt.Sprintf("old-%d", n))
			}

			release()

			restore := e.cutPlace(here, silent)

			for n := range many {
				e.remove(fmt.Sprintf("old-%d", n))
			}

			// Whoever is going to wait for the place does by then.
			e.sleep(time.Minute)

			for n := range many {
				e.request(fmt.Sprintf("new-%d", n))
			}

			e.within(5*time.Minute, fmt.Sprintf("%d machines at other places", many), func() (string, bool) {
				now := e.near(here)

				return describe(now), len(now) == many && e.allJoined(now)
			})

			for n := range many {
				e.remove(fmt.Sprintf("new-%d", n))
			}

			for n := range many {
				e.within(5*time.Minute, fmt.Sprintf("new-%d is gone", n), func() (string, bool) { return e.goneYet(fmt.Sprintf("new-%d", n)) })
			}

			equal(e, "machines at the place that is out of reach", many, len(e.machines()))
			restore()

			for n := range many {
				e.awaitGone(fmt.Sprintf("old-%d", n))
			}
		},
	}
}

// placed is a cloud of several places.
type placed interface {
	Places() []string
	CutPlace(name string, silent bool) (restore func(), err error)
}

func (e *env) placed() placed {
	cloud, ok := e.cloud.(placed)
	if !ok {
		panic(fmt.Errorf("feature %q is claimed, and the cloud has no Places and CutPlace", Places))
	}

	return cloud
}

// places returns the names of the cloud's places, of which there are several.
func (e *env) places() []string {
	places := e.placed().Places()
	if len(places) < 2 {
		panic(fmt.Errorf("feature %q is claimed, and the cloud has the places %q: want two at least", Places, places))
	}

	return places
}

// cutPlace puts a place out of reach until restore is called.
func (e *env) cutPlace(name string, silent bool) (restore func()) {
	undo, err := e.placed().CutPlace(name, silent)
	if err != nil {
		panic(fmt.Errorf("cut off a place: %w", err))
	}

	if silent {
		e.note("place %s is silent", name)
	} else {
		e.note("place %s is cut off", name)
	}

	return func() {
		e.note("place %s is in reach again", name)
		undo()
	}
}

// only puts all places but one out of reach until release is called.
func (e *env) only(name string) (release func()) {
	var restores []func()

	for _, place := range e.places() {
		if place != name {
			restores = append(restores, e.cutPlace(place, false))
		}
	}

	return func() {
		for _, restore := range restores {
			restore()
		}
	}
}

// near returns the machines that are not at that place.
func (e *env) near(far string) []ledger.Machine {
	return slices.DeleteFunc(slices.Clone(e.machines()), func(m ledger.Machine) bool { return m.Place == far })
}

// placesInUse returns how many places have a machine; a cloud that tells of none is one.
func (e *env) placesInUse() int {
	used := map[string]bool{}
	for _, m := range e.machines() {
		used[m.Place] = true
	}

	return max(len(used), 1)
}

// keepsWaiting looks on for a while at a request that is torn down and held, with its machine.
func (e *env) keepsWaiting(id string) {
	e.throughout(calm, "the request is held, and its machine is there", func() (string, bool) {
		held, gone := e.goneYet(id)

		return held + "; " + describe(e.machines()), !gone && len(e.machines()) == 1
	})
}
