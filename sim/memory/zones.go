package memory

import (
	"fmt"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Zones are several clouds that fail apart from each other and share one ledger. They have nothing else in common: each has images,
// volumes and machines of its own. Their methods are those of a Cloud for all of them.
type Zones struct {
	ledger *ledger.Ledger
	names  []string
	clouds map[string]*Cloud
}

// NewZones starts a cloud for each of the names, which are no part of each other. Close ends them.
func NewZones(opts Options, names ...string) *Zones {
	z := &Zones{ledger: ledger.New(), names: names, clouds: map[string]*Cloud{}}

	for _, name := range names {
		z.clouds[name] = newCloud(opts, name, z.ledger)
	}

	return z
}

// Ledger returns the books of all zones.
func (z *Zones) Ledger() *ledger.Ledger { return z.ledger }

// Clients opens a connection to each zone, by its name.
func (z *Zones) Clients() map[string]*Client {
	clients := map[string]*Client{}
	for name, c := range z.clouds {
		clients[name] = c.Client()
	}

	return clients
}

// Close closes all zones.
func (z *Zones) Close() {
	for _, c := range z.clouds {
		c.Close()
	}
}

// Zone returns the cloud of that name, nil if there is none.
func (z *Zones) Zone(name string) *Cloud { return z.clouds[name] }

// Places returns the zones' names.
func (z *Zones) Places() []string { return z.names }

// CutPlace cuts a zone off, as Cloud.CutOff does.
func (z *Zones) CutPlace(name string, silent bool) (restore func(), err error) {
	c, ok := z.clouds[name]
	if !ok {
		return nil, fmt.Errorf("cut off zone %q: there are %q", name, z.names)
	}

	return c.CutOff(silent), nil
}

// Machines returns the machines of all zones.
func (z *Zones) Machines() (all []ledger.Machine) {
	for _, name := range z.names {
		all = append(all, z.clouds[name].Machines()...)
	}

	return all
}

// DeleteMachine is Cloud.DeleteMachine for the machine's zone.
func (z *Zones) DeleteMachine(id string) error { return z.at(id, (*Cloud).DeleteMachine) }

// SwitchOff is Cloud.SwitchOff for the machine's zone.
func (z *Zones) SwitchOff(id string) error { return z.at(id, (*Cloud).SwitchOff) }

// HideMachine is Cloud.HideMachine for the machine's zone.
func (z *Zones) HideMachine(id string, lists int) {
	for _, c := range z.clouds {
		c.HideMachine(id, lists)
	}
}

// AddForeign is Cloud.AddForeign for each zone; it returns the id of the object in the first one.
func (z *Zones) AddForeign(kind, name string) (string, error) {
	first := ""

	for _, zone := range z.names {
		id, err := z.clouds[zone].AddForeign(kind, name)
		if err != nil {
			return "", err
		}

		if first == "" {
			first = id
		}
	}

	return first, nil
}

// at calls f for the zone that has the machine.
func (z *Zones) at(id string, f func(*Cloud, string) error) error {
	for _, name := range z.names {
		for _, m := range z.clouds[name].Machines() {
			if m.ID == id {
				return f(z.clouds[name], id)
			}
		}
	}

	return notFound("machine", id)
}
