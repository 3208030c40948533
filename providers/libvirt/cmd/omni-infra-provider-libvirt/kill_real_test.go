//go:build real

package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	resources "github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	"github.com/omni-infra/omni-infra-providers/sim/factory"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

var (
	kills    = flag.Int("kills", 20, "how often TestProviderKilledAtRandomMoments kills the provider")
	killSeed = flag.Uint64("kill-seed", 1, "draws the moments at which it is killed")
)

// The rounds of that test: so many machines each, and so many kills while they are made, switched and removed.
const (
	machinesPerRound  = 2
	killsMaking       = 2
	killsSwitching    = 1
	killsRemoving     = 2
	killsPerRound     = killsMaking + killsSwitching + killsRemoving
	killPatience      = 4 * time.Minute
	killShutdownLimit = 15 * time.Second
)

// killSites are the providers that are killed, at the same time: each has an id, a storage pool and machines of its own.
var killSites = []struct {
	id string
	// data is what a class of theirs has besides.
	data string
}{
	{"bios", "firmware: bios, network_interfaces: [{type: user}]"},
	{"disks", "firmware: bios, network_interfaces: [{type: user}], additional_disks: [{size: 1}]"},
	{"uefi", "firmware: uefi, network_interfaces: [{type: user}]"},
	{"reserved", "firmware: bios, network_interfaces: [{network_name: kills, dhcp_reservation: true}]"},
}

// TestProviderKilledAtRandomMoments kills the real program with SIGKILL, and now and then with SIGTERM, at random moments while it makes,
// switches, reboots and removes machines on a real libvirtd, and starts it again each time. At the end of each part there is exactly one
// machine for each request, and in the end nothing. virsh and the file system are the witnesses.
func TestProviderKilledAtRandomMoments(t *testing.T) {
	if besideLibvirtd(t) {
		return
	}

	require.NoError(t, os.WriteFile("/tmp/network.xml", []byte(
		"<network><name>kills</name><bridge name='kills'/><ip address='192.168.77.1' netmask='255.255.255.0'><dhcp><range start='192.168.77.2' end='192.168.77.99'/></dhcp></ip></network>"), 0o600))
	virsh(t, "net-define", "/tmp/network.xml")
	virsh(t, "net-start", "kills")

	images := httptest.NewServer(new(factory.Factory).Handler())
	defer images.Close()

	o, endpoint := serveOmniTo(t, omni.Options{FactoryURL: images.URL})
	guests := playGuests(t)

	var killed, terminated atomic.Int64

	t.Run("sites", func(t *testing.T) {
		for i, one := range killSites {
			t.Run(one.id, func(t *testing.T) {
				t.Parallel()

				key, err := o.CreateProvider(t.Context(), one.id)
				require.NoError(t, err)

				dir := filepath.Join(t.TempDir(), "pool")
				require.NoError(t, os.Mkdir(dir, 0o755))
				virsh(t, "pool-define-as", one.id, "dir", "--target", dir)
				virsh(t, "pool-start", one.id)

				s := &killSite{
					t: t, id: one.id, omni: o, dir: dir, secret: key, rng: rand.New(rand.NewPCG(*killSeed, uint64(i))), took: map[string]time.Duration{},
					data:   fmt.Sprintf("{cores: 1, memory: 128, disk_size: 1, storage_pool: %s, %s}", one.id, one.data),
					env:    []string{"OMNI_ENDPOINT=" + endpoint, "OMNI_SERVICE_ACCOUNT_KEY=" + key, "LIBVIRT_URI=qemu:///system"},
					args:   []string{"--id", one.id, "--image-factory", images.URL, "--lease-duration", "5s"},
					config: "{libvirt: {shutdown_seconds: 1}}",
				}
				defer s.stop()

				share := *kills / len(killSites)
				if i < *kills%len(killSites) {
					share++
				}

				s.round(0, 0)

				for n := 1; share > 0; n++ {
					s.round(n, min(share, killsPerRound))
					share -= killsPerRound
				}

				killed.Add(int64(s.killed))
				terminated.Add(int64(s.terminated))
			})
		}
	})

	require.EqualValues(t, *kills, killed.Load()+terminated.Load())
	t.Logf("the provider was killed %d times and terminated %d times; %d guests joined", killed.Load(), terminated.Load(), guests.Load())
	require.Empty(t, virsh(t, "list", "--all", "--name"))
	require.NotContains(t, virsh(t, "net-dumpxml", "kills"), "<host")

	for _, dir := range []string{"nvram", "save", "snapshot", "autostart"} {
		require.Empty(t, fileNames(t, "/var/lib/libvirt/qemu/"+dir))
	}

	require.Empty(t, fileNames(t, "/etc/libvirt/qemu/autostart"))
}

