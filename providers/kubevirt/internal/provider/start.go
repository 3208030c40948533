package provider

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// start switches the machine on, and waits until it runs.
func (m *maker) start(ctx context.Context, _ driver.Task) error {
	vm, err := m.ours(ctx)
	if err != nil {
		return err
	}

	instance, err := m.instanceOf(ctx, vm)
	if err != nil {
		return err
	}

	if staysOff(vm, instance) {
		if err := m.switchOn(ctx, vm, instance); err != nil {
			return err
		}

		return driver.Pending(look, "machine %q is switched on", vm.Name)
	}

	if instance != nil && instance.Status.Phase == kubevirtv1.Running && instance.DeletionTimestamp == nil {
		// Paused, it runs for KubeVirt and does nothing.
		if status, paused := (machine.Report{VM: vm, Instance: instance}).Paused(); paused {
			return status.Err(pause)
		}

		m.images.release(m.req.Ref)
		m.progress.forget(m.req.Ref)

		return nil
	}

	volumes, err := m.volumesOf(ctx, vm)
	if err != nil {
		return err
	}

	d := m.detailsOf(ctx, vm.Namespace, waitFor{ref: m.req.Ref, what: "start"}, eventsOf(vm, instance), volumes...)
	report := machine.Report{VM: vm, Instance: instance, Claims: d.claims, Events: d.events, Still: d.still}

	for _, v := range volumes {
		if status := machine.DescribeVolume(v, d.claim(v.Name), d.events, d.still[v.Name]); status.Condition == machine.Failed {
			return m.fillAgain(ctx, v, status)
		}

		report.DataVolumes = append(report.DataVolumes, *v)
	}

	status := report.Describe()
	if status.Condition == machine.Ready {
		// Its instance is not seen yet.
		status.Condition = machine.Working
	}

	if status.Condition == machine.Working && (instance != nil || time.Since(vm.CreationTimestamp.Time) < young) {
		return status.Err(look)
	}

	return status.Err(pause)
}

// look is how often a machine that starts is looked at. What the watches show of it costs no call.
const look = time.Second

// young is how long a machine without an instance is looked at as often: where its volumes are made at once, it runs within seconds, and is
// to be known as made before it joins.
const young = 30 * time.Second

// staysOff reports whether nothing but a switch starts the machine: it has not been switched on yet, somebody has switched it off, or the
// guest has switched itself off and KubeVirt leaves it so. It is for a request whose machine is still being made: nobody asks afterwards.
func staysOff(vm *kubevirtv1.VirtualMachine, instance *kubevirtv1.VirtualMachineInstance) bool {
	if powerOf(vm, instance) != driver.PowerOff {
		return false
	}

	// With the others, one whose disks are not ready yet is about to be started.
	return strategyOf(vm) == kubevirtv1.RunStrategyHalted || vm.Status.PrintableStatus == kubevirtv1.VirtualMachineStatusStopped
}

// instanceOf returns the virtual machine's instance, nil when it has none.
func (m *maker) instanceOf(ctx context.Context, vm *kubevirtv1.VirtualMachine) (*kubevirtv1.VirtualMachineInstance, error) {
	mirror := m.mirrorsOf(m.req.ProviderID, vm.Namespace).instances

	// That there is none yet is no reason to ask, as it is looked at again soon.
	if mirror != nil {
		if _, live := mirror.All(); live {
			if instance, ok := mirror.Get(vm.Name); ok && metav1.IsControlledBy(instance, vm) {
				return instance, nil
			}

			return nil, nil //nolint:nilnil // a machine that is off has none
		}
	}

	instance, err := m.cluster.Instances().Get(ctx, vm.Namespace, vm.Name)

	switch {
	case driver.IsNotFound(err):
		return nil, nil //nolint:nilnil // a machine that is off has none
	case err != nil:
		return nil, err
	case !metav1.IsControlledBy(instance, vm):
		return nil, driver.Pending(pause, "the instance of an earlier virtual machine %q is still there", vm.Name)
	default:
		return instance, nil
	}
}

// volumesOf returns the DataVolumes of the machine.
func (m *maker) volumesOf(ctx context.Context, vm *kubevirtv1.VirtualMachine) ([]*cdiv1.DataVolume, error) {
	if mirror := m.mirrorsOf(m.req.ProviderID, vm.Namespace).volumes; mirror != nil {
		if volumes, live := mirror.All(); live {
			return owned(m.req.Ref, volumes), nil
		}
	}

	volumes, err := m.cluster.DataVolumes().List(ctx, vm.Namespace, listOf(m.req.Ref))

	return owned(m.req.Ref, volumes), err
}

// fillAgain deletes a DataVolume of the machine that CDI has given up. KubeVirt makes it anew.
func (m *maker) fillAgain(ctx context.Context, v *cdiv1.DataVolume, status machine.Status) error {
	if err := m.cluster.DataVolumes().Delete(ctx, v); err != nil && !cluster.Conflicts(err) {
		return err
	}

	return fmt.Errorf("%s; it is deleted, to be made again", status.Text)
}
