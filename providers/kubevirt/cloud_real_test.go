//go:build real

package kubevirt_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/clustertest"
	sim "github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// cloud is what the suite sees of a real API server: one namespace and what is in it, by the server's word, with none of the provider's
// code. In each machine that the simulated KubeVirt starts there it puts a simulated Talos, with the user data that the machine has.
type cloud struct {
	t       *testing.T
	cluster *clustertest.Cluster
	// life ends with the cluster.
	life      context.Context
	admin     dynamic.Interface
	namespace string
	account   *rest.Config
	books     *ledger.Ledger
	world     *conformance.World
	// talos runs in machines with an image; unbootable is told of those without one.
	talos      func(context.Context, virt.Guest)
	unbootable func(virt.Guest)

	mu sync.Mutex
	// foreign is what somebody else has made, by UID.
	foreign map[string]bool
}

// kind is a kind of objects that the provider makes, as the ledger names it.
type kind struct {
	name     string
	resource schema.GroupVersionResource
}

var (
	machines = kind{"vm", schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}}
	kinds    = []kind{
		machines,
		{"instance", schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}},
		{"datavolume", schema.GroupVersionResource{Group: "cdi.kubevirt.io", Version: "v1beta1", Resource: "datavolumes"}},
		{"claim", schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}},
		{"secret", schema.GroupVersionResource{Version: "v1", Resource: "secrets"}},
	}
)

// clouds are those of the cases that are played, by namespace: all are on one cluster, which is started for the first and ended by TestMain.
var (
	clouds  sync.Map
	started atomic.Pointer[clustertest.Cluster]
)

var startCluster = sync.OnceValues(func() (*clustertest.Cluster, error) {
	cluster, err := clustertest.Start(sim.ControllerOptions{
		Virt: virt.Options{
			Boot: func(ctx context.Context, g virt.Guest) {
				if c, ok := clouds.Load(g.Namespace); ok {
					c.(*cloud).boot(ctx, g)
				}
			},
			Unbootable: func(g virt.Guest) {
				if c, ok := clouds.Load(g.Namespace); ok {
					c.(*cloud).unbootable(g)
				}
			},
		},
	})
	started.Store(cluster)

	return cluster, err
})

// newCloud makes a namespace with an account for the provider in it, which has the rights of the provider's own manifest and no other.
func newCloud(t *testing.T, w *conformance.World) *cloud {
	t.Helper()

	cluster, err := startCluster()
	require.NoError(t, err)

	life, done := cluster.During(context.Background())
	t.Cleanup(done)

	c := &cloud{
		t: t, cluster: cluster, life: life, books: ledger.New(), world: w, foreign: map[string]bool{},
		talos: booter(t, w), unbootable: unbootable(t),
	}

	c.admin, err = dynamic.NewForConfig(cluster.Admin())
	require.NoError(t, err)

	c.namespace, c.account, err = cluster.NewNamespace(t.Context())
	require.NoError(t, err)

	c.books.Look(c.objects)
	clouds.Store(c.namespace, c)

	t.Cleanup(func() {
		// What is left, the suite has complained of. Its guests end.
		for _, m := range c.list(machines) {
			_ = c.of(machines).Delete(context.Background(), m.GetName(), metav1.DeleteOptions{})
		}

		clouds.Delete(c.namespace)
	})

	return c
}

// firmwareTime is what a machine needs before its Talos starts to boot. The provider has seen by then that it runs, on a busy machine too.
const firmwareTime = 5 * time.Second

// boot runs a simulated Talos in a machine.
func (c *cloud) boot(ctx context.Context, g virt.Guest) {
	c.books.Note("KubeVirt boots %s", g.Name)

	if c.world == nil {
		<-ctx.Done() // Nobody waits for it to join.

		return
	}

	select {
	case <-ctx.Done():
		return
	case <-time.After(firmwareTime):
	}

	c.talos(ctx, g)
}

func (c *cloud) of(k kind) dynamic.ResourceInterface {
	return c.admin.Resource(k.resource).Namespace(c.namespace)
}

