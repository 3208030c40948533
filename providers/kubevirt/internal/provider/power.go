package provider

import (
	"cmp"
	"context"
	"fmt"

	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Machines are switched through KubeVirt's subresources, which know what each run strategy makes of it: with Always a machine that is
// stopped is Halted from then on, and with the others it is asked to stop or to start once, and keeps its strategy. One that is Halted
// gets its class's strategy back, which the start subresource would not do. One that is to be stopped and has no instance is Halted too.

// SetPower switches the machine.
func (d *Driver) SetPower(ctx context.Context, ref driver.Ref, want driver.Power) error {
	vm, instance, err := d.find(ctx, ref)

	switch {
	case err != nil:
		return err
	case vm.DeletionTimestamp != nil:
		return fmt.Errorf("switch machine %q %s: it is being deleted", vm.Name, want)
	case powerOf(vm, instance) == want:
		return nil
	case want == driver.PowerOff:
		return d.switchOff(ctx, vm, instance)
	default:
		return d.switchOn(ctx, vm, instance)
	}
}

// switchOn starts a virtual machine that has no instance, or one that has ended.
func (d *Driver) switchOn(ctx context.Context, vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) error {
	strategy := strategyOf(vm)

	if strategy == kubevirtv1.RunStrategyHalted {
		if instance != nil && !instance.IsFinal() {
			return driver.Pending(pause, "machine %q is still on its way down", vm.Name)
		}

		strategy = kubevirtv1.VirtualMachineRunStrategy(cmp.Or(vm.Annotations[machine.AnnotationRunStrategy], string(kubevirtv1.RunStrategyAlways)))

		if err := d.setStrategy(ctx, vm, strategy); err != nil {
			return err
		}

		// The others start what was Halted.
		if strategy != kubevirtv1.RunStrategyManual {
			return nil
		}
	}

	if strategy == kubevirtv1.RunStrategyAlways || toStart(vm) {
		return nil // KubeVirt is about to start it by itself.
	}

	return d.switchTo(ctx, vm, "start")
}

// switchOff stops a virtual machine, or keeps one from being started that has no instance: the stop subresource refuses that but for Always.
//
// What KubeVirt has noted to start it does start, whatever the strategy is by then, and forgets the note only with that. RerunOnFailure makes
// such a note of each failure; Always makes none, so that a machine which fails all the time ends without one, and is Halted then. That takes
// as long as KubeVirt's pause between two starts, five minutes at most.
func (d *Driver) switchOff(ctx context.Context, vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) error {
	if instance != nil && !instance.IsFinal() {
		return d.switchTo(ctx, vm, "stop")
	}

	if !toStart(vm) {
		return d.setStrategy(ctx, vm, kubevirtv1.RunStrategyHalted)
	}

	if strategyOf(vm) == kubevirtv1.RunStrategyRerunOnFailure {
		if err := d.setStrategy(ctx, vm, kubevirtv1.RunStrategyAlways); err != nil {
			return err
		}
	}

	return driver.Pending(pause, "machine %q is switched off once KubeVirt has started it again, as it has noted to do", vm.Name)
}

// setStrategy gives a virtual machine a run strategy. The same call notes that it was switched on, and does so each time, as what an apply
// does not say any more is taken away.
func (d *Driver) setStrategy(ctx context.Context, vm *kubevirtv1.VirtualMachine, strategy kubevirtv1.VirtualMachineRunStrategy) error {
	_, err := d.cluster.VirtualMachines().Apply(ctx, vm, map[string]any{
		"apiVersion": kubevirtv1.VirtualMachineGroupVersionKind.GroupVersion().String(),
		"kind":       kubevirtv1.VirtualMachineGroupVersionKind.Kind,
		"metadata":   map[string]any{"annotations": map[string]string{annotationStarted: "true"}},
		"spec":       map[string]any{"runStrategy": string(strategy)},
	}, machine.FieldManager)

	return err
}

// Reboot restarts a machine that is on: it is shut down and started again, as a new instance.
func (d *Driver) Reboot(ctx context.Context, ref driver.Ref) error {
	vm, instance, err := d.find(ctx, ref)

	switch {
	case err != nil:
		return err
	case instance == nil || instance.IsFinal():
		return fmt.Errorf("reboot machine %q: it is off", vm.Name)
	case instance.DeletionTimestamp != nil:
		return fmt.Errorf("reboot machine %q: it is shutting down already", vm.Name)
	default:
		return d.switchTo(ctx, vm, "restart")
	}
}

// switchTo calls a subresource. A conflict says that the virtual machine is in no state for it, which the next look shows.
func (d *Driver) switchTo(ctx context.Context, vm *kubevirtv1.VirtualMachine, verb string) error {
	err := d.cluster.Switch(ctx, vm.Namespace, vm.Name, verb)
	if cluster.Conflicts(err) {
		return &driver.Error{After: pause, Err: fmt.Errorf("%s machine %q: %w", verb, vm.Name, err)}
	}

	return err
}
