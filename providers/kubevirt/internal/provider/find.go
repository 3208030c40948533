package provider

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// The labels of machines that Omni shows.
const (
	labelNamespace = "namespace"
	labelNode      = "node"
)

// Find asks the API server for the machine, by its mark, in all namespaces.
func (d *Driver) Find(ctx context.Context, ref driver.Ref) (driver.Machine, error) {
	vm, instance, err := d.find(ctx, ref)
	if err != nil {
		return driver.Machine{}, err
	}

	return machineOf(ref, vm, instance), nil
}

// find returns a request's virtual machine, and its instance, which is nil for one that is off.
func (d *Driver) find(ctx context.Context, ref driver.Ref) (*kubevirtv1.VirtualMachine, *kubevirtv1.VirtualMachineInstance, error) {
	var (
		mu    sync.Mutex
		found []*kubevirtv1.VirtualMachine
	)

	err := d.each(ctx, func(ctx context.Context, namespace string) error {
		vms, err := d.cluster.VirtualMachines().List(ctx, namespace, metav1.ListOptions{LabelSelector: machine.SelectorOf(ref).String()})

		mu.Lock()
		defer mu.Unlock()

		found = append(found, owned(ref, vms)...)

		return err
	})

	switch {
	case len(found) == 0 && err != nil:
		return nil, nil, fmt.Errorf("find machine of %s: %w", ref, err)
	case len(found) == 0:
		return nil, nil, driver.NotFound("no namespace of this provider (%s) has a virtual machine of %s", strings.Join(d.config.Operator.Namespaces, ", "), ref)
	}

	vm := slices.MinFunc(found, func(a, b *kubevirtv1.VirtualMachine) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace))
	})

	instance, err := d.cluster.Instances().Get(ctx, vm.Namespace, vm.Name)

	switch {
	case driver.IsNotFound(err):
		return vm, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("find machine of %s: %w", ref, err)
	case !metav1.IsControlledBy(instance, vm):
		// That of a virtual machine that had the name before, or of somebody.
		return vm, nil, nil
	default:
		return vm, instance, nil
	}
}

// owned are those of the objects that belong to the request's machine.
func owned[T metav1.Object](ref driver.Ref, objects []T) []T {
	return slices.DeleteFunc(slices.Clone(objects), func(o T) bool { return !machine.Owns(ref, o) })
}

