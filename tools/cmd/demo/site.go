package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"

	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
	"github.com/omni-infra/omni-infra-providers/sim/talos/meta"
)

// bootTime passes until a machine looks for its join config, so that one can see it happen.
const bootTime = 300 * time.Millisecond

// site is the cloud with Talos inside its machines, as the story sees it.
type site struct {
	cloud *cloud.Cloud
	omni  *omni.Omni

	mu sync.Mutex
	// metas has what each machine keeps over its boots, by the machine's id.
	metas map[string]*meta.Memory
}

func newSite(server *omni.Omni) *site {
	s := &site{omni: server, metas: map[string]*meta.Memory{}}
	s.cloud = cloud.New(cloud.Options{Latency: time.Millisecond, Jitter: 0.5, Boot: s.boot})

	return s
}

// boot is one boot of a machine, from power on to power off.
func (s *site) boot(ctx context.Context, vm cloud.VM) {
	machine := talos.Machine{
		UUID: vm.UUID, UserData: []byte(vm.UserData), Meta: s.meta(vm.ID), BootTime: bootTime,
		CPUs: vm.Cores, MemoryMiB: vm.MemoryMiB, Arch: "amd64",
		Dial: func(context.Context, string, []string) (*grpc.ClientConn, error) { return s.omni.DialMachineAPI() },
	}

	// A machine whose fields are wrong stays off; the story then says that it is missing.
	_ = machine.Run(ctx)
}

func (s *site) meta(id string) *meta.Memory {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.metas[id] == nil {
		s.metas[id] = &meta.Memory{}
	}

	return s.metas[id]
}

// Machines implements story.Cloud.
func (s *site) Machines(context.Context) ([]string, error) {
	var names []string
	for _, m := range s.cloud.Machines() {
		names = append(names, m.Name)
	}

	return names, nil
}

// Remove implements story.Cloud.
func (s *site) Remove(_ context.Context, name string) error {
	for _, m := range s.cloud.Machines() {
		if m.Name == name {
			return s.cloud.DeleteMachine(m.ID)
		}
	}

	return fmt.Errorf("the cloud has no machine %q", name)
}
