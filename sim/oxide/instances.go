package oxide

import (
	"fmt"
	"net/http"
	"slices"
	"time"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

type instance struct {
	meta
	hostname string
	cpus     int
	memory   int64
	platform api.InstanceCpuPlatform
	policy   api.InstanceAutoRestartPolicy
	jumbo    bool
	userData []byte
	keys     []string // ids of SSH keys
	boot     string   // id of the boot disk, empty for none

	state      api.InstanceState
	stateSince time.Time
	// epoch counts the changes of state, so that what was to follow one knows whether another came in between.
	epoch int
	// placed says that it is on a sled, and uses processors and memory.
	placed bool
	sled   int
	boots  int
	guest  *guest
	// restarted is when it was last restarted by itself, zero for never.
	restarted time.Time

	console []byte
	// consoleStart is the offset of the first byte of console.
	consoleStart int64
	// hidden is how many lists leave the instance out.
	hidden int
	// ephemeral are its ephemeral addresses, snat that of its outbound traffic.
	ephemeral []address
	snat      *snat
}

func (i *instance) enter(s api.InstanceState) {
	i.state, i.stateSince = s, time.Now().UTC()
	i.epoch++
	i.touch()

	if s == api.InstanceStateStopped || s == api.InstanceStateFailed {
		i.placed = false
	}
}

// active says whether the instance has a virtual machine.
func (i *instance) active() bool {
	switch i.state {
	case api.InstanceStateCreating, api.InstanceStateStopped, api.InstanceStateFailed, api.InstanceStateDestroyed:
		return false
	default:
		return true
	}
}

func (r *Rack) viewInstanceLocked(i *instance) api.Instance {
	view := api.Instance{
		Id: i.id, Name: api.Name(i.name), Description: i.description, ProjectId: i.scope, Hostname: i.hostname,
		Ncpus: api.InstanceCpuCount(i.cpus), Memory: api.ByteCount(i.memory), //nolint:gosec // They were checked.
		CpuPlatform: i.platform, AutoRestartPolicy: i.policy, AutoRestartEnabled: new(i.policy != api.InstanceAutoRestartPolicyNever),
		BootDiskId: i.boot, EnableJumboFrames: new(i.jumbo), RunState: i.state, TimeRunStateUpdated: took(i.stateSince),
		TimeCreated: took(i.created), TimeModified: took(i.modified),
	}

	if !i.restarted.IsZero() {
		view.TimeLastAutoRestarted = took(i.restarted)
		view.AutoRestartCooldownExpiration = took(i.restarted.Add(r.opts.Cooldown))
	}

	return view
}

func (c *call) listInstances() (int, any, error) {
	p, in, err := c.listOf()
	if err != nil {
		return 0, nil, err
	}

	seen := slices.DeleteFunc(c.instances.in(in.id), func(i *instance) bool {
		i.hidden--

		return i.hidden >= 0
	})

	return listed(p, seen, c.viewInstanceLocked)
}

func (c *call) instanceOf(changing bool) (*instance, error) {
	return find(c, &c.instances, c.path("instance"), changing)
}

func (c *call) viewInstance() (int, any, error) {
	i, err := c.instanceOf(false)
	if err != nil {
		return 0, nil, err
	}

	return http.StatusOK, c.viewInstanceLocked(i), nil
}

func (c *call) createInstance() (int, any, error) {
	body, err := decode[instanceCreate](c)
	if err != nil {
		return 0, nil, err
	}

	in, err := c.inProject(true)
	if err != nil {
		return 0, nil, err
	}

	m := &making{call: c, in: in, body: body}
	if err := m.make(); err != nil {
		m.unwind()

		return 0, nil, err
	}

	i := m.made

	c.pauseLocked(c.opts.Durations["instance_create"])

	if i.state == api.InstanceStateCreating {
		m.finish()
	}

	// Whether it can be started is no matter of its creation: it is there then, and stopped.
	if body.starts() && i.state == api.InstanceStateStopped {
		if err := c.startLocked(i); err != nil {
			c.ledger.Note("instance %s is not started: %s", i.id, err)
		}
	}

	return http.StatusCreated, c.viewInstanceLocked(i), nil
}

func (c *call) updateInstance() (int, any, error) {
	body, err := decode[api.InstanceUpdate](c)
	if err != nil {
		return 0, nil, err
	}

	i, err := c.instanceOf(true)
	if err != nil {
		return 0, nil, err
	}

	if err := checkSizes(int(body.Ncpus), int64(body.Memory)); err != nil { //nolint:gosec // It is checked there.
		return 0, nil, err
	}

	boot := ""

	if body.BootDisk != nil {
		d, err := within(&c.disks, &project{meta{id: i.scope}}, string(*body.BootDisk))
		if err != nil {
			return 0, nil, err
		}

		if d.instance != i.id {
			return 0, nil, conflict("boot disk must be attached")
		}

		boot = d.id
	}

	platform, policy := api.InstanceCpuPlatform(""), api.InstanceAutoRestartPolicy("")
	if body.CpuPlatform != nil {
		platform = *body.CpuPlatform
	}

	if body.AutoRestartPolicy != nil {
		policy = *body.AutoRestartPolicy
	}

	stopped := i.state == api.InstanceStateStopped || i.state == api.InstanceStateFailed || i.state == api.InstanceStateCreating

	switch {
	case stopped:
	case boot != i.boot:
		return 0, nil, conflict("instance must be stopped to set boot disk")
	case int(body.Ncpus) != i.cpus || int64(body.Memory) != i.memory: //nolint:gosec // As above.
		return 0, nil, conflict("instance must be stopped to be resized")
	case platform != i.platform:
		return 0, nil, conflict("instance must be stopped to change minimum CPU platform")
	}

	i.cpus, i.memory, i.boot, i.platform, i.policy = int(body.Ncpus), int64(body.Memory), boot, platform, policy //nolint:gosec // As above.

	if body.EnableJumboFrames != nil {
		i.jumbo = *body.EnableJumboFrames
	}

	i.touch()

	return http.StatusOK, c.viewInstanceLocked(i), nil
}

func (c *call) deleteInstance() (int, any, error) {
	i, err := c.instanceOf(true)
	if err != nil {
		return 0, nil, err
	}

	if i.state != api.InstanceStateStopped && i.state != api.InstanceStateFailed {
		return 0, nil, invalidRequest("cannot delete instance: instance is running or has not yet fully stopped")
	}

	detached := c.dropInstanceLocked(i)

	c.pauseLocked(c.opts.Durations["instance_delete"])
	detached()

	return http.StatusNoContent, nil, nil
}

// dropInstanceLocked takes an instance away. Its disks are being detached until the function that it returns is called.
func (r *Rack) dropInstanceLocked(i *instance) (detached func()) {
	i.guest.stop()
	i.enter(api.InstanceStateDestroyed)
	i.placed = false
	r.instances.drop(r.ledger, i)

	disks := r.disksOf(i.id)
	for _, d := range disks {
		d.enter(api.DiskStateStateDetaching)
	}

	for _, n := range r.nics.in(i.id) {
		r.nics.drop(r.ledger, n)
	}

	for _, f := range r.floating.rows {
		if f.instance == i.id {
			f.instance = ""
			f.touch()
		}
	}

	for _, groups := range [][]*group{r.antiGroup.rows, r.affGroup.rows} {
		for _, g := range groups {
			g.leave(i.id)
		}
	}

	return func() {
		for _, d := range disks {
			if d.instance == i.id && d.state == api.DiskStateStateDetaching {
				d.instance = ""
				d.enter(api.DiskStateStateDetached)
			}
		}
	}
}

func (r *Rack) disksOf(instance string) []*disk {
	return r.disks.where(func(d *disk) bool { return d.instance == instance })
}

func (c *call) listInstanceDisks() (int, any, error) {
	p, err := c.paging()
	if err != nil {
		return 0, nil, err
	}

	i, err := c.instanceOf(false)
	if err != nil {
		return 0, nil, err
	}

	return listed(p, c.disksOf(i.id), (*disk).view)
}

func (c *call) diskOfBody(i *instance) (*disk, error) {
	body, err := decode[api.DiskPath](c)
	if err != nil {
		return nil, err
	}

	return within(&c.disks, &project{meta{id: i.scope}}, string(body.Disk))
}

func (c *call) attachDisk() (int, any, error) {
	i, err := c.instanceOf(true)
	if err != nil {
		return 0, nil, err
	}

	d, err := c.diskOfBody(i)
	if err != nil {
		return 0, nil, err
	}

	// What is there already is done.
	if d.instance == i.id && d.state == api.DiskStateStateAttached {
		return http.StatusAccepted, d.view(), nil
	}

	switch {
	case i.state != api.InstanceStateStopped && i.state != api.InstanceStateCreating:
		return 0, nil, invalidRequest("cannot attach disk to instance in %s state", i.state)
	case len(c.disksOf(i.id)) >= maxDisks:
		return 0, nil, invalidRequest("cannot attach more than %d disks to instance", maxDisks)
	}

	if err := d.attachable(); err != nil {
		return 0, nil, err
	}

	d.instance = i.id
	d.enter(api.DiskStateStateAttached)

	return http.StatusAccepted, d.view(), nil
}

// attachable says why a disk cannot be attached.
func (d *disk) attachable() error {
	switch {
	case d.instance != "":
		return invalidRequest("cannot attach disk %q: disk is attached to another instance", d.name)
	case d.state == api.DiskStateStateDetached:
		return nil
	case d.state == api.DiskStateStateFaulted:
		return invalidRequest("cannot attach disk %q: disk is faulted", d.name)
	default:
		return invalidRequest("cannot attach disk %q: disk is in state %s", d.name, d.variant())
	}
}

func (c *call) detachDisk() (int, any, error) {
	i, err := c.instanceOf(true)
	if err != nil {
		return 0, nil, err
	}

	d, err := c.diskOfBody(i)

	switch {
	case err != nil:
		return 0, nil, err
	case d.instance == "" && d.state == api.DiskStateStateDetached:
		return http.StatusAccepted, d.view(), nil
	case d.instance != i.id:
		return 0, nil, invalidRequest("cannot detach disk %q: disk is attached to another instance", d.name)
	case i.state != api.InstanceStateStopped && i.state != api.InstanceStateFailed && i.state != api.InstanceStateCreating:
		return 0, nil, invalidRequest("cannot detach disk from instance in %s state", i.state)
	case d.id == i.boot:
		return 0, nil, conflict("boot disk cannot be detached")
	case d.state != api.DiskStateStateAttached:
		return 0, nil, invalidRequest("cannot detach disk %q: disk is in state %s", d.name, d.variant())
	}

	d.instance = ""
	d.enter(api.DiskStateStateDetached)

	return http.StatusAccepted, d.view(), nil
}

func checkSizes(cpus int, memory int64) error {
	switch {
	case cpus < 1:
		return invalidValue("ncpus", "instance must have at least one vCPU")
	case cpus > maxCPUs:
		return invalidValue("ncpus", "instance must have fewer than %d vCPUs", maxCPUs)
	case memory < minMemory:
		return invalidValue("size", "memory must be at least 1 GiB")
	case memory%minMemory != 0:
		return invalidValue("size", "memory must be divisible by 1 GiB")
	case memory > maxMemory:
		return invalidValue("size", "memory must be less than or equal to %s", fmt.Sprintf("%d GiB", maxMemory/gib))
	}

	return nil
}
