// Command demo shows the whole life of a set of machines in seconds, with nothing but Go: a simulated Omni, the reference
// provider on a cloud in memory, and simulated Talos machines, all in this process and without a socket.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	cfg := config{out: os.Stdout}

	flag.IntVar(&cfg.machines, "machines", 3, "how many machines the set has")
	flag.BoolVar(&cfg.plain, "plain", false, "print a line for each event instead of a live table")
	flag.StringVar(&cfg.log, "log", "", "write the provider's log and the cloud's history to this file")
	flag.Parse()

	if flag.NArg() > 0 || cfg.machines < 1 {
		flag.Usage()
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, cfg)

	stop()

	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}
