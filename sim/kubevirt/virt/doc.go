// Package virt plays KubeVirt v1.8 as its clients see it: virt-controller, which makes machine instances of machines, virt-handler,
// which runs what boots in them, and virt-api with its admission and its subresources. Its controllers are clients of a Kubernetes
// API server, simulated or real; what runs in a machine is a function (Options.Boot).
//
// Rules, conditions and messages were learnt from the sources of KubeVirt v1.8.2 (Apache-2.0): virt-controller/watch/vm and vmi,
// virt-handler, virt-api/rest and the admitters. README.md says what is not modelled.
package virt
