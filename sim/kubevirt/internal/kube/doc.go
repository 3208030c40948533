// Package kube is what the controllers of the simulated cluster share: typed requests to a Kubernetes API server, caches that
// follow its watches, and work queues. It only uses the API as any client does, so that the controllers run on a simulated and
// on a real API server. Nothing in it polls: it waits for watches and for timers that somebody set.
package kube
