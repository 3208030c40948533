package memory_test

import (
	"context"
	"flag"
	"testing"
	"time"

	"github.com/omni-infra/omni-infra-providers/conformance"
	provider "github.com/omni-infra/omni-infra-providers/providers/memory"
	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

// The first is on a cloud of several places, the second on one that takes its time.
func TestConformance(t *testing.T)             { conformance.Run(t, zoned()) }
func TestConformanceOfASlowCloud(t *testing.T) { conformance.Run(t, options(slow, 0)) }

var histories conformance.HistoryOptions

func init() { histories.Flags(flag.CommandLine) }

// TestRandomHistories takes the flags -seeds, -first-seed, -steps and -history.
func TestRandomHistories(t *testing.T) { conformance.Histories(t, options(slow, 0), histories) }

// faults are those that the cloud puts into words of its own.
var faults = []ledger.FaultKind{
	ledger.NotFound, ledger.Conflict, ledger.Throttled, ledger.Unavailable, ledger.Full, ledger.Unauthorized, ledger.Echo,
}

// options are for a cloud whose calls take that long, and for a lease of that duration; zero means the default.
func options(durations map[cloud.Op]time.Duration, lease time.Duration) conformance.Options {
	return conformance.Options{
		Provider: "memory",
		Claims: []conformance.Feature{
			conformance.DerivedUUID, conformance.MatchByToken, conformance.OldOmni, conformance.Power, conformance.Reboot,
			conformance.Console, conformance.Replace, conformance.LaggingLists,
			conformance.ConfigPatches, conformance.OneAtATime, conformance.NextRelease,
		},
		New: func(t *testing.T, w *conformance.World) conformance.Subject {
			c := cloud.New(cloud.Options{Durations: durations, Boot: boot(w)})
			t.Cleanup(c.Close)

			return subject(c, lease, func() driver.Driver { return provider.New(c.Client()) })
		},
	}
}

// zoned are for a cloud of several places.
func zoned() conformance.Options {
	opts := options(nil, 0)
	opts.Claims = append(opts.Claims, conformance.Places)
	opts.New = func(t *testing.T, w *conformance.World) conformance.Subject {
		z := cloud.NewZones(cloud.Options{Boot: boot(w)}, "north", "south", "west")
		t.Cleanup(z.Close)

		return subject(z, 0, func() driver.Driver { return provider.NewZones(z.Clients()) })
	}

	return opts
}

// boot runs what is in a machine.
func boot(w *conformance.World) func(context.Context, cloud.VM) {
	return func(ctx context.Context, vm cloud.VM) {
		w.Boot(ctx, conformance.Guest{UUID: vm.UUID, UserData: vm.UserData})
	}
}

// subject is the provider on a cloud. connect makes the driver of one process.
func subject(c conformance.Cloud, lease time.Duration, connect func() driver.Driver) conformance.Subject {
	shown := &metrics{}

	run := func(name string) func(context.Context, conformance.Process) error {
		return func(ctx context.Context, p conformance.Process) error {
			images, err := bootasset.New(bootasset.Config{Schematics: bootasset.OmniSchematics{Management: p.Client.Management()}})
			if err != nil {
				return err
			}

			engine, err := lifecycle.New(lifecycle.Config{
				ID: p.ProviderID, Name: name, Driver: connect(), Schema: provider.Schema(), Images: images, Logger: p.Logger,
				Metrics: lifecycle.NewMetrics(shown.registry()), LeaseDuration: lease,
			})
			if err != nil {
				return err
			}

			return engine.Run(ctx, p.State)
		}
	}

	return conformance.Subject{
		Cloud: c, Data: "{cores: 2}", Faults: faults, CreateOp: string(cloud.OpCreateVM),
		Outputs: shown.texts, Run: run("Memory"), Next: run("Memory, next release"),
	}
}
