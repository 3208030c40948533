package kubevirt

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/definitions"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Options shape a cluster. The zero value does everything at once and boots nothing.
type Options struct {
	ControllerOptions

	// Ledger keeps the books; nil makes new ones.
	Ledger *ledger.Ledger
	// Enter changes what the books have of an object: an image that is there for all machines is one to keep. Nil changes nothing. The
	// kinds are "vm", "instance", "datavolume", "claim", "secret", "snapshot" and "revision".
	Enter func(o ledger.Object, object *unstructured.Unstructured) ledger.Object
	// Latency is how long a call takes, by the op of the ledger ("create virtualmachines"); nil is no time.
	Latency func(op string) time.Duration
	// Rules are what a provider may do, in its Role or ClusterRole; nil is everything. NamespaceRules are those in one namespace.
	Rules          []rbacv1.PolicyRule
	NamespaceRules map[string][]rbacv1.PolicyRule
	// Token opens the cluster for a provider; empty is Token.
	Token string
}

// User and Token are those of a provider that RESTConfig is for.
const (
	User  = "system:serviceaccount:omni:provider"
	Token = "token of the provider's service account" //nolint:gosec // It opens the simulation only.
)

// Cluster is the simulated cluster. Its own methods are those of its owner and of tests; clients use RESTConfig.
type Cluster struct {
	*Controllers

	server *apiserver.Server
	opts   Options
	cancel context.CancelFunc
	work   sync.WaitGroup

	mu      sync.Mutex
	foreign map[string]bool // "kind/namespace/name"
}

// kinds are the definitions. The server reads them only.
var kinds = sync.OnceValues(definitions.All)

// New starts a cluster. Close ends it.
func New(opts Options) (*Cluster, error) {
	known, err := kinds()
	if err != nil {
		return nil, err
	}

	opts.Token = cmp.Or(opts.Token, Token)
	c := &Cluster{opts: opts, foreign: map[string]bool{}}

	c.server, err = apiserver.New(apiserver.Options{
		Ledger: opts.Ledger, Definitions: known, Latency: opts.Latency, Object: c.object,
	})
	if err != nil {
		return nil, fmt.Errorf("start API server: %w", err)
	}

	if c.Controllers, err = NewControllers(c.server.Admin(), opts.ControllerOptions); err != nil {
		c.server.Close()

		return nil, err
	}

	c.addHooks(c.server)
	c.server.Serve(virt.SubresourceVersion, virt.Subresources(), c.API())
	c.server.SetUser(apiserver.User{Name: User, Token: opts.Token, Rules: opts.Rules, NamespaceRules: opts.NamespaceRules})

	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel

	if err := c.Prepare(ctx); err != nil {
		c.Close()

		return nil, err
	}

	c.work.Go(func() { c.Run(ctx) })

	return c, nil
}

// Server returns the API server, for its faults, its users and its history.
func (c *Cluster) Server() *apiserver.Server { return c.server }

// Ledger returns the cluster's books.
func (c *Cluster) Ledger() *ledger.Ledger { return c.server.Ledger() }

// RESTConfig returns the configuration for one process of a provider, whose calls are those of the session.
func (c *Cluster) RESTConfig(session *ledger.Session) *rest.Config {
	return c.server.Client(session, c.opts.Token)
}

// Close switches all machines off, waits until nothing of the cluster runs any more, and refuses further calls.
func (c *Cluster) Close() {
	c.cancel()
	c.work.Wait()
	c.server.Close()
}

// booked are the kinds in the books.
var booked = map[string]string{
	kube.VirtualMachines.Kind: "vm", kube.VirtualMachineInstances.Kind: "instance", kube.DataVolumes.Kind: "datavolume",
	kube.Claims.Kind: "claim", kube.Secrets.Kind: "secret", kube.VolumeSnapshots.Kind: "snapshot",
	kube.ControllerRevisions.Kind: "revision",
}

// object is what the books have of an object.
func (c *Cluster) object(object *unstructured.Unstructured) (ledger.Object, bool) {
	of, ok := booked[object.GetKind()]
	if !ok {
		return ledger.Object{}, false
	}

	o := ledger.Object{Kind: of, ID: string(object.GetUID()), Name: object.GetName()}

	c.mu.Lock()
	o.Keep = c.foreign[object.GetNamespace()+"/"+object.GetName()]
	c.mu.Unlock()

	if c.opts.Enter != nil {
		o = c.opts.Enter(o, object)
	}

	return o, true
}

// Machines returns all machines. An ID is the UID of the VirtualMachine, its tags are labels and annotations, its place the namespace.
func (c *Cluster) Machines() []ledger.Machine {
	var all []ledger.Machine

	for _, m := range c.Virt.Machines() {
		tags := maps.Clone(m.Labels)
		if tags == nil {
			tags = map[string]string{}
		}

		maps.Copy(tags, m.Annotations)

		all = append(all, ledger.Machine{ID: m.UID, Name: m.Name, UUID: m.UUID, Tags: tags, On: m.On, Boots: m.Boots})
	}

	return all
}

