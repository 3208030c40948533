package provider

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/rack"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// project is a project of the rack. It is spoken of by its name, and asked about by its id, which a new name does not change.
type project struct{ id, name string }

// projectsAge is how long the list of projects is taken for true. A project that a class names is looked at when it is not in the list.
const projectsAge = time.Minute

// projects returns all projects that classes may use.
func (d *Driver) projects(ctx context.Context) ([]project, error) {
	d.mu.Lock()
	known, at := d.allowed, d.allowedAt
	d.mu.Unlock()

	if known != nil && time.Since(at) < projectsAge {
		return known, nil
	}

	began := time.Now()

	found, err := d.askProjects(ctx)
	if err != nil {
		return nil, err
	}

	d.mu.Lock()
	defer d.mu.Unlock()

	// One that began later knows better.
	if !began.Before(d.allowedAt) {
		d.allowed, d.allowedAt = found, began
	}

	return found, nil
}

// former are the projects that classes may not use any more, and that have something of a provider.
type former struct {
	of    string
	at    time.Time
	found []project
}

// formerAge is how long the former projects are taken for all of them. Nothing is made in a project that is none of the configured ones, so
// that new ones come up only with another process.
const formerAge = time.Hour

// whereabouts returns all projects that may have something of the provider: those that classes may use, and those that they could use before
// somebody changed the configuration, as far as the token sees them. What those have goes when its request does, not with the configuration.
func (d *Driver) whereabouts(ctx context.Context, providerID string) ([]project, error) {
	all, err := d.projects(ctx)
	if err != nil || len(d.config.Projects) == 0 {
		return all, err
	}

	d.mu.Lock()
	known := d.former
	d.mu.Unlock()

	if known.of != providerID || time.Since(known.at) >= formerAge {
		known = former{of: providerID, at: time.Now()}

		if known.found, err = d.askFormer(ctx, providerID, all); err != nil {
			return nil, err
		}

		d.mu.Lock()
		d.former = known
		d.mu.Unlock()
	}

	all = slices.Clone(all)

	for _, in := range known.found {
		if !slices.ContainsFunc(all, func(p project) bool { return p.id == in.id }) {
			all = append(all, in)
		}
	}

	return all, nil
}

func (d *Driver) askFormer(ctx context.Context, providerID string, allowed []project) ([]project, error) {
	visible, err := d.rack.Projects(ctx)
	if rack.Denied(err) {
		// The token is for the configured projects alone, and cannot reach into others.
		return nil, nil
	}

	if err != nil {
		return nil, err
	}

	var found []project

	for _, p := range visible {
		in := known(p)
		if slices.ContainsFunc(allowed, func(p project) bool { return p.id == in.id }) {
			continue
		}

		has, err := d.hasAnything(ctx, providerID, in)
		if rack.Denied(err) {
			continue
		}

		if err != nil {
			return nil, err
		}

		if has {
			found = append(found, in)

			d.log.Warn("a project that is not one of the configuration has machines or images of this provider: they are looked after until they go",
				zap.String("project", in.name))
		}
	}

	return found, nil
}

// hasAnything says whether a project has something that the provider has made, and takes away some day.
func (d *Driver) hasAnything(ctx context.Context, providerID string, in project) (bool, error) {
	instances, err := d.rack.Instances(ctx, in.id)
	if err != nil {
		return false, err
	}

	for _, i := range instances {
		if _, ours := machine.Owner(providerID, machine.KindInstance, string(i.Name), i.Description); ours {
			return true, nil
		}
	}

	disks, err := d.rack.Disks(ctx, in.id)
	if err != nil {
		return false, err
	}

	for _, disk := range disks {
		_, ours := machine.Owner(providerID, machine.KindDisk, string(disk.Name), disk.Description)
		_, scratch := machine.ScratchMark(providerID, string(disk.Name), disk.Description)

		if ours || scratch {
			return true, nil
		}
	}

	ips, err := d.rack.FloatingIPs(ctx, in.id)
	if err != nil {
		return false, err
	}

	for _, ip := range ips {
		if _, ours := machine.Owner(providerID, machine.KindFloatingIP, string(ip.Name), ip.Description); ours {
			return true, nil
		}
	}

	images, err := d.rack.Images(ctx, in.id)
	if err != nil {
		return false, err
	}

	for _, image := range images {
		if _, ours := machine.OwnsImage(providerID, image); ours && image.ProjectId == in.id {
			return true, nil
		}
	}

	return false, nil
}

func (d *Driver) askProjects(ctx context.Context) ([]project, error) {
	found := []project{}

	if len(d.config.Projects) == 0 {
		all, err := d.rack.Projects(ctx)
		if rack.Denied(err) {
			return nil, fmt.Errorf("%w; a viewer of the silo has it: name the projects in the provider's configuration (--project) otherwise", err)
		}

		if err != nil {
			return nil, err
		}

		for _, p := range all {
			found = append(found, known(p))
		}

		return found, nil
	}

	for _, name := range d.config.Projects {
		p, err := d.rack.Project(ctx, name)
		if driver.IsNotFound(err) {
			// Whatever it has cannot be seen.
			return nil, fmt.Errorf("project %q of the provider's configuration is not there, or the token may not see it", name)
		}

		if err != nil {
			return nil, err
		}

		if one := known(p); !slices.Contains(found, one) {
			found = append(found, one)
		}
	}

	return found, nil
}

// project returns the project of a class.
func (d *Driver) project(ctx context.Context, nameOrID string) (project, error) {
	for range 2 {
		all, err := d.projects(ctx)
		if err != nil {
			return project{}, err
		}

		for _, p := range all {
			if p.name == nameOrID || strings.EqualFold(p.id, nameOrID) {
				return p, nil
			}
		}

		// It may be new.
		d.mu.Lock()
		d.allowed = nil
		d.mu.Unlock()
	}

	if len(d.config.Projects) > 0 {
		return project{}, driver.Terminalf("project: got %q, but the provider's configuration allows %s alone", nameOrID, strings.Join(d.config.Projects, ", "))
	}

	return project{}, fmt.Errorf("project: the rack has no project %q, or the provider's token may not see it", nameOrID)
}

func known(p oxide.Project) project { return project{id: p.Id, name: string(p.Name)} }
