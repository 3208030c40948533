// Package guests puts simulated Talos machines into the machines of the cloud in memory. Programs with such a cloud import it.
package guests

import (
	"context"
	"path"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
	"github.com/omni-infra/omni-infra-providers/sim/talos/meta"
)

// Guests are the Talos machines of one cloud.
type Guests struct {
	// BootTime is how long a machine boots before it joins.
	BootTime time.Duration
	// Log is told what keeps machines from joining.
	Log *zap.Logger

	disks sync.Map // VM id => *meta.Memory, which outlives a boot
}

// Boot runs a machine while its VM is on. It is what memory.Options.Boot takes.
func (g *Guests) Boot(ctx context.Context, vm cloud.VM) {
	disk, _ := g.disks.LoadOrStore(vm.ID, &meta.Memory{})
	schematic, version := imageOf(vm.ImageURL)

	machine := &talos.Machine{
		UUID: vm.UUID, UserData: []byte(vm.UserData), Meta: disk.(*meta.Memory), // Nothing else is stored.
		TalosVersion: version, Schematic: schematic, CPUs: vm.Cores, MemoryMiB: vm.MemoryMiB, Hostname: vm.Name,
		BootTime: g.BootTime,
		Observe: func(s talos.Status) {
			if s.Err != nil {
				g.Log.Warn("machine does not get on", zap.String("vm", vm.ID), zap.String("name", vm.Name), zap.Error(s.Err))
			}
		},
	}

	if err := machine.Run(ctx); err != nil && ctx.Err() == nil {
		g.Log.Warn("machine does not boot", zap.String("vm", vm.ID), zap.String("name", vm.Name), zap.Error(err))
	}
}

// imageOf reads schematic and version out of an image factory's URL, https://HOST/image/SCHEMATIC/VERSION/FILE. Both are empty
// for any other URL.
func imageOf(url string) (schematic, version string) {
	_, rest, found := strings.Cut(url, "/image/")

	parts := strings.Split(path.Clean(rest), "/")
	if !found || len(parts) != 3 {
		return "", ""
	}

	return parts[0], parts[1]
}
