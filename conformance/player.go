package conformance

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

const replaceAnnotation = "omni-infra.dev/replace"

// player plays one history and knows what has to come of it.
type player struct {
	e *env
	// changed gets a token when an object in the cloud is made or has gone.
	changed chan struct{}

	// lone are the requests without a set that are wanted, removed those that were taken back and are not gone yet. sets are the
	// wanted sizes of sets, removedSets like removed.
	lone        map[string]*loneRequest
	removed     map[string]bool
	sets        map[string]int
	removedSets map[string]bool
	// wishes are what was asked of the machines of requests that exist.
	wishes map[string]*wish

	foreignMachines map[string]ledger.Machine
	foreignObjects  []ledger.Object
	// seenOn and joined are ids of machines that were seen switched on, and whose UUID Omni has known.
	seenOn, joined map[string]bool

	// healed ends all faults that last.
	healed context.Context
	heal   context.CancelFunc

	mu     sync.Mutex
	faults map[string]bool
	undo   []func()
}

// loneRequest is a request without a set.
type loneRequest struct {
	// bad requests can never have a machine. shaken ones may have lost theirs for good.
	bad, shaken bool
}

// wish is what was asked of one request's machine.
type wish struct {
	power string
	// offs and reboots count how often it was to be switched off, or restarted.
	offs, reboots int
	// last is the last reboot, nil if there was none.
	last *rebootWish
}

// rebootWish is one reboot id, and how the machine was when it was asked for.
type rebootWish struct {
	id, machine string
	boots       int
	ready       bool
}

// playHistory lets a history happen, ends all faults, and waits for what has to come of it.
func (e *env) playHistory(h history) {
	p := &player{
		e: e, changed: make(chan struct{}, 1), lone: map[string]*loneRequest{}, removed: map[string]bool{}, sets: map[string]int{},
		removedSets: map[string]bool{}, wishes: map[string]*wish{}, foreignMachines: map[string]ledger.Machine{},
		seenOn: map[string]bool{}, joined: map[string]bool{}, faults: map[string]bool{},
	}
	p.healed, p.heal = context.WithCancel(e.ctx)
	e.ledger.Notify(p.changed)

	defer e.ledger.Notify(nil)
	defer p.end()

	for _, s := range h {
		p.pass(s.after)
		e.note("history: %s", history{s})
		s.op.run(p, s.args)
	}

	p.end()
	p.settle()
}

// pass lets time pass and looks whether all is right meanwhile.
func (p *player) pass(d time.Duration) {
	p.check()

	pause := time.Second

	for end := time.Now().Add(d); ; {
		left := time.Until(end)
		if left <= 0 {
			return
		}

		timer := time.NewTimer(min(left, pause))

		select {
		case <-p.changed:
			pause = time.Second
		case <-timer.C:
			// The longer nothing has happened, the longer nothing will.
			pause = min(2*pause, 15*time.Second)
		}

		timer.Stop()
		p.check()
	}
}

// nothing says that a step had no effect.
func (p *player) nothing(why string) { p.e.note("history: nothing happens, %s", why) }

func (p *player) create(id string, bad bool) {
	p.reap()

	if slices.Contains(p.e.requests(), id) {
		p.nothing("the request exists")

		return
	}

	data := p.e.data
	if bad {
		data = p.e.badData(unknownField, "x")
	}

	p.e.requestFrom(p.e.provider, id, data)
	p.lone[id] = &loneRequest{bad: bad}
	p.wishes[id] = &wish{}
}

func (p *player) remove(id string) {
	if p.lone[id] == nil {
		p.nothing("there is no such request")

		return
	}

	p.e.remove(id)
	delete(p.lone, id)
	p.removed[id] = true
}

func (p *player) scale(id string, size int) {
	p.reap()

	if p.removedSets[id] {
		p.nothing("the set is being removed")

		return
	}

	p.e.set(id, int32(size)) //nolint:gosec // The parser bounds it.
	p.sets[id] = size
}

func (p *player) removeSet(id string) {
	if _, ok := p.sets[id]; !ok {
		p.nothing("there is no such set")

		return
	}

	p.e.tearDown(omni.NewMachineRequestSet(id).Metadata())
	delete(p.sets, id)
	p.removedSets[id] = true
}

// reap destroys what was taken back and is held by nobody any more.
func (p *player) reap() {
	for _, id := range slices.Sorted(maps.Keys(p.removed)) {
		if _, gone := p.e.destroy(infra.NewMachineRequest(id).Metadata()); gone {
			delete(p.removed, id)
		}
	}

	for _, id := range slices.Sorted(maps.Keys(p.removedSets)) {
		if _, gone := p.e.destroy(omni.NewMachineRequestSet(id).Metadata()); gone {
			delete(p.removedSets, id)
		}
	}
}

