// Command lab tells the story of the demo with real guests: a private libvirtd in namespaces of its own, the provider's program,
// the simulated Omni and image factory as programs, and machines that QEMU boots. Afterwards virsh says what is left. Run it
// as root from the repository's root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// config is what the flags say.
type config struct {
	machines int
	firmware string
	patience time.Duration
	plain    bool
	keep     bool
	// inside is the lab's directory when this process runs beside the private libvirtd, empty in the one that was started.
	inside string
}

func main() {
	var cfg config

	flag.IntVar(&cfg.machines, "machines", 3, "how many machines the set has")
	flag.StringVar(&cfg.firmware, "firmware", "uefi", "firmware that boots the machines: uefi or bios")
	flag.DurationVar(&cfg.patience, "patience", 8*time.Minute, "how long a step may take; emulated machines boot slowly")
	flag.BoolVar(&cfg.plain, "plain", false, "print a line for each event instead of a live table")
	flag.BoolVar(&cfg.keep, "keep", false, "stop before the set is deleted, print how to look around, and wait for Ctrl-C")
	flag.StringVar(&cfg.inside, "inside", "", "for the lab's own use")
	flag.Parse()

	if flag.NArg() > 0 || cfg.machines < 1 {
		flag.Usage()
		os.Exit(2)
	}

	if err := run(cfg); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(cfg config) error {
	if cfg.inside == "" {
		return outside(cfg)
	}

	// With keep, Ctrl-C ends the pause, and the story goes on to its end.
	signals := []os.Signal{syscall.SIGTERM}
	if !cfg.keep {
		signals = append(signals, os.Interrupt)
	}

	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()

	l := &lab{config: cfg, dir: layout(cfg.inside)}

	return errors.Join(l.tell(ctx), l.stopAll())
}
