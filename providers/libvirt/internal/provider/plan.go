package provider

import (
	"context"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/nocloud"
)

// Plan checks the class data against itself and against what the machine's host has.
func (d *Driver) Plan(ctx context.Context, req driver.Request) (driver.Plan, error) {
	data, err := checked(req)
	if err != nil {
		return driver.Plan{}, err
	}

	h, err := d.at(req.Place)
	if err != nil {
		return driver.Plan{}, err
	}

	if err := h.Suits(ctx, req, data); err != nil {
		return driver.Plan{}, err
	}

	d.promise(req, data, h)

	b := h.NewBuilder(req, data)
	phases := []driver.Phase{
		{Name: "ensure-image", Ensure: b.EnsureImage},
		{Name: "create-volume", Ensure: b.CreateVolumes},
		{Name: "create-seed", Ensure: b.CreateSeed},
		{Name: "define-domain", Ensure: b.DefineDomain},
	}

	if len(data.Reservations(req.Identity)) > 0 {
		phases = append(phases, driver.Phase{Name: "reserve-address", Ensure: b.ReserveAddresses})
	}

	phases = append(phases, driver.Phase{Name: "start-domain", Ensure: func(ctx context.Context, t driver.Task) error {
		if err := b.StartDomain(ctx, t); err != nil {
			return err
		}

		d.kept(req.Ref)

		return nil
	}})

	objects, err := b.Objects(ctx)
	if err != nil {
		return driver.Plan{}, err
	}

	return driver.Plan{
		UUID:  req.Identity.UUID,
		Image: data.Image(),
		Names: objects,
		// What Kubernetes and the class add to the machine's configuration.
		Patches: data.Patches(req.Identity),
		Phases:  phases,
	}, nil
}

// checked returns the request's class data once all is right with the request that can be told without a hypervisor.
func checked(req driver.Request) (machine.ClassData, error) {
	data, err := classdata.Decode[machine.ClassData](req.ClassData)
	if err != nil {
		return machine.ClassData{}, err
	}

	if err := machine.CheckRequestID(req.RequestID); err != nil {
		return machine.ClassData{}, driver.Terminal(err)
	}

	if err := data.CheckExtensions(req.Extensions); err != nil {
		return machine.ClassData{}, driver.Terminal(err)
	}

	// The seed's own rules, above all for the hostname, hold for any user data.
	if _, err := nocloud.New(nocloud.Config{Hostname: req.RequestID, UserData: "---"}); err != nil {
		return machine.ClassData{}, err
	}

	return data, nil
}
