package kubevirt_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	kubevirtv1 "kubevirt.io/api/core/v1"
	kubevirtclient "kubevirt.io/client-go/kubevirt"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/definitions"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
)

// diskless is a machine that boots from a container disk, which takes no time.
func diskless(name string, strategy kubevirtv1.VirtualMachineRunStrategy) *kubevirtv1.VirtualMachine {
	return machine(name, func(vm *kubevirtv1.VirtualMachine) {
		vm.Spec.RunStrategy, vm.Spec.DataVolumeTemplates = &strategy, nil
		vm.Spec.Template.Spec.Volumes[0].VolumeSource = kubevirtv1.VolumeSource{
			ContainerDisk: &kubevirtv1.ContainerDiskSource{Image: "registry.example/talos:v1"},
		}
	})
}

// call puts to a subresource and returns the status code and the message of an error.
func (w *world) call(kind, name, verb, body string) (int, string) {
	w.Helper()

	request := w.core.CoreV1().RESTClient().Put().AbsPath(fmt.Sprintf("/apis/subresources.kubevirt.io/v1/namespaces/%s/%s/%s/%s", ns, kind, name, verb))
	if body != "" {
		request = request.Body([]byte(body))
	}

	var code int

	result := request.Do(w.Context())
	result.StatusCode(&code)

	if err := result.Error(); err != nil {
		status, ok := err.(apierrors.APIStatus) //nolint:errorlint // It is what the client returns.
		require.True(w, ok, "%v", err)

		return code, status.Status().Message
	}

	return code, ""
}

func (w *world) instance(name string) *kubevirtv1.VirtualMachineInstance {
	vmi, err := w.virt.KubevirtV1().VirtualMachineInstances(ns).Get(w.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}

	require.NoError(w, err)

	return vmi
}

func TestSubresourcesAnswerAsVirtAPIDoes(t *testing.T) {
	const vms, vmis = "virtualmachines", "virtualmachineinstances"

	for name, tt := range map[string]struct {
		strategy         kubevirtv1.VirtualMachineRunStrategy
		kind, verb, body string
		code             int
		message          string
		want             string // printableStatus
	}{
		"start of a halted machine":            {"Halted", vms, "start", "", 202, "", "Running"},
		"start of a manual machine":            {"Manual", vms, "start", "{}", 202, "", "Running"},
		"start, paused, of a halted machine":   {"Halted", vms, "start", `{"paused":true}`, 202, "", "Paused"},
		"start, dry":                           {"Halted", vms, "start", `{"dryRun":["All"]}`, 202, "", "Stopped"},
		"start of a running machine":           {"Always", vms, "start", "", 409, `Operation cannot be fulfilled on virtualmachine.kubevirt.io "a": VM is already running`, "Running"},
		"stop of a running machine":            {"Always", vms, "stop", "", 202, "", "Stopped"},
		"stop of a machine that is off":        {"Halted", vms, "stop", "", 409, `Operation cannot be fulfilled on virtualmachine.kubevirt.io "a": VM is not running`, "Stopped"},
		"stop of a manual machine that is off": {"Manual", vms, "stop", "", 409, `Operation cannot be fulfilled on virtualmachine.kubevirt.io "a": VM is not running`, "Stopped"},
		"restart of a running machine":         {"Always", vms, "restart", "", 202, "", "Running"},
		"restart by force":                     {"Always", vms, "restart", `{"gracePeriodSeconds":0}`, 202, "", "Running"},
		"restart by force, but gently":         {"Always", vms, "restart", `{"gracePeriodSeconds":5}`, 400, "For force restart, only gracePeriod=0 is supported for now", "Running"},
		"restart of a halted machine":          {"Halted", vms, "restart", "", 409, `Operation cannot be fulfilled on virtualmachine.kubevirt.io "a": RunStategy Halted does not support manual restart requests`, "Stopped"},
		"restart of a manual machine, off":     {"Manual", vms, "restart", "", 409, `Operation cannot be fulfilled on virtualmachine.kubevirt.io "a": VM is not running: Halted`, "Stopped"},
		"pause":                                {"Always", vmis, "pause", "", 200, "", "Paused"},
		"unpause of what is not paused":        {"Always", vmis, "unpause", "", 409, `Operation cannot be fulfilled on virtualmachineinstance.kubevirt.io "a": VMI is not paused`, "Running"},
		"pause of a machine that is off":       {"Halted", vmis, "pause", "", 404, `virtualmachineinstance.kubevirt.io "a" not found`, "Stopped"},
		"soft reboot":                          {"Always", vmis, "softreboot", "", 200, "", "Running"},
		"reset":                                {"Always", vmis, "reset", "", 200, "", "Running"},
		"soft reboot of a machine that is off": {"Halted", vmis, "softreboot", "", 404, `virtualmachineinstance.kubevirt.io "a" not found`, "Stopped"},
		"body that is none":                    {"Halted", vms, "start", "[", 400, "Can not unmarshal Request body to struct, error: error converting YAML to JSON: yaml: line 1: did not find expected node content", "Stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := kubevirt.Options{}
				opts.Virt.Boot = newGuests().boot
				w := start(t, opts)
				w.create(diskless("a", tt.strategy))
				after(time.Second)

				code, message := w.call(tt.kind, "a", tt.verb, tt.body)
				require.Equal(t, tt.message, message)
				require.Equal(t, tt.code, code)
				after(2 * time.Minute)
				require.Equal(t, tt.want, w.status("a"), w.Ledger().History())
				require.Empty(t, w.machine("a").Status.StateChangeRequests)
			})
		})
	}
}