// target returns the request that a step is about, empty if there is none that runs.
func (p *player) target(name string) string {
	set, place, ofSet := strings.Cut(name, ".")
	if !ofSet {
		if p.lone[name] != nil {
			return name
		}
	} else if members := p.members(set); numeral(place) < len(members) {
		return members[numeral(place)]
	}

	p.nothing("there is no such request")

	return ""
}

// members returns the ids of a set's requests that run.
func (p *player) members(set string) (ids []string) {
	for _, r := range list[*infra.MachineRequest](p.e) {
		if of, _ := r.Metadata().Labels().Get(omni.LabelMachineRequestSet); of == set && r.Metadata().Phase() == resource.PhaseRunning {
			ids = append(ids, r.Metadata().ID())
		}
	}

	return ids
}

// wishOf returns what was asked of a request's machine so far.
func (p *player) wishOf(id string) *wish {
	if p.wishes[id] == nil {
		p.wishes[id] = &wish{}
	}

	return p.wishes[id]
}

func (p *player) power(target, power string) {
	id := p.target(target)
	if id == "" {
		return
	}

	w := p.wishOf(id)
	if power == "off" && w.power != "off" {
		w.offs++
	}

	w.power = power
	p.e.annotate(id, powerAnnotation, power)
}

func (p *player) reboot(target, word string) {
	id := p.target(target)
	if id == "" {
		return
	}

	w := p.wishOf(id)
	w.reboots++
	w.last = &rebootWish{id: word}

	if m, ok := p.machineOf(id); ok {
		w.last.machine, w.last.boots, w.last.ready = m.ID, m.Boots, m.On && p.satisfied(id) == ""
	}

	p.e.annotate(id, rebootAnnotation, word)
}

func (p *player) replace(target, word string) {
	if id := p.target(target); id != "" {
		p.e.annotate(id, replaceAnnotation, word)
	}
}

// machineOf returns the machine whose UUID the request's status tells.
func (p *player) machineOf(id string) (ledger.Machine, bool) {
	uuid := p.e.status(id).GetId()

	for _, m := range p.e.machines() {
		if uuid != "" && strings.EqualFold(m.UUID, uuid) {
			return m, true
		}
	}

	return ledger.Machine{}, false
}

func (p *player) shake(id string) {
	if lone := p.lone[id]; lone != nil {
		lone.shaken = true
	}
}

func (p *player) deleteMachine(target string) {
	id := p.target(target)
	if id == "" {
		return
	}

	m, ok := p.machineOf(id)
	if !ok {
		p.nothing("it has no machine")

		return
	}

	p.shake(id)

	if err := p.e.subject.Cloud.DeleteMachine(m.ID); err != nil {
		p.nothing(err.Error())
	}
}

func (p *player) deleteLink(target string) {
	id := p.target(target)
	if id == "" {
		return
	}

	for _, link := range list[*siderolink.Link](p.e) {
		if of, _ := link.Metadata().Labels().Get(omni.LabelMachineRequest); of == id {
			p.shake(id)
			p.e.tearDown(link.Metadata())
			p.e.note("operator deletes link %s of %s", link.Metadata().ID(), id)
		}
	}
}

// addForeign makes an object of somebody else, beside the provider's own of that number and with the same name.
func (p *player) addForeign(n int) {
	own := slices.DeleteFunc(p.e.ledger.Objects(), func(o ledger.Object) bool { return o.Keep })
	if len(own) == 0 {
		p.nothing("there is nothing to name it after")

		return
	}

	before, o := p.e.subject.Cloud.Machines(), own[n%len(own)]
	known := p.e.ledger.Objects()

	if _, err := p.e.subject.Cloud.AddForeign(o.Kind, o.Name); err != nil {
		p.nothing(fmt.Sprintf("the cloud has no room for another %s %q: %v", o.Kind, o.Name, err))

		return
	}

	for _, m := range p.e.subject.Cloud.Machines() {
		if !slices.ContainsFunc(before, func(b ledger.Machine) bool { return b.ID == m.ID }) {
			p.e.foreign[m.ID] = true
			p.foreignMachines[m.ID] = m
		}
	}

	for _, o := range p.e.ledger.Objects() {
		if o.Keep && !slices.Contains(known, o) {
			p.foreignObjects = append(p.foreignObjects, o)
		}
	}
}
