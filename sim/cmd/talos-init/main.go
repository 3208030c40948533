//go:build linux

// Talos-init is the init of a small Linux guest that behaves like a Talos machine without being one: it finds its join config,
// joins Omni and obeys. It is built without cgo and packed into an image by sim/factory; it is of no use anywhere else.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/talos/guest"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "talos-init is the init of a guest and does nothing else; sim/factory packs it into an image")
		os.Exit(2)
	}

	err := guest.Run(context.Background())
	fmt.Println("talos-init failed:", err)

	// The kernel panics when init ends. Its reboot would hide the reason, so give a reader of the console some time.
	time.Sleep(time.Minute)
	os.Exit(1)
}
