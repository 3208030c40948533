package virt

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Options shape the controllers. The zero value has one node without limits, takes no time for anything, and boots nothing.
type Options struct {
	// Times are how long things take.
	Times Times
	// Nodes are where machines run; none is one node that has room for all.
	Nodes []Node
	// Boot is what runs in a machine while it is on. Its context ends when power is cut, which a restart of the guest does as well:
	// it is called again then. A machine whose guest returns by itself has been shut down. It is not called for a machine without a disk
	// that has an image: KubeVirt has that one running all the same.
	Boot func(ctx context.Context, g Guest)
	// Unbootable is told of such a machine each time that it is switched on; nil means nobody is.
	Unbootable func(g Guest)
	// Content says which image a claim's disk was made from; nil knows none.
	Content func(namespace, claim string) string
	// Configuration is that of KubeVirt.
	Configuration Configuration
	// NoAutoLimits is a KubeVirt that does not limit launchers by itself where a quota counts limits, as releases before 1.5 by default.
	NoAutoLimits bool
	// Failed is told of errors of the controllers themselves; nil means nobody is.
	Failed func(key string, err error)
}

// Times are how long things take. Zero is at once.
type Times struct {
	// Pull is how long a machine's launcher needs until it is ready, Start how long the machine needs then until it runs.
	Pull, Start time.Duration
	// Shutdown is how long a guest takes to leave when it is asked to.
	Shutdown time.Duration
	// NodeTimeout is after how long a node that is silent is given up; 5 minutes if zero.
	NodeTimeout time.Duration
}

// Node is a node of the cluster.
type Node struct {
	Name string
	// CPU and Memory are what its pods may request. A guest's processor requests a tenth of a processor, its memory all of it.
	CPU, Memory resource.Quantity
	// Labels are its labels besides those of its name and its system; Taints keep off whoever does not tolerate them.
	Labels map[string]string
	Taints []corev1.Taint
	// Devices are how many it has of each kind that machines ask for.
	Devices map[string]int
}

// Fault is something that goes wrong with machines until it is taken back.
type Fault struct {
	// Machine is what namespace and name, joined by a slash, begin with; empty is any.
	Machine string
	// Unschedulable is the scheduler's message; the machine finds no node while it is not empty.
	Unschedulable string
	// Pull is the message of an image that cannot be pulled.
	Pull string
	// Kubelet is what the kubelet warns of about the launcher's pod, which is not ready while it is not empty: one of FailedCreatePodSandBox,
	// FailedMount or FailedAttachVolume, a colon, and the message.
	Kubelet string
	// Crash lets the guest die before it runs.
	Crash bool
	// IOError pauses the machine with an error of its disk.
	IOError bool
	// Deaf lets the guest ignore the power button.
	Deaf bool
	// Linger is how long the instance stays after its machine was deleted.
	Linger time.Duration
}

// gracePeriod is how long a guest has by default to shut down, from virt-api's defaults.
const gracePeriod = 30 * time.Second

func (t Times) nodeTimeout() time.Duration {
	if t.NodeTimeout == 0 {
		return 5 * time.Minute
	}

	return t.NodeTimeout
}
