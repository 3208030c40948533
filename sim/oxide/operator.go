package oxide

import (
	"fmt"

	api "github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Machines returns the instances of all projects, the oldest first. One that is starting or stopping is what it was.
func (r *Rack) Machines() []ledger.Machine {
	r.mu.Lock()
	defer r.mu.Unlock()

	var all []ledger.Machine

	for _, i := range r.instances.rows {
		p, _ := r.projects.byID(i.scope)

		all = append(all, ledger.Machine{
			ID: i.id, Name: i.name, UUID: r.smbios(i.id), On: i.active() && i.state != api.InstanceStateStarting, Boots: i.boots,
			Tags: map[string]string{"description": i.description, "hostname": i.hostname, "project": p.name},
		})
	}

	return all
}

// change calls f with an instance, and notes that someone did it.
func (r *Rack) change(id, what string, f func(*instance) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()

	i, ok := r.instances.byID(id)
	if !ok {
		return fmt.Errorf("%s instance %q: there is none", what, id)
	}

	r.ledger.Note("someone does %s instance %s", what, id)

	return f(i)
}

// DeleteMachine takes an instance away, running or not, as somebody who stops and deletes it would. Its disks stay.
func (r *Rack) DeleteMachine(id string) error {
	return r.change(id, "delete", func(i *instance) error {
		r.dropInstanceLocked(i)()

		return nil
	})
}

func wrongState(i *instance) error { return fmt.Errorf("instance %q is %s", i.id, i.state) }

// SwitchOff stops a running instance as someone at the console would.
func (r *Rack) SwitchOff(id string) error {
	return r.change(id, "stop", func(i *instance) error {
		if i.state != api.InstanceStateRunning {
			return wrongState(i)
		}

		r.stopLocked(i)

		return nil
	})
}

// SwitchOn starts a stopped instance as someone at the console would.
func (r *Rack) SwitchOn(id string) error {
	return r.change(id, "start", func(i *instance) error {
		if i.state != api.InstanceStateStopped {
			return wrongState(i)
		}

		return r.startLocked(i)
	})
}

// Fail lets the virtual machine of an instance get lost, as when its sled fails.
func (r *Rack) Fail(id string) error {
	return r.change(id, "fail", func(i *instance) error {
		if !i.active() {
			return wrongState(i)
		}

		r.failLocked(i)

		return nil
	})
}

// Migrate moves a running instance to another sled, for Options.Migration. Its guest runs on.
func (r *Rack) Migrate(id string) error {
	return r.pass(id, "migrate", api.InstanceStateMigrating)
}

// Repair puts a running instance into the state "repairing", for Options.Repair. Its guest runs on.
func (r *Rack) Repair(id string) error {
	return r.pass(id, "repair", api.InstanceStateRepairing)
}

func (r *Rack) pass(id, what string, state api.InstanceState) error {
	return r.change(id, what, func(i *instance) error {
		if i.state != api.InstanceStateRunning {
			return wrongState(i)
		}

		d := r.opts.Migration
		if state == api.InstanceStateRepairing {
			d = r.opts.Repair
		}

		i.enter(state)
		r.followLocked(i, d, func() { i.enter(api.InstanceStateRunning) })

		return nil
	})
}

// HideMachine leaves an instance out of the next lists of its project.
func (r *Rack) HideMachine(id string, lists int) {
	_ = r.change(id, "hide", func(i *instance) error { i.hidden = lists; return nil }) // One that has gone is in no list.
}

// SetDisk puts a disk into a state that only the rack itself puts disks into: maintenance, faulted, or detached again.
func (r *Rack) SetDisk(id string, state api.DiskStateState) error {
	r.mu.Lock()
	defer r.mu.Unlock()

	d, ok := r.disks.byID(id)

	switch {
	case !ok:
		return fmt.Errorf("set disk %q: there is none", id)
	case state != api.DiskStateStateMaintenance && state != api.DiskStateStateFaulted && state != api.DiskStateStateDetached:
		return fmt.Errorf("set disk %q: state %s is not one of the rack's own", id, state)
	}

	r.ledger.Note("disk %s is %s", id, state)
	d.enter(state)

	return nil
}

// Content returns what is on a "disk", an "image" or a "snapshot".
func (r *Rack) Content(kind, id string) (*Content, error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	switch kind {
	case "disk":
		if d, ok := r.disks.byID(id); ok {
			return d.content.exported(), nil
		}
	case "image":
		if i, ok := r.images.byID(id); ok {
			return i.content.exported(), nil
		}
	case "snapshot":
		if s, ok := r.snapshots.byID(id); ok {
			return s.content.exported(), nil
		}
	}

	return nil, fmt.Errorf("content of %s %q: there is none", kind, id)
}

// AddForeign makes an object that belongs to somebody else, in the first project in which the name is free. If it is taken in all of
// them, that is an error, as the rack holds names unique. The books count the object as no leak.
func (r *Rack) AddForeign(kind, name string) (id string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, in := range r.projects.rows {
		if id, err = r.foreignLocked(in, kind, name); err == nil {
			break
		}
	}

	if err != nil {
		return "", fmt.Errorf("add foreign %s %q: %w", kind, name, err)
	}

	r.ledger.Note("somebody else makes %s %s %q", kind, id, name)
	r.keepLocked(kind, id)

	return id, nil
}

func (r *Rack) foreignLocked(in *project, kind, name string) (id string, err error) {
	if err := checkName(name); err != nil {
		return "", err
	}

	blank := api.DiskCreate{Name: api.Name(name), Description: "somebody else's", Size: gib, DiskBackend: api.DiskBackend{
		Value: &api.DiskBackendDistributed{DiskSource: api.DiskSource{Value: &api.DiskSourceBlank{BlockSize: 512}}},
	}}

	switch kind {
	case "disk":
		d, err := r.newDiskLocked(in, blank)
		if err != nil {
			return "", err
		}

		r.readyLocked(d)

		return d.id, nil
	case "image":
		if err := r.images.free(in.id, name, ""); err != nil {
			return "", err
		}

		i := &image{meta: r.newMeta(name, "somebody else's", in.id), os: "linux", version: "1", blockSize: 512, content: newContent(gib)}
		r.images.add(r.ledger, i, true)

		return i.id, nil
	case "snapshot":
		if err := r.snapshots.free(in.id, name, ""); err != nil {
			return "", err
		}

		s := &snapshot{
			meta: r.newMeta(name, "somebody else's", in.id), disk: r.newID(), blockSize: 512, state: api.SnapshotStateReady,
			content: newContent(gib),
		}
		r.snapshots.add(r.ledger, s, true)

		return s.id, nil
	case "instance":
		return r.foreignInstanceLocked(in, name)
	case "floating-ip":
		return r.foreignAddressLocked(in, name)
	case "anti-affinity-group":
		if err := r.antiGroup.free(in.id, name, ""); err != nil {
			return "", err
		}

		g := &group{meta: r.newMeta(name, "somebody else's", in.id), policy: api.AffinityPolicyAllow}
		r.antiGroup.add(r.ledger, g, true)

		return g.id, nil
	default:
		return "", fmt.Errorf("a rack has no such objects")
	}
}

func (r *Rack) foreignInstanceLocked(in *project, name string) (id string, err error) {
	if err := r.instances.free(in.id, name, ""); err != nil {
		return "", err
	}

	i := &instance{meta: r.newMeta(name, "somebody else's", in.id), hostname: name, cpus: 1, memory: gib}
	i.enter(api.InstanceStateStopped)
	r.instances.add(r.ledger, i, true)

	if err := r.placeLocked(i); err != nil {
		return "", err
	}

	r.runLocked(i)

	return i.id, nil
}

func (r *Rack) foreignAddressLocked(in *project, name string) (id string, err error) {
	if err := r.floating.free(in.id, name, ""); err != nil {
		return "", err
	}

	a, err := r.takeLocked(r.pools.rows[0])
	if err != nil {
		return "", err
	}

	f := &floatingIP{meta: r.newMeta(name, "somebody else's", in.id), address: a}
	r.floating.add(r.ledger, f, true)

	return f.id, nil
}
