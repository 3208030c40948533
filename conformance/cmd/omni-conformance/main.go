// Command omni-conformance runs the conformance suite on any infra provider's program, over the wire.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals, hurry := make(chan os.Signal, 1), make(chan struct{})

	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	// The first signal ends the run, which tidies up; the second one ends that, but leaves no process of the provider behind; the
	// third one ends everything.
	go func() {
		<-signals
		cancel()
		<-signals
		signal.Stop(signals)
		close(hurry)
	}()

	err := newCommand(os.Args, os.Stdout, os.Stderr, hurry).ExecuteContext(ctx)

	switch {
	case err == nil:
	case errors.Is(err, errFailures):
		os.Exit(1)
	default:
		fmt.Fprintf(os.Stderr, "omni-conformance: %s\n", err)
		os.Exit(2)
	}
}
