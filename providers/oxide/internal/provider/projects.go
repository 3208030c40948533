package provider

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// project is a project of the rack. It is spoken of by its name, and asked about by its id, which a new name does not change.
type project struct{ id, name string }

// projectsAge is how long the list of projects is taken for true. A project that a class names is looked at when it is not in the list.
const projectsAge = time.Minute

// projects returns all projects that may have machines of the provider.
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

	d.allowed, d.allowedAt = found, began

	return found, nil
}

func (d *Driver) askProjects(ctx context.Context) ([]project, error) {
	found := []project{}

	if len(d.config.Projects) == 0 {
		all, err := d.rack.Projects(ctx)
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
