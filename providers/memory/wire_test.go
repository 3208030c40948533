package memory_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	omnires "github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/conformance/report"
	"github.com/omni-infra/omni-infra-providers/sim/memory"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// quick machines boot in no time worth mentioning.
const quick = 50 * time.Millisecond

// bin is where programs are built, a temporary directory of its own.
var bin string

func TestMain(m *testing.M) {
	code := 1

	var err error
	if bin, err = os.MkdirTemp("", "wire-test-"); err == nil {
		code = m.Run()
		err = os.RemoveAll(bin)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}

	os.Exit(code)
}

// build builds the programs that the suite over the wire needs.
var build = sync.OnceValue(func() error {
	cmd := exec.Command("go", "build", "-o", bin+"/", "./cmd/omni-infra-provider-memory",
		"github.com/omni-infra/omni-infra-providers/sim/cmd/memory-cloud")
	cmd.Stderr = os.Stderr

	return cmd.Run()
})

// startCloud runs the cloud's program, and returns its socket and its owner's side.
func startCloud(t *testing.T, boot time.Duration) (socket string, owner *memory.Owner) {
	t.Helper()
	require.NoError(t, build())

	socket = filepath.Join(t.TempDir(), "cloud")
	t.Setenv("MEMORY_CLOUD_SOCKET", socket)

	ctx, cancel := context.WithCancel(context.Background())
	serve := exec.CommandContext(ctx, filepath.Join(bin, "memory-cloud"), "serve", "--boot", boot.String())
	serve.Cancel = func() error { return serve.Process.Signal(os.Interrupt) }

	require.NoError(t, serve.Start())
	t.Cleanup(func() {
		cancel()
		_ = serve.Wait()
	})

	owner = memory.DialOwner(socket)

	require.Eventually(t, func() bool {
		_, err := owner.Machines(ctx)

		return err == nil
	}, 20*time.Second, 10*time.Millisecond, "the cloud does not come up")

	return socket, owner
}

// wire returns the suite over the wire for the provider's program, whose cloud is a program of its own with machines that take that
// long to boot.
func wire(t *testing.T, boot time.Duration, only string) (w conformance.Wire, cloud *memory.Owner) {
	t.Helper()

	socket, cloud := startCloud(t, boot)

	return conformance.Wire{
		Command: []string{filepath.Join(bin, "omni-infra-provider-memory"), "--cloud", "unix:" + socket, "--id", "{id}", "--lease-duration", "5s"},
		Hook:    filepath.Join(bin, "memory-cloud"), Provider: "wire", Data: "{cores: 2}", Only: regexp.MustCompile(only),
		Claims:   []conformance.Feature{conformance.DerivedUUID, conformance.Power, conformance.Reboot, conformance.Replace},
		Patience: time.Minute, Calm: time.Second,
		Progress: func(c report.Case) { t.Logf("%s %s %s %s %.1f s", c.ID, c.Name, c.Verdict, c.Reason, c.Seconds) },
	}, cloud
}

func text(t *testing.T, r report.Report) string {
	t.Helper()

	var b bytes.Buffer

	require.NoError(t, r.WriteText(&b))

	return b.String()
}

func requireNoMachines(t *testing.T, cloud *memory.Owner) {
	t.Helper()

	machines, err := cloud.Machines(t.Context())
	require.NoError(t, err)
	require.Empty(t, machines)
}

func TestProgramPassesOverTheWire(t *testing.T) {
	w, cloud := wire(t, quick, `^(GO-01|LC-01|DP-02|DP-06|ID-02|DT-01|DT-04|SU-03|CR-01|CR-03)$`)

	r, err := w.Run(t.Context())
	require.NoError(t, err)
	require.True(t, r.OK(), text(t, r))
	require.Equal(t, 9, r.Count(report.Pass), text(t, r))
	require.Equal(t, 1, r.Count(report.Unseen), text(t, r))
	requireNoMachines(t, cloud)
}

// served returns an Omni that is there already, on loopback.
func served(t *testing.T) (o *omni.Omni, url string) {
	t.Helper()

	var config net.ListenConfig

	api, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	machine, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)

	url = "http://" + api.Addr().String()

	o, err = omni.New(omni.Options{APIURL: url, MachineAPIURL: "grpc://" + machine.Addr().String()})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())

	var running sync.WaitGroup

	running.Go(func() { assert.NoError(t, o.Run(ctx)) })
	running.Go(func() { assert.NoError(t, o.Serve(ctx, api, machine)) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})

	return o, url
}

// left names what there is in Omni of infra providers and requests.
func left(t *testing.T, o *omni.Omni) (names []string) {
	t.Helper()

	providers, err := safe.StateListAll[*infra.Provider](t.Context(), o.State())
	require.NoError(t, err)

	for p := range providers.All() {
		names = append(names, p.Metadata().ID())
	}

	requests, err := safe.StateListAll[*infra.MachineRequest](t.Context(), o.State())
	require.NoError(t, err)

	for r := range requests.All() {
		names = append(names, r.Metadata().ID())
	}

	return names
}

