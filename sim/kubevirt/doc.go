// Package kubevirt is a simulated Kubernetes cluster with KubeVirt and CDI, for providers and tests: an API server (package apiserver),
// the controllers that make machines, volumes and garbage of what is written there (packages virt, cdi and kubernetes), and one ledger.
// The same controllers run on a real API server as well (Controllers).
package kubevirt
