//go:build real

package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/clustertest"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	"github.com/omni-infra/omni-infra-providers/sim/factory"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/controlplane"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
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
	killShutdownLimit = time.Minute
)

// killSites are the providers that are killed, at the same time: each has an id, a namespace and machines of its own.
var killSites = []struct {
	id string
	// data is what a class of theirs has besides.
	data string
}{
	{"plain", ""},
	{"disks", ", additional_disks: [{size: 1}, {size: 2}]"},
	{"manual", ", run_strategy: Manual"},
	{"rerun", ", run_strategy: RerunOnFailure"},
}

// TestProviderKilledAtRandomMoments kills the real program with SIGKILL, and now and then with SIGTERM, at random moments while it makes,
// switches, reboots and removes machines on a real Kubernetes API server, and starts it again each time. At the end of each part there is
// exactly one machine for each request, and in the end nothing but the image. The API server is the witness.
func TestProviderKilledAtRandomMoments(t *testing.T) {
	images := httptest.NewServer((&factory.Factory{Images: factory.Fake{Size: 64 << 10}}).Handler())
	defer images.Close()

	o, endpoint := serveOmniTo(t, omni.Options{FactoryURL: images.URL})

	var booted, killed, terminated atomic.Int64

	cluster, err := clustertest.Start(kubevirt.ControllerOptions{Virt: virt.Options{Boot: func(ctx context.Context, g virt.Guest) {
		booted.Add(1)

		_ = (&talos.Machine{UUID: g.UUID, UserData: g.UserData, BootTime: 100 * time.Millisecond}).Run(ctx) // It ends with the machine.
	}}})
	require.NoError(t, err)

	defer func() { require.NoError(t, cluster.Close()) }()

	admin, err := dynamic.NewForConfig(cluster.Admin())
	require.NoError(t, err)

	// They wait most of the time: all play at once, however many tests may.
	var sites sync.WaitGroup

	for i, one := range killSites {
		sites.Go(func() {
			t.Run(one.id, func(t *testing.T) {
				key, err := o.CreateProvider(t.Context(), one.id)
				require.NoError(t, err)

				namespace, account, err := cluster.NewNamespace(t.Context())
				require.NoError(t, err)

				dir := t.TempDir()
				kubeconfig := filepath.Join(dir, "kubeconfig")
				writeKubeconfig(t, kubeconfig, account)

				during, done := cluster.During(t.Context())
				defer done()

				s := &killSite{
					t: t, during: during, id: one.id, omni: o, dir: dir, secrets: []string{key, account.BearerToken, "jointoken="}, admin: admin, namespace: namespace,
					rng: rand.New(rand.NewPCG(*killSeed, uint64(i))), took: map[string]time.Duration{},
					data: fmt.Sprintf("{cores: 1, memory: 2048, disk_size: 10%s}", one.data),
					env:  []string{"OMNI_ENDPOINT=" + endpoint, "OMNI_SERVICE_ACCOUNT_KEY=" + key},
					args: []string{
						"--id", one.id, "--image-factory", images.URL, "--lease-duration", "5s", "--kubeconfig-file", kubeconfig, "--namespace", namespace,
					},
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
		})
	}

	sites.Wait()

	require.EqualValues(t, *kills, killed.Load()+terminated.Load())
	t.Logf("the provider was killed %d times and terminated %d times; %d guests were booted", killed.Load(), terminated.Load(), booted.Load())
}

// writeKubeconfig writes how an account reaches the API server.
func writeKubeconfig(t *testing.T, path string, account *rest.Config) {
	t.Helper()

	config := clientcmdapi.NewConfig()
	config.Clusters["real"] = &clientcmdapi.Cluster{Server: account.Host, CertificateAuthorityData: account.CAData}
	config.AuthInfos["provider"] = &clientcmdapi.AuthInfo{Token: account.BearerToken}
	config.Contexts["provider"] = &clientcmdapi.Context{Cluster: "real", AuthInfo: "provider"}
	config.CurrentContext = "provider"

	require.NoError(t, clientcmd.WriteToFile(*config, path))
}

// killSite is a provider that is killed again and again.
type killSite struct {
	t *testing.T
	// during ends with the test and with the cluster.
	during             context.Context
	id, dir, data      string
	omni               *omni.Omni
	admin              dynamic.Interface
	namespace          string
	secrets            []string
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
	// leads is closed when it says that it acts, and done when it has ended.
	leads chan struct{}
	done  <-chan struct{}

	mu  sync.Mutex
	log bytes.Buffer
}

// Write takes what the program logs.
func (p *killable) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	led := bytes.Contains(p.log.Bytes(), leadsText)
	p.log.Write(text)

	if !led && bytes.Contains(p.log.Bytes(), leadsText) {
		close(p.leads)
	}

	return len(text), nil
}

// leadsText is in the line with which the program says that it acts.
var leadsText = []byte("this process acts for the provider")

func (s *killSite) start() {
	s.t.Helper()

	executable, err := os.Executable()
	require.NoError(s.t, err)

	p := &killable{cmd: exec.Command(executable, s.args...), leads: make(chan struct{})}
	p.cmd.Env = append([]string{asProgram + "=1", "HOME=" + s.dir}, s.env...)
	p.cmd.Stderr = p

	p.done, err = controlplane.StartProgram(p.cmd)
	require.NoError(s.t, err)

	s.process = p
}

// awaitLeads waits until the program says that it acts, which it must not end before.
func (s *killSite) awaitLeads() {
	s.t.Helper()

	select {
	case <-s.process.leads:
	case <-s.process.done:
		require.Fail(s.t, "the provider has ended", "%s\n%s", s.process.cmd.ProcessState, s.process.said())
	case <-s.during.Done():
		require.Fail(s.t, "the cluster has ended", "%v", context.Cause(s.during))
	case <-time.After(killPatience):
		require.Fail(s.t, "the provider does not act", s.process.said())
	}
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
	case <-p.done:
		// Before that it has nothing to leave in order.
		if strings.Contains(p.said(), "provider is running") {
			assert.True(s.t, p.cmd.ProcessState.Success(), "%s\n%s", p.cmd.ProcessState, p.said())
			assert.Contains(s.t, p.said(), "provider has stopped")
		}
	case <-time.After(killShutdownLimit):
		_ = p.cmd.Process.Kill()
		<-p.done

		assert.Fail(s.t, "the provider does not end", "%s after SIGTERM\n%s", time.Since(began), p.said())
	}

	s.requireDiscreet(p)
}

// kill ends the program at once.
func (s *killSite) kill() {
	p := s.process
	s.process = nil

	require.NoError(s.t, p.cmd.Process.Kill())
	<-p.done
	require.False(s.t, p.cmd.ProcessState.Success())
	s.requireDiscreet(p)
}

func (s *killSite) requireDiscreet(p *killable) {
	for _, secret := range s.secrets {
		require.NotContains(s.t, p.said(), secret)
	}

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
			s.awaitLeads()
		}

		moment := time.Duration(s.rng.Int64N(int64(max(s.took[part], time.Second))))

		select {
		case <-s.process.done:
			require.Fail(s.t, "the provider has ended", "%s\n%s", s.process.cmd.ProcessState, s.process.said())
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
	s.requireExactly(reqs, true, true)

	// The power of a machine is looked after once it has joined.
	s.await(func(ctx context.Context) {
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
	s.requireExactly(reqs, false, true)

	for _, req := range reqs {
		_, err := s.omni.State().Teardown(s.t.Context(), infra.NewMachineRequest(req.RequestID).Metadata())
		require.NoError(s.t, err)
	}

	s.part("removing", removing, func(ctx context.Context) {
		for _, req := range reqs {
			md := infra.NewMachineRequest(req.RequestID).Metadata()

			_, err := s.omni.State().WatchFor(ctx, md, state.WithFinalizerEmpty())
			require.NoError(s.t, err, "%s: %v\n%s", req.RequestID, context.Cause(ctx), s.process.said())
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
		s.awaitLeads()

		began = time.Now()
	}

	s.await(await)

	if s.took[name] == 0 {
		s.took[name] = time.Since(began)
		s.t.Logf("%s takes %s", name, s.took[name].Round(time.Millisecond))
	}
}

// await gives f the time that anything may take; it ends with the provider and with the cluster, too.
func (s *killSite) await(f func(context.Context)) {
	s.t.Helper()

	ctx, cancel := context.WithTimeout(s.during, killPatience)
	defer cancel()

	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)

	process, awaited := s.process, make(chan struct{})
	defer close(awaited)

	go func() {
		select {
		case <-process.done:
			end(fmt.Errorf("the provider has ended: %s", process.cmd.ProcessState))
		case <-awaited:
		}
	}()

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

		require.NoError(s.t, err, "%s: %v\n%s", md, context.Cause(ctx), s.process.said())
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

// requireExactly looks whether the namespace has the machines of these requests, on or off, and nothing else but the image that they are
// made from.
func (s *killSite) requireExactly(reqs []driver.Request, on ...bool) {
	s.t.Helper()

	var machines, instances, volumes, secrets []string

	for i, req := range reqs {
		n := machine.NamesOf(req.Ref)
		machines, volumes, secrets = append(machines, n.VM), append(volumes, n.Root), append(secrets, n.Secret)

		if on[i] {
			instances = append(instances, n.VM)
		}

		for disk := range strings.Count(s.data, "{size:") {
			volumes = append(volumes, n.Disk(disk))
		}
	}

	s.requireInstances(instances)

	core := schema.GroupVersion{Version: "v1"}

	for _, one := range []struct {
		resource schema.GroupVersionResource
		want     []string
		images   int
	}{
		{schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}, machines, 0},
		{schema.GroupVersionResource{Group: "cdi.kubevirt.io", Version: "v1beta1", Resource: "datavolumes"}, volumes, 1},
		{core.WithResource("persistentvolumeclaims"), volumes, 1},
		{core.WithResource("secrets"), secrets, 0},
	} {
		all, err := s.admin.Resource(one.resource).Namespace(s.namespace).List(s.t.Context(), metav1.ListOptions{})
		require.NoError(s.t, err)

		var names []string

		images := 0

		for _, o := range all.Items {
			if o.GetLabels()[machine.LabelImage] != "" {
				images++
			} else {
				names = append(names, o.GetName())
			}

			s.requireMachine(reqs, o)
		}

		require.ElementsMatch(s.t, one.want, names, one.resource.Resource)
		require.Equal(s.t, one.images, images, "images among %s", one.resource.Resource)
	}
}

// requireInstances waits until just these machines run: an instance that has been switched off may be there for a moment yet, and that of a
// machine which is restarted comes after the old one.
func (s *killSite) requireInstances(want []string) {
	s.t.Helper()

	resource := schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}

	require.EventuallyWithT(s.t, func(t *assert.CollectT) {
		all, err := s.admin.Resource(resource).Namespace(s.namespace).List(s.t.Context(), metav1.ListOptions{})
		if !assert.NoError(t, err) {
			return
		}

		var names []string

		for _, o := range all.Items {
			names = append(names, o.GetName())

			phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
			assert.Equal(t, "Running", phase, o.GetName())
		}

		assert.ElementsMatch(t, want, names)
	}, killPatience, 200*time.Millisecond)
}

// requireMachine holds a machine to the UUID of its request, and all but Secrets to showing no token.
func (s *killSite) requireMachine(reqs []driver.Request, o unstructured.Unstructured) {
	s.t.Helper()

	if o.GetKind() != "Secret" {
		text, err := o.MarshalJSON()
		require.NoError(s.t, err)
		require.NotContains(s.t, string(text), "jointoken")
	}

	for _, req := range reqs {
		if o.GetKind() == "VirtualMachine" && o.GetName() == machine.NamesOf(req.Ref).VM {
			uuid, _, err := unstructured.NestedString(o.Object, "spec", "template", "spec", "domain", "firmware", "uuid")
			require.NoError(s.t, err)
			require.Equal(s.t, req.Identity.UUID, uuid)
		}
	}
}
