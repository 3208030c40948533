// Package machine turns a machine class and a request into the Kubernetes objects of one machine, and what the cluster reports of
// them into one sentence. It calls no cluster and knows no time: package provider does.
//
// A machine is a VirtualMachine and a Secret with what it is told at its first boot. KubeVirt makes the machine's disks from the
// VirtualMachine's DataVolume templates, of which it is the owner, so that creating and deleting the VirtualMachine creates and
// deletes all that is costly, in one call each, and no crash comes between. Nothing is lost when a release of CDI removes a DataVolume
// that has been filled, or somebody does: KubeVirt makes it again from the template, and CDI takes over the claim of that name.
package machine
