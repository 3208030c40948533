//go:build real

package kubevirt_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorization "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// cloud is what the suite sees of a real API server: one namespace and what is in it, by the server's word, with none of the provider's
// code. In each machine that the simulated KubeVirt starts there it puts a simulated Talos, with the user data that the machine has.
type cloud struct {
	server    *server
	namespace string
	account   *rest.Config
	books     *ledger.Ledger
	world     *conformance.World

	mu sync.Mutex
	// boots counts how often a machine was booted, on which of them have a guest, by the UID of the VirtualMachine. foreign is what somebody
	// else has made, by UID.
	boots   map[string]int
	on      map[string]int
	foreign map[string]bool
}

// kind is a kind of objects that the provider makes, as the ledger names it.
type kind struct {
	name     string
	resource schema.GroupVersionResource
}

var (
	machines = kind{"virtualmachine", schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}}
	kinds    = []kind{
		machines,
		{"virtualmachineinstance", schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}},
		{"datavolume", schema.GroupVersionResource{Group: "cdi.kubevirt.io", Version: "v1beta1", Resource: "datavolumes"}},
		{"persistentvolumeclaim", schema.GroupVersionResource{Version: "v1", Resource: "persistentvolumeclaims"}},
		{"secret", schema.GroupVersionResource{Version: "v1", Resource: "secrets"}},
	}
)

// newCloud makes a namespace with an account for the provider in it, which has the rights of the provider's own manifest and no other.
func newCloud(t *testing.T, w *conformance.World, s *server) *cloud {
	t.Helper()

	c := &cloud{
		server: s, books: ledger.New(), world: w, namespace: s.newNamespace(t),
		boots: map[string]int{}, on: map[string]int{}, foreign: map[string]bool{},
	}

	var err error

	c.account, err = s.plane.As(t.Context(), c.namespace, account)
	require.NoError(t, err)

	awaitRights(t, c.account, c.namespace)
	c.books.Look(c.objects)

	s.enter(c)
	t.Cleanup(func() { s.leave(t, c) })

	return c
}

// awaitRights waits until a role that has just been bound is known everywhere in the API server.
func awaitRights(t *testing.T, account *rest.Config, namespace string) {
	t.Helper()

	client, err := kubernetes.NewForConfig(account)
	require.NoError(t, err)

	require.Eventually(t, func() bool {
		answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorization.SelfSubjectAccessReview{
			Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{
				Namespace: namespace, Verb: "list", Group: "kubevirt.io", Resource: "virtualmachines",
			}},
		}, metav1.CreateOptions{})

		return err == nil && answer.Status.Allowed
	}, 30*time.Second, 20*time.Millisecond, "the manifest gives the provider's account no right to list machines")
}

// boot runs a simulated Talos in a machine.
func (c *cloud) boot(ctx context.Context, g virt.Guest) {
	c.mu.Lock()
	c.boots[g.Machine]++
	c.on[g.Machine]++
	c.mu.Unlock()

	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()

		c.on[g.Machine]--
	}()

	c.books.Note("KubeVirt boots %s", g.Name)
	c.world.Boot(ctx, conformance.Guest{UUID: g.UUID, UserData: string(g.UserData)})
}

func (c *cloud) of(k kind) dynamic.ResourceInterface { return c.server.admin.Resource(k.resource).Namespace(c.namespace) }

func (c *cloud) list(k kind) []unstructured.Unstructured {
	all, err := c.of(k).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		panic(fmt.Errorf("list %s: %w", k.name, err))
	}

	return all.Items
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
	found := c.list(machines)

	c.mu.Lock()
	defer c.mu.Unlock()

	for _, vm := range found {
		id := string(vm.GetUID())
		uuid, _, _ := unstructured.NestedString(vm.Object, "spec", "template", "spec", "domain", "firmware", "uuid")

		all = append(all, ledger.Machine{
			ID: id, Name: vm.GetName(), UUID: uuid, Tags: vm.GetLabels(), On: c.on[id] > 0, Boots: c.boots[id],
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
	for range 600 {
		if f() {
			return nil
		}

		time.Sleep(50 * time.Millisecond)
	}

	return fmt.Errorf("waited in vain for "+format, args...)
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
	if err != nil {
		return "", err
	}

	c.mu.Lock()
	defer c.mu.Unlock()

	c.foreign[string(made.GetUID())] = true

	return string(made.GetUID()), nil
}

// foreignObject is the least that the API server takes.
func foreignObject(k kind, name string) map[string]any {
	object := map[string]any{"metadata": map[string]any{"name": name}}
	instance := map[string]any{"domain": map[string]any{"devices": map[string]any{}, "memory": map[string]any{"guest": "64Mi"}}}
	claim := map[string]any{
		"accessModes": []any{string(corev1.ReadWriteOnce)}, "resources": map[string]any{"requests": map[string]any{"storage": "1Gi"}},
	}

	switch k.name {
	case "virtualmachine":
		object["apiVersion"], object["kind"] = "kubevirt.io/v1", "VirtualMachine"
		object["spec"] = map[string]any{"runStrategy": "Halted", "template": map[string]any{"spec": instance}}
	case "virtualmachineinstance":
		object["apiVersion"], object["kind"] = "kubevirt.io/v1", "VirtualMachineInstance"
		object["spec"] = instance
	case "datavolume":
		object["apiVersion"], object["kind"] = "cdi.kubevirt.io/v1beta1", "DataVolume"
		object["spec"] = map[string]any{"source": map[string]any{"blank": map[string]any{}}, "storage": map[string]any{"resources": claim["resources"]}}
	case "persistentvolumeclaim":
		object["apiVersion"], object["kind"], object["spec"] = "v1", "PersistentVolumeClaim", claim
	default:
		object["apiVersion"], object["kind"] = "v1", "Secret"
	}

	return object
}
