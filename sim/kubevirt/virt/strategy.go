package virt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirt "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/internal/kube"
)

// follow starts and stops the instance of a machine as its strategy wants it.
func (c *Controller) follow(ctx context.Context, vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance, strategy kubevirt.VirtualMachineRunStrategy) error {
	switch strategy {
	case kubevirt.RunStrategyAlways:
		return c.always(ctx, vm, vmi)
	case kubevirt.RunStrategyRerunOnFailure:
		return c.rerun(ctx, vm, vmi)
	case kubevirt.RunStrategyManual:
		switch {
		case vmi != nil && toStop(vm, vmi):
			return deleting(c.stop(ctx, vm, vmi))
		case vmi == nil && toStart(vm):
			return starting(c.start(ctx, vm))
		}

		return nil
	case kubevirt.RunStrategyHalted:
		if vmi == nil && toStart(vm) { // It is to be started paused.
			return c.unhalt(ctx, vm)
		}

		return deleting(c.stop(ctx, vm, vmi))
	case kubevirt.RunStrategyOnce:
		if vmi == nil {
			return starting(c.start(ctx, vm))
		}

		return nil
	default:
		return &problem{failedCreate, fmt.Errorf("unknown runstrategy: %s", strategy)}
	}
}

func (c *Controller) always(ctx context.Context, vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance) error {
	if vmi != nil {
		if vmi.IsFinal() || toStop(vm, vmi) {
			return deleting(c.stop(ctx, vm, vmi))
		}

		return nil
	}

	if c.backsOff(vm) {
		return nil
	}

	return starting(c.start(ctx, vm))
}

func (c *Controller) rerun(ctx context.Context, vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance) error {
	if vmi != nil {
		failed := vmi.Status.Phase == kubevirt.Failed

		if vmi.DeletionTimestamp != nil || !toStop(vm, vmi) && !vmi.IsFinal() {
			return nil
		}

		if err := c.stop(ctx, vm, vmi); err != nil || !failed {
			return deleting(err)
		}

		requests := slices.Concat(vm.Status.StateChangeRequests, []kubevirt.VirtualMachineStateChangeRequest{{Action: kubevirt.StartRequest}})
		if err := c.patchStatus(ctx, vm, operation{"add", "/status/stateChangeRequests", requests}); err != nil {
			return &problem{failedDelete, fmt.Errorf("failed to patch VM with start action: %w", err)}
		}

		return nil
	}

	if !toStart(vm) && vm.Status.RunStrategy == kubevirt.RunStrategyRerunOnFailure || c.backsOff(vm) {
		return nil
	}

	return starting(c.start(ctx, vm))
}

// unhalt is what a request to start paused does with a halted machine.
func (c *Controller) unhalt(ctx context.Context, vm *kubevirt.VirtualMachine) error {
	vm = vm.DeepCopy()

	if vm.Spec.RunStrategy != nil {
		vm.Spec.RunStrategy = new(kubevirt.RunStrategyAlways)
	} else {
		vm.Spec.Running = new(true)
	}

	updated, err := c.vms.Update(ctx, vm)
	if err == nil {
		c.vms.Put(updated)
		c.machines.Add(kube.Key(vm))
	}

	return err
}

func starting(err error) error {
	if err == nil {
		return nil
	}

	return &problem{failedCreate, fmt.Errorf("Failure while starting VMI: %w", err)} //nolint:staticcheck // As KubeVirt words it.
}

func deleting(err error) error {
	if err == nil {
		return nil
	}

	return &problem{failedDelete, fmt.Errorf("Failure attempting to delete VMI: %w", err)} //nolint:staticcheck // As KubeVirt words it.
}

func toStart(vm *kubevirt.VirtualMachine) bool {
	requests := vm.Status.StateChangeRequests

	return len(requests) > 0 && requests[0].Action == kubevirt.StartRequest
}

func toStop(vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance) bool {
	requests := vm.Status.StateChangeRequests

	return len(requests) > 0 && requests[0].Action == kubevirt.StopRequest && requests[0].UID != nil && *requests[0].UID == vmi.UID
}

// backsOff says whether a machine that keeps failing is left alone for a while, and looks at it again when that has passed.
func (c *Controller) backsOff(vm *kubevirt.VirtualMachine) bool {
	failure := vm.Status.StartFailure
	if failure == nil || failure.RetryAfterTimestamp == nil {
		return false
	}

	left := time.Until(failure.RetryAfterTimestamp.Time)
	if left <= 0 {
		return false
	}

	c.machines.After(kube.Key(vm), left)

	return true
}

// maxBackOff is the longest pause of a machine that keeps failing.
const maxBackOff = 300 * time.Second

// countFailure notes an instance that failed before it ran.
func countFailure(vm *kubevirt.VirtualMachine, vmi *kubevirt.VirtualMachineInstance) {
	strategy, _ := vm.RunStrategy()
	restarts := strategy == kubevirt.RunStrategyAlways || strategy == kubevirt.RunStrategyRerunOnFailure || strategy == kubevirt.RunStrategyOnce

	switch {
	case vmi != nil && ranOnce(vmi), !restarts:
		vm.Status.StartFailure = nil
	case vmi == nil || !vmi.IsFinal():
	case vm.Status.StartFailure != nil && vm.Status.StartFailure.LastFailedVMIUID == vmi.UID:
	default:
		count := 1
		if vm.Status.StartFailure != nil {
			count += vm.Status.StartFailure.ConsecutiveFailCount
		}

		seconds := 10 * count * count
		seconds += rand.IntN(seconds/2 + 1) //nolint:gosec // It spreads retries.

		after := metav1.NewTime(time.Now().Add(min(time.Duration(seconds)*time.Second, maxBackOff)))
		vm.Status.StartFailure = &kubevirt.VirtualMachineStartFailure{
			ConsecutiveFailCount: count, LastFailedVMIUID: vmi.UID, RetryAfterTimestamp: &after,
		}
	}
}

func ranOnce(vmi *kubevirt.VirtualMachineInstance) bool {
	if vmi.Status.Phase == kubevirt.Running {
		return true
	}

	for _, t := range vmi.Status.PhaseTransitionTimestamps {
		if t.Phase == kubevirt.Running {
			return true
		}
	}

	return false
}
