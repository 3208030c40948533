// Command memory-cloud is the cloud in memory as a program of its own, for providers that die and come back: the machines of
// omni-infra-provider-memory outlive it there. It is also the hook with which omni-conformance looks at that cloud.
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
		fmt.Fprintf(os.Stderr, "memory-cloud: %s\n", err)
		os.Exit(1)
	}
}
