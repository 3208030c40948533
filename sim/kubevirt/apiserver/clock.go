package apiserver

import utilruntime "k8s.io/apimachinery/pkg/util/runtime"

// The libraries of Kubernetes log an error that they cannot return, and then pause for as long as the last such error of the process lies
// ahead, plus a millisecond. Each bubble of testing/synctest has a clock of its own, so that this would be hours or years there. They only
// log in a process that has this package.
func init() { //nolint:gochecknoinits // It has to be before the first goroutine that may read it.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
}
