package main

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

// guests are the Talos machines that live in the cloud's VMs.
type guests struct {
	bootTime time.Duration
	log      *zap.Logger
	disks    sync.Map // VM id => *meta.Memory, which outlives a boot
}

func newGuests(c config, log *zap.Logger) *guests {
	return &guests{bootTime: time.Duration(c.BootSeconds) * time.Second, log: log}
}

// boot runs a machine while its VM is on.
func (g *guests) boot(ctx context.Context, vm cloud.VM) {
	disk, _ := g.disks.LoadOrStore(vm.ID, &meta.Memory{})
	schematic, version := imageOf(vm.ImageURL)

	machine := &talos.Machine{
		UUID: vm.UUID, UserData: []byte(vm.UserData), Meta: disk.(*meta.Memory), // Nothing else is stored.
		TalosVersion: version, Schematic: schematic, CPUs: vm.Cores, MemoryMiB: vm.MemoryMiB, Hostname: vm.Name,
		BootTime: g.bootTime,
		Observe: func(s talos.Status) {
			if s.Err != nil {
				g.log.Warn("machine does not get on", zap.String("vm", vm.ID), zap.String("name", vm.Name), zap.Error(s.Err))
			}
		},
	}

	if err := machine.Run(ctx); err != nil && ctx.Err() == nil {
		g.log.Warn("machine does not boot", zap.String("vm", vm.ID), zap.String("name", vm.Name), zap.Error(err))
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