// List shows all machines, and what there is without one. It starts a sweep of the images now and then: that it is called shows that this
// process is the one that acts.
func (d *Driver) List(ctx context.Context, providerID string) ([]driver.Machine, error) {
	var (
		mu       sync.Mutex
		machines []driver.Machine
	)

	err := d.each(ctx, func(ctx context.Context, namespace string) error {
		some, err := d.listIn(ctx, providerID, namespace)

		mu.Lock()
		defer mu.Unlock()

		machines = append(machines, some...)

		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}

	d.sweepIfDue(providerID)

	slices.SortFunc(machines, func(a, b driver.Machine) int {
		return cmp.Or(cmp.Compare(a.RequestID, b.RequestID), cmp.Compare(a.ID, b.ID))
	})

	return machines, nil
}

func (d *Driver) listIn(ctx context.Context, providerID, namespace string) ([]driver.Machine, error) {
	m := d.mirrorsOf(providerID, namespace)

	vms, err := all(ctx, m.vms, d.cluster.VirtualMachines(), namespace, providerID)
	if err != nil {
		return nil, err
	}

	instances, err := all(ctx, m.instances, d.cluster.Instances(), namespace, providerID)
	if err != nil {
		return nil, err
	}

	volumes, err := all(ctx, m.volumes, d.cluster.DataVolumes(), namespace, providerID)
	if err != nil {
		return nil, err
	}

	claims, err := all(ctx, m.claims, d.cluster.Claims(), namespace, providerID)
	if err != nil {
		return nil, err
	}

	secrets, err := all(ctx, m.secrets, d.cluster.Secrets(), namespace, providerID)
	if err != nil {
		return nil, err
	}

	l := listing{provider: providerID, whole: map[driver.Ref]bool{}}

	for _, vm := range vms {
		i := slices.IndexFunc(instances, func(i *kubevirtv1.VirtualMachineInstance) bool { return metav1.IsControlledBy(i, vm) })

		var instance *kubevirtv1.VirtualMachineInstance
		if i >= 0 {
			instance = instances[i]
		}

		l.addMachine(vm, instance)
	}

	addLeft(&l, "VirtualMachineInstance", instances)
	addLeft(&l, "DataVolume", volumes)
	addLeft(&l, "PersistentVolumeClaim", claims)
	addLeft(&l, "Secret", secrets)

	return l.machines, nil
}

// listing gathers what there is in one namespace.
type listing struct {
	provider string
	machines []driver.Machine
	// whole are the requests of which something is shown.
	whole map[driver.Ref]bool
}

func (l *listing) addMachine(vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) {
	mark, ok := machine.MarkOf(vm)
	if !ok || mark.ProviderID != l.provider {
		return
	}

	m := machineOf(mark.Ref, vm, instance)

	if mark.RequestID == "" {
		m.ID, m.Incomplete = idOf("VirtualMachine", vm), true
	}

	l.whole[mark.Ref] = mark.RequestID != ""
	l.machines = append(l.machines, m)
}

// addLeft adds what has no virtual machine: what a crash or somebody's deletion left. One object of a request stands for all.
func addLeft[T metav1.Object](l *listing, kind string, objects []T) {
	for _, o := range objects {
		mark, ok := machine.MarkOf(o)
		if !ok || mark.ProviderID != l.provider || l.whole[mark.Ref] {
			continue
		}

		left := driver.Machine{
			Ref: mark.Ref, State: kind + " without a virtual machine", Incomplete: true, CreatedAt: o.GetCreationTimestamp().Time,
			Labels: map[string]string{labelNamespace: o.GetNamespace()},
		}

		if mark.RequestID == "" {
			// Somebody took the label off. Its own name is all that tells an operator what to look for.
			left.ID, left.State = idOf(kind, o), kind
		} else {
			l.whole[mark.Ref] = true
		}

		l.machines = append(l.machines, left)
	}
}

func idOf(kind string, o metav1.Object) string {
	return kind + " " + o.GetNamespace() + "/" + o.GetName()
}

// machineOf is a virtual machine as the library sees it. instance is nil for one that is off.
func machineOf(ref driver.Ref, vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) driver.Machine {
	m := driver.Machine{
		Ref: ref, ID: vm.Namespace + "/" + vm.Name, Power: powerOf(vm, instance), State: stateOf(vm),
		Labels:    map[string]string{labelNamespace: vm.Namespace},
		CreatedAt: vm.CreationTimestamp.Time,
	}

	if vm.Spec.Template != nil && vm.Spec.Template.Spec.Domain.Firmware != nil {
		m.UUID = strings.ToLower(string(vm.Spec.Template.Spec.Domain.Firmware.UUID))
	}

	if instance != nil {
		// Each start makes a new one; a migration keeps it.
		m.Boot = string(instance.UID)

		if instance.Status.NodeName != "" {
			m.Labels[labelNode] = instance.Status.NodeName
		}
	}

	return m
}

// stateOf is KubeVirt's own word.
func stateOf(vm *kubevirtv1.VirtualMachine) string {
	if vm.DeletionTimestamp != nil {
		return string(kubevirtv1.VirtualMachineStatusTerminating)
	}

	return cmp.Or(string(vm.Status.PrintableStatus), string(kubevirtv1.VirtualMachineStatusUnknown))
}

// powerOf is the state of a machine's switch. A machine that is off although it should run, as between two starts, is neither.
func powerOf(vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) driver.Power {
	switch {
	case instance != nil && !instance.IsFinal():
		return driver.PowerOn
	case strategyOf(vm) == kubevirtv1.RunStrategyAlways, toStart(vm), strategyOf(vm) == kubevirtv1.RunStrategyRerunOnFailure && failed(vm, instance):
		return driver.PowerUnknown
	default:
		return driver.PowerOff
	}
}

// toStart reports whether KubeVirt has noted to start a machine: somebody has asked it to, or its guest has failed.
func toStart(vm *kubevirtv1.VirtualMachine) bool {
	return slices.ContainsFunc(vm.Status.StateChangeRequests, func(r kubevirtv1.VirtualMachineStateChangeRequest) bool {
		return r.Action == kubevirtv1.StartRequest
	})
}

// failed reports whether a guest has failed, or could not be started, and is about to be started again.
func failed(vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) bool {
	return vm.Status.StartFailure != nil || instance != nil && instance.Status.Phase == kubevirtv1.Failed
}

// strategyOf is the run strategy, also of a virtual machine that says it in the old way.
func strategyOf(vm *kubevirtv1.VirtualMachine) kubevirtv1.VirtualMachineRunStrategy {
	switch {
	case vm.Spec.RunStrategy != nil:
		return *vm.Spec.RunStrategy
	case vm.Spec.Running != nil && *vm.Spec.Running:
		return kubevirtv1.RunStrategyAlways
	default:
		return kubevirtv1.RunStrategyHalted
	}
}
