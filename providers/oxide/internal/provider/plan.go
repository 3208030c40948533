package provider

import (
	"context"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Plan checks the class data and finds the machine's project, and the machine if it has been made: Kubernetes knows the node by the id
// that the rack has given it. A machine that was made before its class named another project stays where it is: there is never a second one.
func (d *Driver) Plan(ctx context.Context, req driver.Request) (driver.Plan, error) {
	d.scratch.act()

	data, err := classdata.Decode[machine.ClassData](req.ClassData)
	if err != nil {
		return driver.Plan{}, err
	}

	if err := data.CheckRequest(req.RequestID, req.TalosVersion); err != nil {
		return driver.Plan{}, driver.Terminal(err)
	}

	if _, err := data.Instance(req.Ref, d.config.Version, "", ""); err != nil {
		return driver.Plan{}, driver.Terminal(err)
	}

	in, err := d.project(ctx, data.Project)
	if err != nil {
		return driver.Plan{}, err
	}

	m := &maker{Driver: d, ref: req.Ref, data: data, project: in, names: machine.NamesOf(req.Ref)}

	where, found, err := d.find(ctx, req.Ref, in)

	switch {
	case err == nil:
		m.project, m.instance = where, &found
	case !driver.IsNotFound(err):
		return driver.Plan{}, err
	}

	phases := []driver.Phase{{Name: "ensure-image", Ensure: m.ensureImage}}

	if len(data.MadeFloatingIPs()) > 0 {
		phases = append(phases, driver.Phase{Name: "reserve-address", Ensure: m.reserveAddresses})
	}

	phases = append(phases,
		driver.Phase{Name: "create-instance", Ensure: m.createInstance},
		driver.Phase{Name: "start-instance", Ensure: m.startInstance},
	)

	return driver.Plan{
		Image:   data.Image(),
		Names:   data.Objects(req.Ref),
		Patches: data.Patches(m.instanceID()),
		Phases:  phases,
	}, nil
}

// maker makes one machine. It is of one attempt, and works on one phase at a time.
type maker struct {
	*Driver

	ref     driver.Ref
	data    machine.ClassData
	project project
	names   machine.Names
	// instance is what Plan has found, nil for nothing.
	instance *oxide.Instance
	// image is what ensureImage has found.
	image bootImage
}

func (m *maker) instanceID() string {
	if m.instance == nil {
		return ""
	}

	return m.instance.Id
}