// killSite is a provider that is killed again and again.
type killSite struct {
	t                  *testing.T
	id, dir, data      string
	omni               *omni.Omni
	secret, config     string
	env, args          []string
	rng                *rand.Rand
	killed, terminated int
	// took is how long the parts of a round take when nobody disturbs them.
	took map[string]time.Duration

	process *killable
}

// killable is a run of the program.
type killable struct {
	cmd *exec.Cmd
	// leads is closed when it says that it acts.
	leads chan struct{}
	done  chan error

	mu  sync.Mutex
	log bytes.Buffer
}

func (s *killSite) start() {
	s.t.Helper()

	executable, err := os.Executable()
	require.NoError(s.t, err)

	file := filepath.Join(s.dir, "..", "config.yaml")
	require.NoError(s.t, os.WriteFile(file, []byte(s.config), 0o600))

	p := &killable{cmd: exec.Command(executable, append(s.args, "--config-file", file)...), leads: make(chan struct{}), done: make(chan error, 1)}
	p.cmd.Env = append([]string{asProgram + "=1", "HOME=" + filepath.Dir(s.dir)}, s.env...)

	stderr, err := p.cmd.StderrPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, p.cmd.Start())

	go func() {
		lines := bufio.NewReader(stderr)
		leads := false

		for {
			line, err := lines.ReadString('\n')

			p.mu.Lock()
			p.log.WriteString(line)
			p.mu.Unlock()

			if !leads && strings.Contains(line, "this process acts for the provider") {
				leads = true

				close(p.leads)
			}

			if err != nil {
				_, _ = io.Copy(io.Discard, stderr) // It has ended.
				p.done <- p.cmd.Wait()

				return
			}
		}
	}()

	s.process = p
}

func (p *killable) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.log.String()
}

// stop ends the program as a service manager does.
func (s *killSite) stop() {
	if s.process == nil {
		return
	}

	p := s.process
	s.process = nil

	if s.t.Failed() {
		s.t.Logf("the provider's log:\n%s", p.said())
	}

	began := time.Now()
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // It may have ended.

	select {
	case err := <-p.done:
		// Before that it has nothing to leave in order.
		if strings.Contains(p.said(), "provider is running") {
			assert.NoError(s.t, err, "%s", p.said())
			assert.Contains(s.t, p.said(), "provider has stopped")
		}
	case <-time.After(killShutdownLimit):
		_ = p.cmd.Process.Kill()

		assert.Fail(s.t, "the provider does not end", "%s after SIGTERM\n%s", time.Since(began), p.said())
	}

	s.requireDiscreet(p)
}

// kill ends the program at once.
func (s *killSite) kill() {
	p := s.process
	s.process = nil

	require.NoError(s.t, p.cmd.Process.Kill())
	require.Error(s.t, <-p.done)
	s.requireDiscreet(p)
}

func (s *killSite) requireDiscreet(p *killable) {
	require.NotContains(s.t, p.said(), s.secret)
	require.NotContains(s.t, p.said(), "jointoken=")
	require.NotContains(s.t, p.said(), "panic")
}

// disturb ends the program so many times at random moments of a part of the round, and leaves it running.
func (s *killSite) disturb(part string, times int) {
	s.t.Helper()

	for range times {
		if s.process == nil {
			s.start()
		}

		// Most moments are after it has begun to act; before, it reads Omni.
		if s.rng.IntN(10) > 0 {
			select {
			case <-s.process.leads:
			case err := <-s.process.done:
				require.Fail(s.t, "the provider has ended", "%v\n%s", err, s.process.said())
			case <-time.After(killPatience):
				require.Fail(s.t, "the provider does not act", s.process.said())
			}
		}

		moment := time.Duration(s.rng.Int64N(int64(max(s.took[part], time.Second))))

		select {
		case err := <-s.process.done:
			require.Fail(s.t, "the provider has ended", "%v\n%s", err, s.process.said())
		case <-time.After(moment):
		}

		if s.rng.IntN(5) == 0 {
			s.terminated++
			s.stop()
		} else {
			s.killed++
			s.kill()
		}

		s.t.Logf("%s: ended after %s", part, moment.Round(time.Millisecond))
	}

	if s.process == nil {
		s.start()
	}
}

