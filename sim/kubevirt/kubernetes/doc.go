// Package kubernetes plays what kube-controller-manager and the storage provisioners do that clients of the cluster notice: the garbage
// collector, the end of namespaces, and the binding and protection of claims. Its controllers are clients of a Kubernetes API server,
// simulated or real. The scheduler is played by package virt, which places machines without making pods.
package kubernetes
