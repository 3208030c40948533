package provider

import (
	"testing"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

func machineWith(strategy kubevirtv1.VirtualMachineRunStrategy, change ...func(*kubevirtv1.VirtualMachine)) *kubevirtv1.VirtualMachine {
	vm := &kubevirtv1.VirtualMachine{
		Spec:   kubevirtv1.VirtualMachineSpec{RunStrategy: &strategy},
		Status: kubevirtv1.VirtualMachineStatus{PrintableStatus: kubevirtv1.VirtualMachineStatusStopped},
	}

	for _, f := range change {
		f(vm)
	}

	return vm
}

func TestMachineIsOffWhenNothingIsToStartIt(t *testing.T) {
	instance := func(phase kubevirtv1.VirtualMachineInstancePhase) *kubevirtv1.VirtualMachineInstance {
		return &kubevirtv1.VirtualMachineInstance{Status: kubevirtv1.VirtualMachineInstanceStatus{Phase: phase}}
	}
	asked := func(vm *kubevirtv1.VirtualMachine) {
		vm.Status.StateChangeRequests = []kubevirtv1.VirtualMachineStateChangeRequest{{Action: kubevirtv1.StopRequest}, {Action: kubevirtv1.StartRequest}}
	}
	filling := func(vm *kubevirtv1.VirtualMachine) {
		vm.Status.PrintableStatus = kubevirtv1.VirtualMachineStatusProvisioning
	}
	unstartable := func(vm *kubevirtv1.VirtualMachine) { vm.Status.StartFailure = &kubevirtv1.VirtualMachineStartFailure{} }

	const (
		always, halted = kubevirtv1.RunStrategyAlways, kubevirtv1.RunStrategyHalted
		rerun, manual  = kubevirtv1.RunStrategyRerunOnFailure, kubevirtv1.RunStrategyManual
	)

	for _, test := range []struct {
		name     string
		vm       *kubevirtv1.VirtualMachine
		instance *kubevirtv1.VirtualMachineInstance
		want     driver.Power
		// stays is whether nothing but a switch starts it.
		stays bool
	}{
		{"running", machineWith(always), instance(kubevirtv1.Running), driver.PowerOn, false},
		{"halted, on its way down", machineWith(halted), instance(kubevirtv1.Running), driver.PowerOn, false},
		{"always, ended", machineWith(always), instance(kubevirtv1.Succeeded), driver.PowerUnknown, false},
		{"always, without instance", machineWith(always), nil, driver.PowerUnknown, false},
		{"halted", machineWith(halted), nil, driver.PowerOff, true},
		{"halted, and asked to start, which KubeVirt makes always of", machineWith(halted, asked), nil, driver.PowerUnknown, false},
		{"manual", machineWith(manual), nil, driver.PowerOff, true},
		{"manual, failed", machineWith(manual), instance(kubevirtv1.Failed), driver.PowerOff, true},
		{"manual, asked to start", machineWith(manual, asked), nil, driver.PowerUnknown, false},
		{"rerun, shut down", machineWith(rerun), instance(kubevirtv1.Succeeded), driver.PowerOff, true},
		{"rerun, failed", machineWith(rerun), instance(kubevirtv1.Failed), driver.PowerUnknown, false},
		{"rerun, after a failure", machineWith(rerun, asked), nil, driver.PowerUnknown, false},
		{"rerun, in a pause", machineWith(rerun, unstartable), nil, driver.PowerUnknown, false},
		{"rerun, with disks that are not ready", machineWith(rerun, filling), nil, driver.PowerOff, false},
	} {
		assert.Equal(t, test.want, powerOf(test.vm, test.instance), test.name)
		assert.Equal(t, test.stays, staysOff(test.vm, test.instance), test.name)
	}
}

// TestWhatHasNotRunForSureHasRun takes each sign by itself.
func TestWhatHasNotRunForSureHasRun(t *testing.T) {
	const halted = kubevirtv1.RunStrategyHalted

	shows := func(s kubevirtv1.VirtualMachinePrintableStatus) *kubevirtv1.VirtualMachine {
		return machineWith(halted, func(vm *kubevirtv1.VirtualMachine) { vm.Status.PrintableStatus = s })
	}

	for _, vm := range []*kubevirtv1.VirtualMachine{
		machineWith(halted), shows(""), shows(kubevirtv1.VirtualMachineStatusProvisioning),
		shows(kubevirtv1.VirtualMachineStatusWaitingForVolumeBinding), shows(kubevirtv1.VirtualMachineStatusDataVolumeError),
	} {
		assert.False(t, hasRun(vm), "%+v", vm)
	}

	for name, vm := range map[string]*kubevirtv1.VirtualMachine{
		"noted": machineWith(halted, func(vm *kubevirtv1.VirtualMachine) {
			vm.ObjectMeta = metav1.ObjectMeta{Annotations: map[string]string{annotationStarted: "true"}}
		}),
		"strategy": machineWith(kubevirtv1.RunStrategyManual),
		"instance": machineWith(halted, func(vm *kubevirtv1.VirtualMachine) { vm.Status.Created = true }),
		"ready":    machineWith(halted, func(vm *kubevirtv1.VirtualMachine) { vm.Status.Ready = true }),
		"failure":  machineWith(halted, func(vm *kubevirtv1.VirtualMachine) { vm.Status.StartFailure = &kubevirtv1.VirtualMachineStartFailure{} }),
		"last run": machineWith(halted, func(vm *kubevirtv1.VirtualMachine) { vm.Status.RunStrategy = halted }),
		"observed": machineWith(halted, func(vm *kubevirtv1.VirtualMachine) { vm.Status.ObservedGeneration = 2 }),
		"request": machineWith(halted, func(vm *kubevirtv1.VirtualMachine) {
			vm.Status.StateChangeRequests = []kubevirtv1.VirtualMachineStateChangeRequest{{}}
		}),
		"crashing": shows(kubevirtv1.VirtualMachineStatusCrashLoopBackOff),
		"unknown":  shows(kubevirtv1.VirtualMachineStatusUnknown),
	} {
		assert.True(t, hasRun(vm), name)
	}
}