// list returns what there is of a kind. Nobody who asks for that could make anything of an error: a call that fails is made again for as
// long as there is patience, and then the case has failed.
func (c *cloud) list(k kind) []unstructured.Unstructured {
	ctx, cancel := context.WithTimeout(c.life, how.Patience)
	defer cancel()

	for {
		all, err := c.of(k).List(ctx, metav1.ListOptions{})
		if err == nil {
			return all.Items
		}

		select {
		case <-ctx.Done():
			// When the case is over, nobody is to be told any more.
			if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
				c.t.Errorf("list %s: %v: %v", k.name, err, cause)
			}

			return nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// objects is what there is.
func (c *cloud) objects() (all []ledger.Object) {
	for _, k := range kinds {
		for _, o := range c.list(k) {
			all = append(all, c.enter(k, o))
		}
	}

	return all
}

// enter puts an object into the words of the ledger. Images are there for all machines.
func (c *cloud) enter(k kind, o unstructured.Unstructured) ledger.Object {
	c.mu.Lock()
	defer c.mu.Unlock()

	entry := ledger.Object{Kind: k.name, ID: string(o.GetUID()), Name: o.GetName(), Keep: c.foreign[string(o.GetUID())]}

	if o.GetLabels()["omni-infra.dev/image"] != "" {
		entry.Kind, entry.Keep = "image-"+k.name, true
	}

	return entry
}

// Ledger has the calls that the provider makes.
func (c *cloud) Ledger() *ledger.Ledger { return c.books }

// Machines returns all machines of the namespace.
func (c *cloud) Machines() (all []ledger.Machine) {
	on := map[string]virt.Machine{}
	for _, m := range c.cluster.Controllers.Virt.Machines() {
		on[m.UID] = m
	}

	for _, vm := range c.list(machines) {
		id := string(vm.GetUID())
		uuid, _, _ := unstructured.NestedString(vm.Object, "spec", "template", "spec", "domain", "firmware", "uuid")

		all = append(all, ledger.Machine{
			ID: id, Name: vm.GetName(), UUID: uuid, Tags: vm.GetLabels(), On: on[id].On, Boots: on[id].Boots,
		})
	}

	return all
}

// DeleteMachine deletes a machine as somebody with kubectl would.
func (c *cloud) DeleteMachine(id string) error {
	vm, err := c.machine(id)
	if err != nil {
		return err
	}

	c.books.Note("someone deletes machine %s", vm.GetName())

	if err := c.of(machines).Delete(context.Background(), vm.GetName(), metav1.DeleteOptions{}); err != nil {
		return err
	}

	return c.await(func() bool {
		_, err := c.machine(id)

		return err != nil
	}, "machine %s to be gone", id)
}

// SwitchOff halts a machine, as `virtctl stop --force` does.
func (c *cloud) SwitchOff(id string) error {
	vm, err := c.machine(id)
	if err != nil {
		return err
	}

	c.books.Note("someone switches machine %s off", vm.GetName())

	_, err = c.of(machines).Patch(context.Background(), vm.GetName(), "application/merge-patch+json", []byte(`{"spec":{"runStrategy":"Halted"}}`), metav1.PatchOptions{})
	if err != nil {
		return err
	}

	return c.await(func() bool {
		return slices.ContainsFunc(c.Machines(), func(m ledger.Machine) bool { return m.ID == id && !m.On })
	}, "machine %s to be off", id)
}

func (c *cloud) machine(id string) (*unstructured.Unstructured, error) {
	for _, vm := range c.list(machines) {
		if string(vm.GetUID()) == id {
			return &vm, nil
		}
	}

	return nil, fmt.Errorf("there is no machine %s", id)
}

func (c *cloud) await(f func() bool, format string, args ...any) error {
	ctx, cancel := context.WithTimeout(c.life, how.Patience)
	defer cancel()

	for !f() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for "+format+": %w", append(args, context.Cause(ctx))...)
		case <-time.After(50 * time.Millisecond):
		}
	}

	return nil
}

// AddForeign makes an object that belongs to somebody else.
func (c *cloud) AddForeign(name, object string) (id string, err error) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.name == strings.TrimPrefix(name, "image-") })
	if i < 0 {
		return "", fmt.Errorf("nobody makes a %s", name)
	}

	k := kinds[i]

	c.books.Note("somebody else makes %s %q", k.name, object)

	u := &unstructured.Unstructured{Object: foreignObject(k, object)}

	made, err := c.of(k).Create(context.Background(), u, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		// The importer makes the claim of somebody else's DataVolume for him.
		made, err = c.of(k).Get(context.Background(), object, metav1.GetOptions{})
		if err == nil && !c.ofForeign(made) {
			err = fmt.Errorf("%s %q is the provider's", k.name, object)
		}
	}

	if err != nil {
		return "", err
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.foreign[string(made.GetUID())] = true

	return string(made.GetUID()), nil
}

// ofForeign reports whether somebody else's object owns this one.
func (c *cloud) ofForeign(o *unstructured.Unstructured) bool {
	owner := metav1.GetControllerOf(o)

	c.mu.Lock()
	defer c.mu.Unlock()

	return owner != nil && c.foreign[string(owner.UID)]
}

// foreignObject is the least that the API server takes.
func foreignObject(k kind, name string) map[string]any {
	object := map[string]any{"metadata": map[string]any{"name": name}}
	instance := map[string]any{"domain": map[string]any{"devices": map[string]any{}, "memory": map[string]any{"guest": "64Mi"}}}
	claim := map[string]any{
		"accessModes": []any{string(corev1.ReadWriteOnce)}, "resources": map[string]any{"requests": map[string]any{"storage": "1Gi"}},
	}

	switch k.name {
	case "vm":
		object["apiVersion"], object["kind"] = "kubevirt.io/v1", "VirtualMachine"
		object["spec"] = map[string]any{"runStrategy": "Halted", "template": map[string]any{"spec": instance}}
	case "instance":
		object["apiVersion"], object["kind"] = "kubevirt.io/v1", "VirtualMachineInstance"
		object["spec"] = instance
	case "datavolume":
		object["apiVersion"], object["kind"] = "cdi.kubevirt.io/v1beta1", "DataVolume"
		object["spec"] = map[string]any{"source": map[string]any{"blank": map[string]any{}}, "storage": map[string]any{"resources": claim["resources"]}}
	case "claim":
		object["apiVersion"], object["kind"], object["spec"] = "v1", "PersistentVolumeClaim", claim
	default:
		object["apiVersion"], object["kind"] = "v1", "Secret"
	}

	return object
}