func (c *Cluster) machine(id string) (virt.Machine, error) {
	for _, m := range c.Virt.Machines() {
		if m.UID == id {
			return m, nil
		}
	}

	return virt.Machine{}, fmt.Errorf("there is no machine %q", id)
}

// DeleteMachine deletes a machine, as someone with kubectl would. It does not wait until the machine is gone.
func (c *Cluster) DeleteMachine(id string) error {
	m, err := c.machine(id)
	if err != nil {
		return err
	}

	c.Ledger().Note("someone deletes machine %s/%s", m.Namespace, m.Name)

	ctx, cancel := context.WithTimeout(context.Background(), ownerTime)
	defer cancel()

	return c.Controllers.DeleteMachine(ctx, m)
}

// SwitchOff stops a machine, as someone with virtctl would.
func (c *Cluster) SwitchOff(id string) error { return c.power(id, false) }

// SwitchOn starts a machine, as someone with virtctl would.
func (c *Cluster) SwitchOn(id string) error { return c.power(id, true) }

func (c *Cluster) power(id string, on bool) error {
	m, err := c.machine(id)
	if err != nil {
		return err
	}

	c.Ledger().Note("someone switches machine %s/%s, on: %t", m.Namespace, m.Name, on)

	ctx, cancel := context.WithTimeout(context.Background(), ownerTime)
	defer cancel()

	return c.Virt.Power(ctx, m.Namespace, m.Name, on)
}

// AddForeign makes an object that belongs to somebody else in the namespace "default": kind is "vm", "instance", "datavolume", "claim" or
// "secret". The books count it as no leak.
func (c *Cluster) AddForeign(kind, name string) (id string, err error) {
	namespace := metav1.NamespaceDefault
	if len(c.opts.Namespaces) > 0 {
		namespace = c.opts.Namespaces[0]
	}

	c.mu.Lock()
	c.foreign[namespace+"/"+name] = true
	c.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), ownerTime)
	defer cancel()

	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}

	switch kind {
	case "vm":
		id, err = add(ctx, c.client, kube.VirtualMachines, &kubevirtv1.VirtualMachine{ObjectMeta: meta, Spec: foreignMachine()})
	case "instance":
		id, err = add(ctx, c.client, kube.VirtualMachineInstances, &kubevirtv1.VirtualMachineInstance{ObjectMeta: meta, Spec: foreignMachine().Template.Spec})
	case "datavolume":
		id, err = add(ctx, c.client, kube.DataVolumes, &cdiv1.DataVolume{ObjectMeta: meta, Spec: cdiv1.DataVolumeSpec{
			Source:  &cdiv1.DataVolumeSource{Blank: &cdiv1.DataVolumeBlankImage{}},
			Storage: &cdiv1.StorageSpec{Resources: corev1.VolumeResourceRequirements{Requests: size}},
		}})
	case "claim":
		id, err = add(ctx, c.client, kube.Claims, &corev1.PersistentVolumeClaim{ObjectMeta: meta, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: size},
		}})
	case "secret":
		id, err = add(ctx, c.client, kube.Secrets, &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"key": []byte("value")}})
	default:
		return "", fmt.Errorf("add foreign object %q: kind %q is none of vm, instance, datavolume, claim, secret", name, kind)
	}

	if err != nil {
		return "", fmt.Errorf("add foreign %s %q: %w", kind, name, err)
	}

	c.Ledger().Note("somebody else makes %s %s/%s", kind, namespace, name)

	return id, nil
}

func add[T any, P kube.Object[T]](ctx context.Context, client *kube.Client, kind kube.Kind, object P) (id string, err error) {
	resource, err := kube.Of[T, P](client, kind)
	if err != nil {
		return "", err
	}

	made, err := resource.Create(ctx, object)
	if err != nil {
		return "", err
	}

	return string(made.GetUID()), nil
}

func foreignMachine() kubevirtv1.VirtualMachineSpec {
	return kubevirtv1.VirtualMachineSpec{
		RunStrategy: new(kubevirtv1.RunStrategyHalted),
		Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{Spec: kubevirtv1.VirtualMachineInstanceSpec{
			Domain: kubevirtv1.DomainSpec{Memory: &kubevirtv1.Memory{Guest: new(resource.MustParse("1Gi"))}},
			Volumes: []kubevirtv1.Volume{{Name: "disk", VolumeSource: kubevirtv1.VolumeSource{
				ContainerDisk: &kubevirtv1.ContainerDiskSource{Image: "registry.example/disk:v1"},
			}}},
		}},
	}
}
