package oxide_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/siderolabs/image-factory/pkg/schematic"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/provider"
	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/rack"
	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	"github.com/omni-infra/omni-infra-providers/sim/factory"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	sim "github.com/omni-infra/omni-infra-providers/sim/oxide"
	"github.com/omni-infra/omni-infra-providers/sim/oxide/openapi"
)

// TestConformance is on a rack that takes its time, works on four calls at once and shows guests their UUIDs with swapped bytes.
func TestConformance(t *testing.T) { conformance.Run(t, options(slow, rich)) }

// A history costs seconds of processor time here: few are played unless more are asked for.
var histories = conformance.HistoryOptions{Seeds: 30}

func init() { histories.Flags(flag.CommandLine) }

// TestRandomHistories takes the flags -seeds, -first-seed, -steps and -history.
func TestRandomHistories(t *testing.T) { conformance.Histories(t, options(slow, rich), histories) }

// slow is a rack whose operations take a while.
var slow = sim.Options{
	InFlight: 4, SMBIOS: sim.Swapped, Latency: 20 * time.Millisecond, PageLimit: 2,
	Durations: map[string]time.Duration{
		"disk_create": 2 * time.Second, "disk_delete": time.Second, "disk_finalize_import": 3 * time.Second, "image_create": time.Second,
		"snapshot_delete": time.Second, "instance_create": 2 * time.Second, "instance_start": 3 * time.Second,
		"instance_stop": 2 * time.Second, "instance_reboot": 3 * time.Second, "instance_delete": time.Second,
	},
}

// faults are those that the rack puts into words of its own.
var faults = []ledger.FaultKind{
	ledger.NotFound, ledger.Conflict, ledger.Throttled, ledger.Unavailable, ledger.Full, ledger.Unauthorized, ledger.Echo,
}

// plain is the class data of a small machine, rich that of one with all that the provider makes.
const (
	plain = "{project: default, cpus: 2}"
	rich  = "{project: default, cpus: 2, disks: [{size: 1}], external_ips: [{kind: ephemeral, ip_version: v4}, {kind: floating, ip_version: v4}]}"
)

const token = "oxide-token-canary-4711"

func options(rack sim.Options, data string) conformance.Options {
	return conformance.Options{
		Provider: "oxide",
		Claims: []conformance.Feature{
			conformance.MatchByToken, conformance.OldOmni, conformance.Power, conformance.Reboot, conformance.Console, conformance.Replace,
			conformance.LaggingLists, conformance.ConfigPatches, conformance.OneAtATime, conformance.NextRelease,
		},
		New: func(t *testing.T, w *conformance.World) conformance.Subject {
			s := newSite(t, w, rack)

			return conformance.Subject{
				Cloud: s, Data: data, Faults: faults, CreateOp: "instance_create",
				Secrets: map[string]string{"rack's token": token}, Run: s.run("oxide"), Next: s.run("oxide, next release"),
			}
		},
	}
}

// document is Oxide's OpenAPI document, nil if it is not there. All traffic is held against it.
var document = sync.OnceValue(func() *openapi.Document {
	d, err := openapi.FromEnv()
	if err != nil {
		panic(err)
	}

	return d
})

// TestTrafficFitsTheDocument says by its skip that the traffic of the suite was not held against the document.
func TestTrafficFitsTheDocument(t *testing.T) {
	if document() == nil {
		t.Skipf("not run: %s does not name Oxide's OpenAPI document, so that the provider's traffic is not held against it", openapi.Env)
	}
}

// site is a simulated rack, and an image factory.
type site struct {
	*sim.Rack
	t       *testing.T
	factory *factory.Factory
}

func newSite(t *testing.T, w *conformance.World, opts sim.Options) *site {
	opts.Token, opts.Projects = token, []string{"default", "other"}
	opts.Boot = func(ctx context.Context, g sim.Guest) {
		w.Boot(ctx, conformance.Guest{UUID: g.UUID, UserData: string(g.Seed["user-data"])})
	}

	s := &site{Rack: sim.New(opts), t: t, factory: &factory.Factory{Images: factory.Fake{Size: 64 << 10}}}
	t.Cleanup(s.Close)

	return s
}

// transport is that of one process.
func (s *site) transport() http.RoundTripper {
	transport := s.Transport(s.Ledger().Session())
	if d := document(); d != nil {
		return d.Transport(transport, true, func(err error) { s.t.Error(err) })
	}

	return transport
}

func (s *site) run(name string) func(context.Context, conformance.Process) error {
	return func(ctx context.Context, p conformance.Process) error {
		images, err := bootasset.New(bootasset.Config{
			Factory:      "https://factory.test",
			Schematics:   &known{Schematics: bootasset.OmniSchematics{Management: p.Client.Management()}, factory: s.factory},
			HTTP:         &http.Client{Transport: factory.Transport{Handler: s.factory.Handler()}},
			RawExtension: "raw",
		})
		if err != nil {
			return err
		}

		client, err := rack.New(rack.Config{
			Credentials: rack.Credentials{Host: "https://rack.test", Token: token}, Transport: s.transport(), InFlight: 4, Logger: p.Logger,
		})
		if err != nil {
			return err
		}
		defer client.Close()

		d := provider.New(provider.Config{Rack: client, Version: "v0.0.0", Logger: p.Logger})
		defer d.Close()

		engine, err := lifecycle.New(lifecycle.Config{
			ID: p.ProviderID, Name: name, Driver: d, Schema: machine.Schema(), Images: images, Logger: p.Logger,
		})
		if err != nil {
			return err
		}

		return engine.Run(ctx, p.State)
	}
}

// known makes the schematics that Omni takes known to the factory that has the images.
type known struct {
	bootasset.Schematics
	factory *factory.Factory
}

func (k *known) EnsureSchematic(ctx context.Context, raw []byte) (string, error) {
	id, err := k.Schematics.EnsureSchematic(ctx, raw)
	if err != nil {
		return "", err
	}

	parsed, err := schematic.Unmarshal(raw)
	if err != nil {
		return "", err
	}

	if there, err := k.factory.Add(*parsed); err != nil || there != id {
		return "", fmt.Errorf("the factory calls schematic %s %s: %w", id, there, err)
	}

	return id, nil
}
