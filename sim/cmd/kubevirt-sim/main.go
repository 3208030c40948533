// Command kubevirt-sim is a simulated Kubernetes cluster with KubeVirt and CDI as a program of its own, whose machines are simulated
// Talos machines. A provider reaches it with the kubeconfig that it writes. It is also the hook with which omni-conformance looks at
// that cluster.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand(os.Stdout, os.Stderr).ExecuteContext(ctx)

	stop()

	if err != nil {
		fmt.Fprintf(os.Stderr, "kubevirt-sim: %s\n", err)
		os.Exit(1)
	}
}
