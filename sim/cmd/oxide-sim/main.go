// Command oxide-sim is a simulated Oxide rack on loopback, whose instances are simulated Talos machines. It is also the hook with which
// omni-conformance looks at that rack.
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
		fmt.Fprintf(os.Stderr, "oxide-sim: %s\n", err)
		os.Exit(1)
	}
}
