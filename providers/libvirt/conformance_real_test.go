//go:build real

package libvirt_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/libvirtdtest"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	"github.com/omni-infra/omni-infra-providers/sim/factory"
)

const uri = "qemu:///system"

// TestMain runs the tests of this build tag beside a libvirtd of their own: see lab/private-libvirtd.sh.
func TestMain(m *testing.M) { libvirtdtest.Main(m, "lab/private-libvirtd.sh") }

var how = conformance.Real{Where: "on libvirtd with QEMU", Parallel: 8, Points: 4, Patience: 5 * time.Minute, Hang: 25 * time.Second}

func init() {
	flag.IntVar(&how.Parallel, "cases", how.Parallel, "how many cases are played at once")
	flag.IntVar(&how.Points, "points", how.Points, "how many points of each generated case are played")
	flag.Uint64Var(&how.Seed, "seed", how.Seed, "which points are drawn")
	flag.DurationVar(&how.Patience, "patience", how.Patience, "how long anything is waited for")
}

// claims are the provider's. That lists lag behind is nothing that libvirt does.
var claims = []conformance.Feature{
	conformance.DerivedUUID, conformance.MatchByToken, conformance.OldOmni, conformance.Power, conformance.Reboot,
	conformance.Console, conformance.Replace, conformance.ConfigPatches, conformance.OneAtATime, conformance.NextRelease,
}

// TestConformanceOnRealLibvirt plays the suite on a libvirtd with QEMU.
func TestConformanceOnRealLibvirt(t *testing.T) {
	t.Parallel()
	warmUp(t, uri)

	conformance.RunReal(t, conformance.Options{
		Provider: "libvirt", Claims: claims, New: newSubject,
	}, how)

	requireNothing(t, uri)
}

// TestConformanceOnThreeRealHosts plays on three daemons what is about several places, and of the rest what several hosts may break:
// to make a machine, to remove it, to go on with one that was half made, and to notice one that has gone, each of which has to look
// on all of them. Only one goes at a time: a host that loses several, and has no other, is doubted for longer than is waited for here.
// It is mostly waiting, for a place that does not answer, and so goes on beside the other.
func TestConformanceOnThreeRealHosts(t *testing.T) {
	t.Parallel()

	all := map[string]string{"a": daemon(t), "b": daemon(t), "c": daemon(t)}

	for _, uri := range all {
		warmUp(t, uri)
	}

	on := how
	on.Where, on.Only = "on three libvirtds with QEMU", regexp.MustCompile(`^(PL-.*|LC-01|DP-01|CR-03|VA-04)$`)

	conformance.RunReal(t, conformance.Options{
		Provider: "libvirt", Claims: append([]conformance.Feature{conformance.Places}, claims...),
		New: func(t *testing.T, w *conformance.World) conformance.Subject { return subjectOn(newHosts(t, w, all)) },
	}, on)

	for _, uri := range all {
		requireNothing(t, uri)
	}
}

func requireNothing(t *testing.T, uri string) {
	t.Helper()

	require.Empty(t, strings.TrimSpace(virshAt(t, uri, "list", "--all", "--name")), "domains are left")
	require.Empty(t, strings.TrimSpace(virshAt(t, uri, "pool-list", "--all", "--name")), "storage pools are left")
}

// warmUp makes and removes a machine: the first one takes libvirt long, as it has to find out what QEMU can do. Libvirt's event loop
// runs afterwards.
func warmUp(t *testing.T, uri string) {
	t.Helper()

	first, err := connection.Real(uri)
	require.NoError(t, err)

	defer func() { _, _ = first.Close() }()

	virsh := func(args ...string) { virshAt(t, uri, args...) }

	path := filepath.Join(t.TempDir(), "domain.xml")
	require.NoError(t, os.WriteFile(path, []byte("<domain type='qemu'><name>first</name><memory unit='MiB'>64</memory>"+
		"<os><type arch='x86_64' machine='q35'>hvm</type></os><cpu mode='maximum'/></domain>"), 0o600))

	virsh("domcapabilities", "--machine", "q35")
	virsh("define", path)
	virsh("start", "first")
	virsh("destroy", "first")
	virsh("undefine", "first")
}

// virshAt is a witness without any of our code.
func virshAt(t *testing.T, uri string, args ...string) string {
	t.Helper()

	out, err := exec.CommandContext(t.Context(), "virsh", append([]string{"--connect", uri, "--quiet"}, args...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)

	return string(out)
}

// The provider's patience, which fits that of the suite: a call that hangs, hangs longer.
const (
	callTimeout = 20 * time.Second
	leaseTime   = 3 * time.Second
	// shutdownTimeout is short, as nobody in the machines hears the power button.
	shutdownTimeout = time.Second
)

func newSubject(t *testing.T, w *conformance.World) conformance.Subject {
	t.Helper()

	return subjectOn(newHosts(t, w, map[string]string{"": uri}))
}

func subjectOn(on *hosts) conformance.Subject {
	run := func(version string) func(context.Context, conformance.Process) error {
		return func(ctx context.Context, p conformance.Process) error {
			images, err := bootasset.New(bootasset.Config{
				Schematics:   bootasset.OmniSchematics{Management: p.Client.Management()},
				HTTP:         &http.Client{Transport: factory.Transport{Handler: http.HandlerFunc(serveImage)}},
				RawExtension: "raw",
			})
			if err != nil {
				return err
			}

			config := provider.Config{Logger: p.Logger}

			for _, c := range on.all {
				config.Hosts = append(config.Hosts, hypervisor.Config{
					Config: connection.Config{URI: c.uri, CallTimeout: callTimeout, Open: opener(c)}, Name: c.place,
					Version: version, ShutdownTimeout: shutdownTimeout,
				})
			}

			d := provider.New(config)
			defer d.Close()

			engine, err := lifecycle.New(lifecycle.Config{
				ID: p.ProviderID, Name: "libvirt " + version, Driver: d, Schema: machine.Schema(), Images: images, Logger: p.Logger,
				CallTimeout: 2 * callTimeout, LeaseDuration: leaseTime, PollInterval: 5 * time.Second, HeartbeatInterval: 5 * time.Second,
			})
			if err != nil {
				return err
			}

			return engine.Run(ctx, p.State)
		}
	}

	return conformance.Subject{
		Cloud: on, Faults: wordsFor, CreateOp: "Connect.DomainDefineXMLFlags",
		Data: fmt.Sprintf("{cores: 1, memory: 128, disk_size: 1, storage_pool: %s, firmware: bios, network_interfaces: [{type: user}]}", on.all[0].pool),
		Run:  run("v1.0.0"), Next: run("v1.1.0"),
	}
}

// serveImage serves an image on which a firmware finds nothing to boot, whatever image it is asked for.
func serveImage(w http.ResponseWriter, _ *http.Request) {
	image := make([]byte, 1<<20)
	copy(image, "an image")

	w.Header().Set("Content-Length", fmt.Sprint(len(image)))
	_, _ = w.Write(image) // Whoever has gone is told nothing.
}
