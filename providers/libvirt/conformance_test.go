//go:build !real

// With the tag "real" all tests here run beside a real libvirtd, and those on the simulated one would only run twice.

package libvirt_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/siderolabs/image-factory/pkg/schematic"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connectiontest"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	"github.com/omni-infra/omni-infra-providers/sim/factory"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	sim "github.com/omni-infra/omni-infra-providers/sim/libvirt"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
)

func TestConformance(t *testing.T) { conformance.Run(t, options("libvirt", "hypervisor")) }

func TestConformanceOfThreeHosts(t *testing.T) {
	opts := options("libvirt-three-hosts", "a", "b", "c")
	opts.Claims = append(opts.Claims, conformance.Places)

	conformance.Run(t, opts)
}

var histories conformance.HistoryOptions

func init() { histories.Flags(flag.CommandLine) }

// TestRandomHistories takes the flags -seeds, -first-seed, -steps and -history.
func TestRandomHistories(t *testing.T) {
	conformance.Histories(t, options("libvirt", "hypervisor"), histories)
}

// faults are those that libvirt puts into words of its own.
var faults = []ledger.FaultKind{
	ledger.NotFound, ledger.Conflict, ledger.Unavailable, ledger.Full, ledger.Unauthorized, ledger.Echo,
}

func options(name string, hosts ...string) conformance.Options {
	return conformance.Options{
		Provider: name,
		Claims: []conformance.Feature{
			conformance.DerivedUUID, conformance.MatchByToken, conformance.OldOmni, conformance.Power, conformance.Reboot,
			conformance.Console, conformance.Replace, conformance.LaggingLists,
			conformance.ConfigPatches, conformance.OneAtATime, conformance.NextRelease,
		},
		New: func(t *testing.T, w *conformance.World) conformance.Subject {
			s := newSite(t, w, hosts...)

			return conformance.Subject{
				Cloud: s, Data: "{cores: 2, memory: 2048, disk_size: 10, placement: spread}", Faults: faults, CreateOp: "Connect.DomainDefineXMLFlags",
				Run: s.run("libvirt"), Next: s.run("libvirt, next release"),
			}
		},
	}
}

// site is some simulated hypervisors that share their books, and an image factory.
type site struct {
	ledger  *ledger.Ledger
	names   []string
	hosts   []*sim.Hypervisor
	factory *factory.Factory
}

func newSite(t *testing.T, w *conformance.World, names ...string) *site {
	s := &site{ledger: ledger.New(), names: names, factory: &factory.Factory{Images: factory.Fake{Size: 64 << 10}}}

	for _, name := range names {
		h := sim.New(sim.Options{
			Hostname: name, Ledger: s.ledger, Host: sim.Host{Memory: 1 << 20}, ShutdownTime: time.Second,
			Boot:  func(ctx context.Context, g sim.Guest) { boot(ctx, w, g) },
			Enter: enter,
		})
		t.Cleanup(h.Close)

		s.hosts = append(s.hosts, h)
	}

	return s
}

// enter tells the volumes of images, which are there for all machines, from those of one machine.
func enter(o ledger.Object) ledger.Object {
	if o.Kind == "volume" && strings.HasPrefix(o.Name, "omni-image-") {
		o.Kind, o.Keep = "image"+path.Ext(o.Name), true
	}

	return o
}

// boot runs what is in the machine's seed, as Talos' own image does.
func boot(ctx context.Context, w *conformance.World, g sim.Guest) {
	guest := conformance.Guest{UUID: g.UUID}

	if files, err := talos.OpenISO(bytes.NewReader(g.Seed)); err == nil {
		guest.UserData = string(talos.ReadSeed(files).UserData)
	}

	w.Boot(ctx, guest)
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

		config := provider.Config{Logger: p.Logger}

		for i, h := range s.hosts {
			config.Hosts = append(config.Hosts, hypervisor.Config{
				Config: connection.Config{Open: connectiontest.Open(h.Client())}, Name: s.names[i], Version: "v0.0.0",
			})
		}

		d := provider.New(config)
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

func (s *site) Ledger() *ledger.Ledger { return s.ledger }

func (s *site) Machines() []ledger.Machine {
	var all []ledger.Machine

	for i, h := range s.hosts {
		for _, m := range h.Machines() {
			m.Place = s.names[i]
			all = append(all, m)
		}
	}

	return all
}

func (s *site) Places() []string { return s.names }

// CutPlace ends a host's daemon, or freezes it.
func (s *site) CutPlace(name string, silent bool) (restore func(), err error) {
	h := s.hosts[slices.Index(s.names, name)]

	if silent {
		h.Freeze()

		return h.Thaw, nil
	}

	h.StopDaemon()

	return h.StartDaemon, nil
}

// on calls f with the host that has the object of that id.
func (s *site) on(id string, f func(*sim.Hypervisor) error) error {
	for i, h := range s.hosts {
		if strings.HasPrefix(id, s.names[i]+":") {
			return f(h)
		}
	}

	return fmt.Errorf("no host has %q", id)
}

func (s *site) DeleteMachine(id string) error {
	return s.on(id, func(h *sim.Hypervisor) error { return h.DeleteMachine(id) })
}

func (s *site) SwitchOff(id string) error {
	return s.on(id, func(h *sim.Hypervisor) error { return h.SwitchOff(id) })
}

func (s *site) HideMachine(id string, lists int) {
	_ = s.on(id, func(h *sim.Hypervisor) error { h.HideMachine(id, lists); return nil })
}

// AddForeign makes the object on every host, so that it is in the way wherever that is.
func (s *site) AddForeign(kind, name string) (id string, err error) {
	for _, h := range s.hosts {
		if id, err = h.AddForeign(kind, name); err != nil {
			return "", err
		}
	}

	return id, nil
}
