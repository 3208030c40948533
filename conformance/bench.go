package conformance

import (
	"context"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// means is something that a case uses beyond Omni's API and the provider's process, and that not every place where cases run has.
type means string

const (
	// cloudView is a look at the cloud's machines, and cloudHand somebody who removes one, or switches it off, behind
	// the provider's back.
	cloudView means = "a look at the cloud's machines"
	cloudHand means = "a hand in the cloud"
	// bootCount says of each of the cloud's machines how often it was booted.
	bootCount means = "a count of the machines' boots"
	// simulatedOmni is an Omni whose insides the suite can reach, to hold resources and to make trouble: env.omni.
	simulatedOmni means = "a simulated Omni"
	// simulatedCloud is a cloud that keeps books and makes trouble: env.ledger and env.subject.
	simulatedCloud means = "a simulated cloud"
	// simulatedMachines can be kept from booting: env.world.
	simulatedMachines means = "simulated machines"
	// ownProcess is a provider in the suite's own process, whose calls to Omni are counted: env.writes.
	ownProcess means = "a provider in the suite's own process"
	// fakeClock is for rules that are about minutes and hours.
	fakeClock means = "hours that pass in seconds"
)

// bench is the place where a case runs: all that differs between a simulation on a fake clock and a provider's program.
type bench interface {
	// createProvider makes an infra provider in Omni and returns its service account key.
	createProvider(ctx context.Context, id string) (key string, err error)
	// launch starts a process of a provider.
	launch(id, key string) (*process, error)
}

// owner is the cloud as seen by who owns it.
type owner interface {
	// Machines returns all machines of the cloud, or all of the provider's.
	Machines() []ledger.Machine
	// DeleteMachine takes a machine away behind the provider's back.
	DeleteMachine(id string) error
}

// pace is how time passes.
type pace struct {
	// patience is how long a case waits for anything.
	patience time.Duration
	// longest limits all other waits of a case, and how long faults last.
	longest time.Duration
	// looks is how long the provider takes to look at its cloud several times; zero where longest is more than that.
	looks time.Duration
	// hang limits how long a call hangs that is to hang.
	hang time.Duration
	// poll is how often a case looks at first when it waits, and slowPoll how often when it has waited for long.
	poll, slowPoll time.Duration
	// boot and shutdown are how long simulated machines take for that.
	boot, shutdown time.Duration
}

// cut returns the time d, or as much of it as there is time for.
func (p pace) cut(d time.Duration) time.Duration { return min(d, p.longest) }

// simulation is what a case finds in a simulated world only. A case that uses a part of it says so in its means; elsewhere that
// part is nil.
type simulation struct {
	// omni is the simulated Omni.
	omni *omni.Omni
	// ledger has the books of the simulated cloud.
	ledger  *ledger.Ledger
	subject Subject
	world   *World
	// writes has the provider's calls to Omni that write.
	writes *ledger.Ledger
	// schematics is the image factory behind Omni.
	schematics *schematics
	// foreign are the machines of somebody else.
	foreign map[string]bool
}