func TestOmniThatIsThereAlreadyIsLeftAsItWas(t *testing.T) {
	w, cloud := wire(t, quick, `^(LC-01|OW-02|DP-06)$`)
	o, url := served(t)
	w.Remote = &conformance.Remote{URL: url, Key: o.AdminKey()}

	theirs := omnires.NewMachineClass("theirs")
	theirs.TypedSpec().Value.MatchLabels = []string{"rack=7"}
	require.NoError(t, o.State().Create(t.Context(), theirs))

	r, err := w.Run(t.Context())
	require.NoError(t, err)
	require.True(t, r.OK(), text(t, r))
	require.Equal(t, 2, r.Count(report.Pass), text(t, r))
	require.Equal(t, 1, r.Count(report.Unseen), text(t, r))

	now, err := o.State().Get(t.Context(), theirs.Metadata())
	require.NoError(t, err)
	require.Equal(t, resource.PhaseRunning, now.Metadata().Phase())
	require.Empty(t, left(t, o))
	requireNoMachines(t, cloud)
}

func TestInterruptedRunTakesBackWhatItAskedFor(t *testing.T) {
	w, cloud := wire(t, quick, `^ID-03$`)
	o, url := served(t)
	w.Remote = &conformance.Remote{URL: url, Key: o.AdminKey()}
	w.Calm = time.Minute

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	w.Progress = nil

	go func() {
		for ctx.Err() == nil {
			if machines, err := cloud.Machines(ctx); err == nil && len(machines) > 0 && machines[0].On {
				cancel()
			}

			time.Sleep(50 * time.Millisecond)
		}
	}()

	r, err := w.Run(ctx)
	require.NoError(t, err)
	require.False(t, r.OK())
	require.Contains(t, text(t, r), "interrupted")
	require.Empty(t, left(t, o))
	requireNoMachines(t, cloud)
}

// TestMachineThatIsLeftIsTakenBack has one that Omni still knows when the suite is about to remove its infra provider.
func TestMachineThatIsLeftIsTakenBack(t *testing.T) {
	w, cloud := wire(t, quick, `^DP-04$`)
	o, url := served(t)
	w.Remote = &conformance.Remote{URL: url, Key: o.AdminKey()}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	w.Progress = func(c report.Case) {
		if c.Verdict == "" {
			return
		}

		request, status := infra.NewMachineRequest("late"), infra.NewMachineRequestStatus("late")
		link := siderolink.NewLink("0c5fd7ab-3b43-4a5c-9f0e-6a4d4b1f3d01", &specs.SiderolinkSpec{NodePublicKey: "late", NodeSubnet: "fdae::1/64"})
		status.TypedSpec().Value.Id = link.Metadata().ID()
		link.Metadata().Labels().Set(omnires.LabelMachineRequest, "late")

		for _, r := range []resource.Resource{request, status, link} {
			r.Metadata().Labels().Set(omnires.LabelInfraProviderID, w.Provider)
			assert.NoError(t, o.State().Create(ctx, r))
		}

		machine := omnires.NewMachine(link.Metadata().ID()).Metadata()
		_, err := o.State().WatchFor(ctx, machine, state.WithEventTypes(state.Created))
		assert.NoError(t, err)
	}

	r, err := w.Run(ctx)
	require.NoError(t, err)
	require.True(t, r.OK(), text(t, r))
	require.Equal(t, []string{"late"}, left(t, o), "the infra provider has gone, the request is not the suite's")

	machines, err := safe.StateListAll[*omnires.Machine](ctx, o.State())
	require.NoError(t, err)
	require.Zero(t, machines.Len())
	requireNoMachines(t, cloud)
}

func TestInfraProviderOfSomebodyElseIsNotTouched(t *testing.T) {
	w, _ := wire(t, quick, `^DP-04$`)
	o, url := served(t)
	w.Remote = &conformance.Remote{URL: url, Key: o.AdminKey()}

	_, err := o.CreateProvider(t.Context(), w.Provider)
	require.NoError(t, err)

	r, err := w.Run(t.Context())
	require.NoError(t, err)
	require.Contains(t, text(t, r), `infra provider "wire" exists already`)
	require.Equal(t, []string{w.Provider}, left(t, o))

	w.Remote.Adopt = true

	r, err = w.Run(t.Context())
	require.NoError(t, err)
	require.True(t, r.OK(), text(t, r))
	require.Equal(t, []string{w.Provider}, left(t, o))
}

func TestInfraProviderStaysWhereItsRemovalWouldTakeSetsOfOthers(t *testing.T) {
	w, _ := wire(t, quick, `^DP-04$`)
	o, url := served(t)
	w.Remote = &conformance.Remote{URL: url, Key: o.AdminKey()}

	set := omnires.NewMachineRequestSet("pool")
	set.TypedSpec().Value.ProviderId = "theirs"
	require.NoError(t, o.State().Create(t.Context(), set))

	r, err := w.Run(t.Context())
	require.ErrorContains(t, err, "infra providers [wire] are left in Omni")
	require.ErrorContains(t, err, `machine request set "pool" of provider "theirs" would go with them`)
	require.True(t, r.OK(), text(t, r))
	require.Equal(t, []string{w.Provider}, left(t, o))
}

func TestSimulatedMachinesJoinInThePlaceOfTheProvidersOwn(t *testing.T) {
	// Machines that boot for longer than any case runs do not join by themselves.
	w, _ := wire(t, time.Hour, `^(LC-01|DP-01)$`)
	w.SimulateMachines = true

	r, err := w.Run(t.Context())
	require.NoError(t, err)
	require.True(t, r.OK(), text(t, r))
	require.Equal(t, 2, r.Count(report.Pass))
}
