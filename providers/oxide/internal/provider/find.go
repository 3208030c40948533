package provider

import (
	"context"
	"slices"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Find returns the machine of a request.
func (d *Driver) Find(ctx context.Context, ref driver.Ref) (driver.Machine, error) {
	in, i, err := d.find(ctx, ref)
	if err != nil {
		return driver.Machine{}, err
	}

	return d.machineOf(ref, in, i), nil
}

// find returns the instance of a request and its project. Where it was seen last it is looked for first, then where it is said to be likely.
func (d *Driver) find(ctx context.Context, ref driver.Ref, likely ...project) (project, oxide.Instance, error) {
	all, err := d.whereabouts(ctx, ref.ProviderID)
	if err != nil {
		return project{}, oxide.Instance{}, err
	}

	last := d.lastSeen(ref)
	rank := func(p project) int {
		switch {
		case p.id == last:
			return 0
		case slices.Contains(likely, p):
			return 1
		default:
			return 2
		}
	}

	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b project) int { return rank(a) - rank(b) })

	for _, in := range all {
		i, err := d.instance(ctx, in, ref)
		if driver.IsNotFound(err) {
			continue
		}

		if err != nil {
			return project{}, oxide.Instance{}, err
		}

		d.saw(ref, in.id)

		return in, i, nil
	}

	return project{}, oxide.Instance{}, driver.NotFound("no project that the provider may use has the machine of %q", ref.RequestID)
}

// instance returns the request's instance in a project, by its name and its mark.
func (d *Driver) instance(ctx context.Context, in project, ref driver.Ref) (oxide.Instance, error) {
	i, err := d.rack.Instance(ctx, in.id, machine.NamesOf(ref).Instance)
	if err != nil {
		return oxide.Instance{}, err
	}

	if !d.owns(i, ref) || i.RunState == oxide.InstanceStateDestroyed {
		return oxide.Instance{}, driver.NotFound("instance %q in project %q is not the machine of %q", i.Name, in.name, ref.RequestID)
	}

	return i, nil
}

func (d *Driver) owns(i oxide.Instance, ref driver.Ref) bool {
	of, ours := machine.Owner(ref.ProviderID, machine.KindInstance, string(i.Name), i.Description)

	return ours && of == ref
}

// List returns the provider's machines in all projects, and what is left of others.
func (d *Driver) List(ctx context.Context, providerID string) ([]driver.Machine, error) {
	d.scratch.act()

	all, err := d.whereabouts(ctx, providerID)
	if err != nil {
		return nil, err
	}

	var machines []driver.Machine

	for _, in := range all {
		found, err := d.listProject(ctx, providerID, in)
		if err != nil {
			return nil, err
		}

		machines = append(machines, found...)
	}

	there := make(map[string]bool, len(machines))
	for _, m := range machines {
		there[m.ID] = true
	}

	d.forgetBoots(there)
	d.sweepIfDue(providerID)

	return machines, nil
}

func (d *Driver) listProject(ctx context.Context, providerID string, in project) ([]driver.Machine, error) {
	instances, err := d.rack.Instances(ctx, in.id)
	if err != nil {
		return nil, err
	}

	// After the instances: a machine that is made meanwhile would show as its disks alone.
	disks, err := d.rack.Disks(ctx, in.id)
	if err != nil {
		return nil, err
	}

	ips, err := d.rack.FloatingIPs(ctx, in.id)
	if err != nil {
		return nil, err
	}

	l := listing{in: in, whole: map[driver.Ref]bool{}}

	for _, i := range instances {
		ref, ours := machine.Owner(providerID, machine.KindInstance, string(i.Name), i.Description)
		if !ours || i.RunState == oxide.InstanceStateDestroyed {
			continue
		}

		if ref.RequestID != "" {
			l.whole[ref] = true

			d.saw(ref, in.id)
			l.machines = append(l.machines, d.machineOf(ref, in, i))

			continue
		}

		l.add(ref, i.Id, string(i.RunState), i.TimeCreated)
	}

	for _, disk := range disks {
		if ref, ours := machine.Owner(providerID, machine.KindDisk, string(disk.Name), disk.Description); ours {
			l.add(ref, disk.Id, string(disk.State.State()), disk.TimeCreated)
		} else if mark, ours := machine.ScratchMark(providerID, string(disk.Name), disk.Description); ours && d.scratch.dead(mark, disk.TimeCreated) {
			l.add(mark.Ref(), disk.Id, string(disk.State.State()), disk.TimeCreated)
		}
	}

	for _, ip := range ips {
		if ref, ours := machine.Owner(providerID, machine.KindFloatingIP, string(ip.Name), ip.Description); ours {
			l.add(ref, ip.Id, "reserved", ip.TimeCreated)
		}
	}

	return l.machines, nil
}

// listing is what a project has of a provider.
type listing struct {
	in       project
	machines []driver.Machine
	// whole are the requests that have an instance, or of which a part has been added.
	whole map[driver.Ref]bool
}

// add notes an object that is no machine. Of several of one request one tells it.
func (l *listing) add(ref driver.Ref, id, state string, created *time.Time) {
	if ref.RequestID == "" {
		// Its own id is all that tells an operator what to look for.
		l.machines = append(l.machines, driver.Machine{Ref: ref, ID: id, State: state, Incomplete: true, CreatedAt: at(created), Labels: l.in.labels()})

		return
	}

	if !l.whole[ref] {
		l.whole[ref] = true
		l.machines = append(l.machines, driver.Machine{Ref: ref, State: state, Incomplete: true, CreatedAt: at(created), Labels: l.in.labels()})
	}
}

func (d *Driver) machineOf(ref driver.Ref, in project, i oxide.Instance) driver.Machine {
	return driver.Machine{
		Ref: ref, ID: i.Id, Power: powerOf(i.RunState), State: string(i.RunState), Boot: d.bootOf(i), Labels: in.labels(), CreatedAt: at(i.TimeCreated),
	}
}

func (p project) labels() map[string]string { return map[string]string{"project": p.name} }

func at(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}

	return *t
}