// round makes, switches and removes some machines while the provider is killed so many times.
func (s *killSite) round(n, times int) {
	s.t.Helper()

	making := min(times, killsMaking)
	removing := min(times-making, killsRemoving)
	switching := times - making - removing

	var reqs []driver.Request

	for i := range machinesPerRound {
		reqs = append(reqs, s.request(fmt.Sprintf("%s-%d-%d", s.id, n, i)))
	}

	s.part("making", making, func(ctx context.Context) {
		for _, req := range reqs {
			awaitResource(ctx, s, infra.NewMachineRequestStatus(req.RequestID).Metadata(), func(status *infra.MachineRequestStatus) bool {
				return status.TypedSpec().Value.Stage == specs.MachineRequestStatusSpec_PROVISIONED
			})
		}
	})
	s.requireExactly(reqs, "running", "running")

	// The power of a machine is looked after once it has joined.
	s.await("joining", func(ctx context.Context) {
		for _, req := range reqs {
			awaitResource(ctx, s, infra.NewMachineStatus(req.Identity.UUID).Metadata(), func(status *infra.MachineStatus) bool {
				return status.TypedSpec().Value.PowerState == specs.InfraMachineStatusSpec_POWER_STATE_ON
			})
		}
	})

	s.annotate(reqs[0].RequestID, lifecycle.PowerAnnotation, "off")
	s.annotate(reqs[1].RequestID, lifecycle.RebootAnnotation, "again")
	s.part("switching", switching, func(ctx context.Context) {
		awaitResource(ctx, s, infra.NewMachineStatus(reqs[0].Identity.UUID).Metadata(), func(status *infra.MachineStatus) bool {
			return status.TypedSpec().Value.PowerState == specs.InfraMachineStatusSpec_POWER_STATE_OFF
		})
		awaitResource(ctx, s, infra.NewMachineStatus(reqs[1].Identity.UUID).Metadata(), func(status *infra.MachineStatus) bool {
			return status.TypedSpec().Value.LastRebootId == "again"
		})
	})
	s.requireExactly(reqs, "shut off", "running")

	for _, req := range reqs {
		_, err := s.omni.State().Teardown(s.t.Context(), infra.NewMachineRequest(req.RequestID).Metadata())
		require.NoError(s.t, err)
	}

	s.part("removing", removing, func(ctx context.Context) {
		for _, req := range reqs {
			md := infra.NewMachineRequest(req.RequestID).Metadata()

			_, err := s.omni.State().WatchFor(ctx, md, state.WithFinalizerEmpty())
			require.NoError(s.t, err, "%s\n%s", req.RequestID, s.process.said())
			require.NoError(s.t, s.omni.State().Destroy(ctx, md))
		}
	})
	s.requireExactly(nil)
}

// part awaits the end of a part of the round, in which the program is killed so many times.
func (s *killSite) part(name string, times int, await func(context.Context)) {
	s.t.Helper()

	began := time.Now()
	s.disturb(name, times)

	if s.took[name] == 0 {
		<-s.process.leads

		began = time.Now()
	}

	s.await(name, await)

	if s.took[name] == 0 {
		s.took[name] = time.Since(began)
		s.t.Logf("%s takes %s", name, s.took[name].Round(time.Millisecond))
	}
}

func (s *killSite) await(_ string, f func(context.Context)) {
	s.t.Helper()

	ctx, cancel := context.WithTimeout(s.t.Context(), killPatience)
	defer cancel()

	f(ctx)
}

func awaitResource[R resource.Resource](ctx context.Context, s *killSite, md resource.Pointer, want func(R) bool) {
	s.t.Helper()

	_, err := s.omni.State().WatchFor(ctx, md, state.WithCondition(func(r resource.Resource) (bool, error) {
		typed, ok := r.(R)

		return ok && want(typed), nil
	}))
	if err != nil {
		statuses, listErr := safe.StateListAll[*infra.MachineRequestStatus](context.Background(), s.omni.State())
		require.NoError(s.t, listErr)

		for status := range statuses.All() {
			s.t.Logf("%s: %s", status.Metadata().ID(), status.TypedSpec().Value)
		}

		require.NoError(s.t, err, "%s\n%s", md, s.process.said())
	}
}