func TestUnknownMachineIsNotFoundBySubresources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})

		code, message := w.call("virtualmachines", "none", "start", "")
		require.Equal(t, http.StatusNotFound, code)
		require.Equal(t, `virtualmachine.kubevirt.io "none" not found`, message)
	})
}

func TestRestartMakesANewInstanceAndResetNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuests()
		opts := kubevirt.Options{}
		opts.Virt.Boot = g.boot
		w := start(t, opts)
		w.create(diskless("a", "Always"))
		after(time.Second)

		first := w.instance("a").UID

		w.call("virtualmachineinstances", "a", "reset", "")
		after(time.Second)
		require.Equal(t, first, w.instance("a").UID)
		require.Equal(t, 2, w.Machines()[0].Boots)

		w.call("virtualmachines", "a", "restart", "")
		after(time.Minute)
		require.NotEqual(t, first, w.instance("a").UID)
		require.Equal(t, 3, w.Machines()[0].Boots)

		a, b := <-g.booted, <-g.booted
		require.Equal(t, a.UUID, b.UUID)
		require.Equal(t, a.MACs, b.MACs)
	})
}

func TestGuestThatLeavesIsRestartedAsItsStrategySays(t *testing.T) {
	for name, tt := range map[string]struct {
		strategy kubevirtv1.VirtualMachineRunStrategy
		crash    bool
		boots    int
		want     string
	}{
		"always, shut down":           {"Always", false, 2, "Running"},
		"always, crashed":             {"Always", true, 2, "Running"},
		"rerun on failure, shut down": {"RerunOnFailure", false, 1, "Stopped"},
		"rerun on failure, crashed":   {"RerunOnFailure", true, 2, "Running"},
		"once, shut down":             {"Once", false, 1, "Stopped"},
		"once, crashed":               {"Once", true, 1, "Stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				boots := 0
				opts := kubevirt.Options{}
				opts.Virt.Boot = func(ctx context.Context, g virt.Guest) {
					if boots++; boots > 1 {
						<-ctx.Done()

						return
					}

					time.Sleep(time.Minute)

					if tt.crash {
						g.Crash()
					}
				}
				w := start(t, opts)
				w.create(diskless("a", tt.strategy))
				after(10 * time.Minute)
				require.Equal(t, tt.boots, boots)
				require.Equal(t, tt.want, w.status("a"))
				require.Equal(t, tt.want == "Running", w.Machines()[0].On)
			})
		})
	}
}

func TestTroubleIsShownInTheStatusOfTheMachine(t *testing.T) {
	for name, tt := range map[string]struct {
		fault  virt.Fault
		change func(*kubevirtv1.VirtualMachine)
		want   string
		reason string // of the machine's condition
		text   string
	}{
		"no node": {
			fault: virt.Fault{Unschedulable: "0/3 nodes are available: 3 Insufficient memory."},
			want:  "ErrorUnschedulable", reason: "Unschedulable", text: "0/3 nodes are available: 3 Insufficient memory.",
		},
		"too large": {
			change: func(vm *kubevirtv1.VirtualMachine) {
				vm.Spec.Template.Spec.Domain.Memory.Guest = new(resource.MustParse("64Gi"))
			},
			want: "ErrorUnschedulable", reason: "Unschedulable",
			text: "0/1 nodes are available: 1 Insufficient memory. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.",
		},
		"image": {fault: virt.Fault{Pull: "manifest unknown"}, want: "ErrImagePull", reason: "ErrImagePull", text: "manifest unknown"},
		"disk":  {fault: virt.Fault{IOError: true}, want: "Paused", reason: "PausedIOError", text: "VMI was paused, low-level IO error detected"},
		"claim": {
			change: func(vm *kubevirtv1.VirtualMachine) {
				vm.Spec.Template.Spec.Volumes[0].VolumeSource = kubevirtv1.VolumeSource{
					PersistentVolumeClaim: &kubevirtv1.PersistentVolumeClaimVolumeSource{
						PersistentVolumeClaimVolumeSource: corev1.PersistentVolumeClaimVolumeSource{ClaimName: "none"},
					},
				}
			},
			want: "ErrorPvcNotFound", reason: "FailedPvcNotFound", text: "PVC default/none does not exist, waiting for it to appear",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := kubevirt.Options{}
				opts.Virt.Nodes = []virt.Node{{Name: "node-1", CPU: resource.MustParse("8"), Memory: resource.MustParse("16Gi")}}
				w := start(t, opts)
				remove := w.Virt.Inject(tt.fault)

				vm := diskless("a", "Always")
				if tt.change != nil {
					tt.change(vm)
				}

				w.create(vm)
				after(5 * time.Second)
				require.Equal(t, tt.want, w.status("a"))

				conditions := w.machine("a").Status.Conditions
				i := slices.IndexFunc(conditions, func(c kubevirtv1.VirtualMachineCondition) bool { return c.Reason == tt.reason })
				require.GreaterOrEqual(t, i, 0, "%v", conditions)
				require.Equal(t, tt.text, conditions[i].Message)

				if tt.change != nil {
					return
				}

				if tt.fault.Pull != "" {
					after(time.Minute)
					require.Equal(t, "ImagePullBackOff", w.status("a"))
				}

				require.Zero(t, w.Machines()[0].Boots)
				remove()
				after(time.Minute)
				require.Equal(t, "Running", w.status("a"))
				require.Equal(t, 1, w.Machines()[0].Boots)
			})
		})
	}
}

func TestRoomThatIsFreedIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Virt.Nodes = []virt.Node{{Name: "node-1", Memory: resource.MustParse("3Gi")}}
		w := start(t, opts)
		w.create(diskless("a", "Always"))
		after(time.Second)
		w.create(diskless("b", "Always"))
		after(time.Hour)
		require.Equal(t, "Running", w.status("a"))
		require.Equal(t, "ErrorUnschedulable", w.status("b"))

		require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
		after(time.Minute)
		require.Equal(t, "Running", w.status("b"))
	})
}

func TestMachineThatKeepsCrashingBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		remove := w.Virt.Inject(virt.Fault{Crash: true})
		w.create(diskless("a", "Always"))
		after(time.Hour)
		require.Equal(t, "CrashLoopBackOff", w.status("a"))
		require.Greater(t, w.machine("a").Status.StartFailure.ConsecutiveFailCount, 3)

		remove()
		after(6 * time.Minute)
		require.Equal(t, "Running", w.status("a"))
		require.Nil(t, w.machine("a").Status.StartFailure)
	})
}

func TestInstanceMayOutliveItsMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		w.create(diskless("a", "Always"))
		after(time.Second)
		w.Virt.Inject(virt.Fault{Machine: ns + "/a", Linger: 10 * time.Minute})
		require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
		after(time.Minute)
		require.Empty(t, w.status("a"), "the machine is gone")
		require.NotNil(t, w.instance("a"))
		after(10 * time.Minute)
		require.Nil(t, w.instance("a"))
	})
}

func TestDeafGuestIsCutOffWhenItsGraceIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Virt.Boot = newGuests().boot
		w := start(t, opts)
		w.create(diskless("a", "Always"))
		after(time.Second)
		w.Virt.Inject(virt.Fault{Deaf: true})
		require.NoError(t, w.virt.KubevirtV1().VirtualMachines(ns).Delete(t.Context(), "a", metav1.DeleteOptions{}))
		after(29 * time.Second)
		require.Equal(t, "Terminating", w.status("a"))
		after(5 * time.Second)
		require.Empty(t, w.status("a"))
	})
}

func TestNodeThatIsSilentLosesItsMachines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := kubevirt.Options{}
		opts.Virt.Nodes = []virt.Node{{Name: "node-1"}, {Name: "node-2"}}
		w := start(t, opts)
		w.create(diskless("a", "Always"))
		after(time.Second)
		w.Virt.NodeDown(w.instance("a").Status.NodeName, true)
		after(time.Minute)
		require.False(t, w.machine("a").Status.Ready)
		after(5 * time.Minute)
		require.Equal(t, "Running", w.status("a"))
		require.Equal(t, "node-2", w.instance("a").Status.NodeName)
	})
}

func TestUUIDIsChosenAtRandomAndOldMachinesHaveThatOfTheirName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		a := w.create(diskless("a", "Halted"))
		require.NotEmpty(t, a.Spec.Template.Spec.Domain.Firmware.UUID)
		require.NotEqual(t, virt.LegacyUUID("a"), a.Spec.Template.Spec.Domain.Firmware.UUID)

		patch := `[{"op":"remove","path":"/spec/template/spec/domain/firmware"}]`
		_, err := w.virt.KubevirtV1().VirtualMachines(ns).Patch(t.Context(), "a", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		require.NoError(t, err)
		after(time.Second)
		require.Equal(t, types.UID("8d9794ca-8c84-5204-b98a-721424eaae6f"), virt.LegacyUUID("a"))
		require.Equal(t, virt.LegacyUUID("a"), w.machine("a").Spec.Template.Spec.Domain.Firmware.UUID)
	})
}

