package provider

import (
	"context"
	"fmt"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// maker makes one machine. Each phase looks first, by the mark, and makes only what is missing: a phase that is repeated after
// a crash or a lost reply finds what the first try made.
type maker struct {
	*Driver

	data  ClassData
	names names
}

// createVM makes the machine, switched off, with the mark on it and the join configuration in its user data.
func (m maker) createVM(ctx context.Context, t driver.Task) error {
	_, err := m.findVM(ctx, t.Request.Ref)
	if !driver.IsNotFound(err) {
		return err
	}

	_, err = m.cloud.CreateVM(ctx, VMSpec{
		Name: m.names.vm, Cores: m.data.Cores, MemoryMiB: m.data.Memory, DiskGiB: m.data.DiskSize, ImageURL: t.Image.URL(),
		UUID: t.Request.Identity.UUID, UserData: t.Join.UserData, Tags: mark(t.Request.Ref),
	})
	if err != nil {
		return fmt.Errorf("create machine %q: %w", m.names.vm, classify(err))
	}

	return nil
}

// startVM switches the machine on.
func (m maker) startVM(ctx context.Context, t driver.Task) error {
	vm, err := m.findVM(ctx, t.Request.Ref)
	if err != nil || vm.On {
		return err
	}

	if err := m.cloud.StartVM(ctx, vm.ID); err != nil {
		return fmt.Errorf("start machine %q: %w", vm.Name, classify(err))
	}

	return nil
}