func (s *killSite) request(id string) driver.Request {
	s.t.Helper()

	r := infra.NewMachineRequest(id)
	r.Metadata().Labels().Set(resources.LabelInfraProviderID, s.id)
	r.TypedSpec().Value.TalosVersion = "v1.13.5"
	r.TypedSpec().Value.ProviderData = s.data
	require.NoError(s.t, s.omni.State().Create(s.t.Context(), r))

	ref := driver.Ref{ProviderID: s.id, RequestID: id}

	return driver.Request{Ref: ref, Identity: driver.NewIdentity(ref)}
}

func (s *killSite) annotate(id, key, value string) {
	s.t.Helper()

	_, err := safe.StateUpdateWithConflicts(s.t.Context(), s.omni.State(), infra.NewMachineRequest(id).Metadata(), func(r *infra.MachineRequest) error {
		r.Metadata().Annotations().Set(key, value)

		return nil
	})
	require.NoError(s.t, err)
}

// sweepImages takes away the boot images that nothing uses, as the provider does after a day.
func (s *killSite) sweepImages() {
	s.t.Helper()

	h := hypervisor.New(hypervisor.Config{ImageMaxAge: -1})
	defer h.Close()

	require.NoError(s.t, h.SweepImages(s.t.Context(), s.id))
}

// requireExactly looks whether the hypervisor has the machines of these requests, in these states, and nothing else of the site.
func (s *killSite) requireExactly(reqs []driver.Request, states ...string) {
	s.t.Helper()

	var domains, volumes, nvram, reserved []string

	for i, req := range reqs {
		n := machine.NamesOf(req.Ref)
		domains = append(domains, n.Domain)
		volumes = append(volumes, n.Root, n.Seed)

		if strings.Contains(s.data, "additional_disks") {
			volumes = append(volumes, n.Disk(0))
		}

		if strings.Contains(s.data, "uefi") {
			nvram = append(nvram, n.Domain+"_VARS.fd")
		}

		if strings.Contains(s.data, "dhcp_reservation") {
			reserved = append(reserved, req.Identity.MAC(0).String())
		}

		require.Equal(s.t, req.Identity.UUID, virsh(s.t, "domuuid", n.Domain))
		require.Equal(s.t, states[i], virsh(s.t, "domstate", n.Domain))
		require.NotContains(s.t, virsh(s.t, "dumpxml", "--security-info", n.Domain), "jointoken")

		seed, err := os.Stat(filepath.Join(s.dir, n.Seed))
		require.NoError(s.t, err)
		require.Equal(s.t, os.FileMode(0o600), seed.Mode().Perm())
	}

	isMine := func(name string) bool { return strings.HasPrefix(name, s.id+"-") }
	require.ElementsMatch(s.t, domains, only(strings.Fields(virsh(s.t, "list", "--all", "--name")), isMine))
	require.ElementsMatch(s.t, nvram, only(fileNames(s.t, "/var/lib/libvirt/qemu/nvram"), isMine))

	if len(reqs) == 0 {
		s.sweepImages()
	}

	images := 0

	for _, name := range fileNames(s.t, s.dir) {
		if strings.HasPrefix(name, "omni-image-") {
			images++

			continue
		}

		require.Contains(s.t, volumes, name)
	}

	require.Subset(s.t, fileNames(s.t, s.dir), volumes)

	if len(reqs) > 0 {
		require.Equal(s.t, 2, images, "the image's bytes, and what points to them")
	} else {
		require.Zero(s.t, images, fileNames(s.t, s.dir))
	}

	if strings.Contains(s.data, "dhcp_reservation") {
		for _, which := range []string{"--inactive", ""} {
			var kept []string

			for line := range strings.Lines(virsh(s.t, append([]string{"net-dumpxml", "kills"}, strings.Fields(which)...)...)) {
				if _, after, ok := strings.Cut(line, "<host mac='"); ok {
					kept = append(kept, after[:17])
				}
			}

			require.ElementsMatch(s.t, reserved, kept)
		}
	}
}

func only(names []string, is func(string) bool) []string {
	return slices.DeleteFunc(names, func(name string) bool { return !is(name) })
}
