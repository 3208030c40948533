// Command omnictl is the real omnictl, built from the Omni client module that this repository uses, so that the simulated
// Omni can be tried with it where no release can be downloaded.
package main

import (
	"os"
	"runtime/debug"

	"github.com/siderolabs/omni/client/pkg/omnictl"
	"github.com/siderolabs/omni/client/pkg/version"
)

const clientModule = "github.com/siderolabs/omni/client"

func main() {
	version.Name = "omnictl"
	version.Tag = clientVersion()
	// Releases have the number of their API built in; it is that of the simulated Omni here.
	version.API = 1

	if err := omnictl.RootCmd.Execute(); err != nil {
		os.Exit(1)
	}
}

// clientVersion returns the version of the Omni client module.
func clientVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}

	for _, dep := range info.Deps {
		if dep.Path == clientModule {
			return dep.Version
		}
	}

	return ""
}
