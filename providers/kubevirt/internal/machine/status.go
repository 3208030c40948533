package machine

import (
	corev1 "k8s.io/api/core/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
)

// Condition is what a cluster's reports on an object come to.
type Condition int

// The conditions.
const (
	// Working says that the cluster is at work, and to look again.
	Working Condition = iota
	// Ready says that it is as it should be.
	Ready
	// Stuck says that nothing goes on until somebody changes something in the cluster or in the class.
	Stuck
	// NoCapacity says that the cluster has no room for now.
	NoCapacity
	// Failed says that this object will never come to anything: it has to be made anew.
	Failed
	// Stopped says that the machine is off.
	Stopped
)

// Status is a condition with one sentence for it.
type Status struct {
	Condition Condition
	Text      string
}

// Report is all that a cluster reports of one machine. Every part may be missing.
type Report struct {
	VM          *kubevirtv1.VirtualMachine
	Instance    *kubevirtv1.VirtualMachineInstance
	DataVolumes []cdiv1.DataVolume
	Claims      []corev1.PersistentVolumeClaim
	Pods        []corev1.Pod
	// Events are those of any of the above, in any order.
	Events []corev1.Event
}

// Describe says how the machine is.
func (r Report) Describe() Status { return Status{} }

// DescribeVolume says how a DataVolume is, its claim and their events with it; claim may be nil.
func DescribeVolume(dv *cdiv1.DataVolume, claim *corev1.PersistentVolumeClaim, events []corev1.Event) Status {
	return Status{}
}
