package conformance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// holdMachines keeps machines that are switched on from booting until release is called.
func (e *env) holdMachines() (release func()) { return e.world.hold() }

// partition cuts all providers off from Omni, or ends that. Machines and operators are not affected.
func (e *env) partition(on bool) {
	e.note("providers and Omni are cut off from each other: %t", on)
	e.omni.PartitionAPI(on)
}

// inPeace looks on for a while at machines that are to run as they are now, with no others beside them.
func (e *env) inPeace(d time.Duration, machines ...ledger.Machine) {
	e.throughout(d, "the machines are left in peace: "+describe(machines), func() (string, bool) {
		now := e.machines()

		return describe(now), len(now) == len(machines) && !slices.ContainsFunc(machines, func(m ledger.Machine) bool {
			return !slices.ContainsFunc(now, func(n ledger.Machine) bool { return n.ID == m.ID && n.On == m.On && n.Boots == m.Boots })
		})
	})
}

// overLooks does what f waits for in the time that the provider takes to look at its cloud several times: what it makes of looks that
// show it nothing is not seen earlier, and a case that ends before them proves nothing.
func (e *env) overLooks(f func()) {
	usual := e.pace.longest
	e.pace.longest = max(usual, e.pace.looks)

	defer func() { e.pace.longest = usual }()

	f()
}

// noneBut ends the case when there is a machine that is none of the known ones.
func (e *env) noneBut(known []ledger.Machine) {
	for _, m := range e.machines() {
		if !slices.ContainsFunc(known, func(k ledger.Machine) bool { return k.ID == m.ID }) {
			e.fail("no machine but "+describe(known), "%s", describe(e.machines()))
		}
	}
}

// stayed returns those of some machines that are still there, as they were before.
func (e *env) stayed(before []ledger.Machine) []ledger.Machine {
	now := e.machines()

	return slices.DeleteFunc(slices.Clone(before), func(b ledger.Machine) bool {
		return !slices.ContainsFunc(now, func(n ledger.Machine) bool { return n.ID == b.ID })
	})
}

// noMachine looks on for a while at a cloud that is to stay without a machine.
func (e *env) noMachine(d time.Duration) {
	e.throughout(d, "there is no machine", func() (string, bool) { return describe(e.machines()), len(e.machines()) == 0 })
}

// awaitNoMachine waits until the cloud has none.
func (e *env) awaitNoMachine() {
	e.await("the machine is gone from the cloud", func() (string, bool) { return describe(e.machines()), len(e.machines()) == 0 })
}

// awaitPower waits until the only machine is on, or off.
func (e *env) awaitPower(on bool) {
	e.await(fmt.Sprintf("there is one machine with on=%t", on), func() (string, bool) {
		now := e.machines()

		return describe(now), len(now) == 1 && now[0].On == on
	})
}

// awaitBoots waits until the only machine has booted that often.
func (e *env) awaitBoots(want int) {
	e.await(fmt.Sprintf("%d boots", want), func() (string, bool) {
		now := e.machines()

		return fmt.Sprintf("%d boots of %s", boots(now), describe(now)), len(now) == 1 && boots(now) == want
	})
}

// awaitReplaced waits until a set has that many joined machines again, and none of them is an old one.
func (e *env) awaitReplaced(set string, size int, old ...ledger.Machine) {
	e.await("the machines are replaced: "+describe(old), func() (string, bool) {
		now := e.machines()

		return describe(now), len(now) == size && e.allJoined(now) && !slices.ContainsFunc(now, func(m ledger.Machine) bool {
			return slices.ContainsFunc(old, func(o ledger.Machine) bool { return o.ID == m.ID })
		})
	})
	e.awaitSet(set, size)
}

// allJoined reports whether Omni knows all of these machines.
func (e *env) allJoined(machines []ledger.Machine) bool {
	known := list[*omni.Machine](e)

	return !slices.ContainsFunc(machines, func(m ledger.Machine) bool {
		return !slices.ContainsFunc(known, func(k *omni.Machine) bool { return k.Metadata().ID() == lower(m.UUID) })
	})
}

// awaitError waits until the error in a request's status has all the texts.
func (e *env) awaitError(id string, texts ...string) {
	e.await(fmt.Sprintf("the error in the status of %s has %q", id, texts), func() (string, bool) {
		got := e.status(id).GetError()

		return fmt.Sprintf("%q", got), got != "" && !slices.ContainsFunc(texts, func(t string) bool { return !strings.Contains(got, t) })
	})
}

// awaitNoError waits until a request's status has no error.
func (e *env) awaitNoError(id string) {
	e.await("the status of "+id+" has no error", func() (string, bool) { return e.status(id).GetError(), e.status(id).GetError() == "" })
}

// lower brings a UUID to the form in which Omni knows it.
func lower(uuid string) string { return strings.ToLower(uuid) }