func TestGuestBootsOnceHoweverOftenItsPhaseIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGuests()
		opts := kubevirt.Options{}
		opts.Virt.Boot = g.boot
		w := start(t, opts)

		// The first writes of the phase fail: by a webhook that does not answer, and by somebody who was faster.
		failures := []error{
			errors.New("context deadline exceeded"),
			apiserver.Refuse(http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified"),
			apiserver.Refuse(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "leader changed"),
		}

		w.Server().AddHook(apiserver.Hook{
			Name: "slow.example", Resource: schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachineinstances"},
			Operations: []apiserver.Operation{apiserver.Update},
			Validate: func(_ context.Context, r *apiserver.Review) error {
				phase, _, _ := unstructured.NestedString(r.Object.Object, "status", "phase")
				if phase != string(kubevirtv1.Running) || len(failures) == 0 {
					return nil
				}

				err := failures[0]
				failures = failures[1:]

				return err
			},
		})
		w.create(diskless("a", "Always"))
		after(time.Minute)
		require.Empty(t, failures)
		require.Equal(t, "Running", w.status("a"))
		require.Equal(t, 1, w.Machines()[0].Boots)
		require.Len(t, g.booted, 1)

		events, err := w.core.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=Started"})
		require.NoError(t, err)
		require.Len(t, events.Items, 1)

		w.call("virtualmachines", "a", "restart", "")
		after(time.Minute)
		require.Equal(t, 2, w.Machines()[0].Boots, "another instance boots again")
	})
}

// counted counts the requests of clients by their verbs.
type counted struct {
	base http.RoundTripper

	mu    sync.Mutex
	count map[string]int
}

func (c *counted) RoundTrip(r *http.Request) (*http.Response, error) {
	verb := r.Method
	if r.URL.Query().Get("watch") == "true" {
		verb = "WATCH"
	}

	c.mu.Lock()
	c.count[verb]++
	c.mu.Unlock()

	return c.base.RoundTrip(r)
}

// taken returns what was counted since the last call.
func (c *counted) taken() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()

	count := c.count
	c.count = map[string]int{}

	return count
}

func TestControllersPollNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known, err := definitions.All()
		require.NoError(t, err)
		server, err := apiserver.New(apiserver.Options{Definitions: known})
		require.NoError(t, err)
		t.Cleanup(server.Close)

		requests := &counted{count: map[string]int{}}
		config := server.Admin()
		config.Wrap(func(base http.RoundTripper) http.RoundTripper {
			requests.base = base

			return requests
		})

		c, err := kubevirt.NewControllers(config, kubevirt.ControllerOptions{})
		require.NoError(t, err)
		require.NoError(t, c.Prepare(t.Context()))

		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})

		go func() {
			defer close(done)

			c.Run(ctx)
		}()

		t.Cleanup(func() { cancel(); <-done })

		w := &world{T: t}
		w.core, err = kubernetes.NewForConfig(server.Admin())
		require.NoError(t, err)
		w.virt, err = kubevirtclient.NewForConfig(server.Admin())
		require.NoError(t, err)

		w.create(withTPM(machine("on")))
		w.create(machine("off", func(vm *kubevirtv1.VirtualMachine) { vm.Spec.RunStrategy = new(kubevirtv1.RunStrategyHalted) }))
		after(time.Minute)
		require.Equal(t, "Running", w.status("on"))
		require.Equal(t, "Stopped", w.status("off"))
		after(eventsGone)

		count, revision := requests.taken(), server.Revision()
		watches := count["WATCH"]

		for _, verb := range []string{http.MethodGet, http.MethodPost, http.MethodPut, "WATCH"} {
			require.Positive(t, count[verb], "%s: it counts them", verb)
		}

		const weeks = 6

		after(weeks * 7 * 24 * time.Hour)
		require.Equal(t, revision, server.Revision(), "nothing is written at rest")
		require.Equal(t, map[string]int{"WATCH": weeks * watches}, requests.taken(), "nothing is read but watches, anew each week")
		require.Equal(t, "Running", w.status("on"))
	})
}

// eventsGone is longer than Events are kept.
const eventsGone = 2 * time.Hour

func TestNothingIsWrittenAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, kubevirt.Options{})
		w.create(withTPM(machine("a")))
		after(eventsGone)

		revision := w.Server().Revision()

		after(1000 * time.Hour)
		require.Equal(t, "Running", w.status("a"))
		require.Equal(t, revision, w.Server().Revision())
	})
}
