package memory

import (
	"fmt"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Machines returns all machines, the oldest first.
func (c *Cloud) Machines() []ledger.Machine {
	c.mu.Lock()
	defer c.mu.Unlock()

	var out []ledger.Machine

	for _, m := range sorted(c.vms, func(*machine) bool { return true }) {
		vm := m.public()
		out = append(out, ledger.Machine{
			ID: vm.ID, Name: vm.Name, UUID: vm.UUID, Place: c.zone, Tags: vm.Tags, On: vm.State == Running, Boots: vm.Boots,
		})
	}

	return out
}

// DeleteMachine takes a machine away as someone at the cloud's console would, running or not. Its volumes stay.
func (c *Cloud) DeleteMachine(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	m, ok := c.vms[id]
	if !ok {
		return notFound("machine", id)
	}

	c.ledger.Note("someone deletes machine %s", id)
	c.dropLocked(m)

	return nil
}

// SwitchOff switches a running machine off as someone at the cloud's console would.
func (c *Cloud) SwitchOff(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	m, ok := c.vms[id]

	switch {
	case !ok:
		return notFound("machine", id)
	case m.State != Running:
		return conflict("machine %q is %s, not %s", id, m.State, Running)
	}

	c.ledger.Note("someone switches machine %s off", id)
	m.guest.stop()
	c.enterLocked(m, Stopped)

	return nil
}

// SwitchOn switches a stopped machine on as someone at the cloud's console would.
func (c *Cloud) SwitchOn(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()

	m, ok := c.vms[id]

	switch {
	case !ok:
		return notFound("machine", id)
	case m.State != Stopped:
		return conflict("machine %q is %s, not %s", id, m.State, Stopped)
	}

	c.ledger.Note("someone switches machine %s on", id)
	c.bootLocked(m)

	return nil
}

// HideMachine leaves a machine out of its clients' next lists, as a cloud does whose lists lag behind.
func (c *Cloud) HideMachine(id string, lists int) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if m, ok := c.vms[id]; ok {
		m.hidden = lists
	}
}

// AddForeign makes an object that belongs to somebody else: kind is "image", "volume" or "vm". It has no tags, and the books
// count it as no leak.
func (c *Cloud) AddForeign(kind, name string) (id string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()

	switch kind {
	case "image":
		id = c.importLocked(name, "https://images.example/"+name, nil).ID
	case "volume":
		id = c.createVolumeLocked(VolumeSpec{Name: name, SizeGiB: 1}).ID
	case "vm":
		disk := c.createVolumeLocked(VolumeSpec{Name: name + "-disk", SizeGiB: 1})
		c.keep("volume", disk.ID, disk.Name)

		id = c.createVMLocked(VMSpec{Name: name, Cores: 1, MemoryMiB: 1, VolumeIDs: []string{disk.ID}}).ID
	default:
		return "", fmt.Errorf("add foreign object %q: kind %q is none of image, volume, vm", name, kind)
	}

	c.ledger.Note("somebody else makes %s %s %q", kind, id, name)
	c.keep(kind, id, name)

	return id, nil
}

func (c *Cloud) keep(kind, id, name string) {
	c.ledger.Gone(kind, id)
	c.ledger.Made(ledger.Object{Kind: kind, ID: id, Name: name, Keep: true})
}
