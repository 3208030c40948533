// Command omni-infra-provider-oxide makes machines for Omni on an Oxide rack.
package main

import (
	_ "embed"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/runner"
)

//go:embed icon.svg
var icon string

func main() { runner.Main(program) }

var program = runner.Program[config]{
	Name:        "oxide",
	Title:       "Oxide",
	Description: "Oxide Omni infrastructure provider.",
	Icon:        icon,
	Schema:      machine.Schema(),
	Validate: func(data string) error {
		_, err := classdata.Decode[machine.ClassData](data)

		return err
	},
	Env:   environment,
	Flags: flags,
	New:   newDriver,
}
