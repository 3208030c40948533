// Command omni-infra-provider-memory is the reference provider as a program. Its cloud is in its own memory, and its machines are
// simulated Talos machines which join the Omni that it works for: something to try Omni with, and to learn from. When it ends
// its machines are gone, unless the cloud is the one of a memory-cloud program.
package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/providers/memory"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/runner"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
	"github.com/omni-infra/omni-infra-providers/sim/memory/guests"
)

func main() { runner.Main(program) }

// config is the section "memory" of the configuration file.
type config struct {
	MaxMachines int    `json:"max_machines" title:"Capacity" doc:"How many machines the cloud has room for; 0 is without limit." default:"0" min:"0" max:"100000"`
	Cloud       string `json:"cloud" title:"Cloud" doc:"Where the cloud is, as unix:/run/memory-cloud; empty is in the provider's own memory." default:""`
	BootSeconds int    `json:"boot_seconds" title:"Boot time" doc:"How long a machine boots before it joins, in seconds." default:"2" min:"0" max:"3600"`
}

var program = runner.Program[config]{
	Name:        "memory",
	Title:       "In memory",
	Description: "simulated machines in the memory of the provider",
	Schema:      memory.Schema(),
	Validate:    memory.Validate,
	Env:         map[string]string{"max-machines": "MEMORY_MAX_MACHINES"},
	Flags: func(flags *pflag.FlagSet, c *config) {
		flags.IntVar(&c.MaxMachines, "max-machines", c.MaxMachines, "how many machines the cloud has room for; 0 is without limit ($MEMORY_MAX_MACHINES)")
		flags.StringVar(&c.Cloud, "cloud", c.Cloud, "where the cloud is: unix: and the socket of a memory-cloud program (default in the provider's own memory)")
		flags.IntVar(&c.BootSeconds, "boot-seconds", c.BootSeconds, "how long a machine boots before it joins, in seconds")
	},
	New: func(_ context.Context, c config, log *zap.Logger) (driver.Driver, func() error, error) {
		if c.Cloud != "" {
			socket, ok := strings.CutPrefix(c.Cloud, "unix:")
			if !ok || socket == "" {
				return nil, nil, fmt.Errorf("--cloud %q: want unix: and the path of a socket, as unix:/run/memory-cloud", c.Cloud)
			}

			return memory.New(cloud.Dial(socket)), func() error { return nil }, nil
		}

		guests := guests.Guests{BootTime: time.Duration(c.BootSeconds) * time.Second, Log: log}
		site := cloud.New(cloud.Options{MaxVMs: c.MaxMachines, Boot: guests.Boot})

		return memory.New(site.Client()), func() error {
			site.Close()

			return nil
		}, nil
	},
}
