package conformance

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// The rules that hold whatever happens, at any time.
const (
	ruleRuns     = "A provider does not end by itself."
	ruleOne      = "At no time has a request two machines, or the cloud a machine without a request."
	ruleForeign  = "Objects without the provider's mark are not changed or deleted."
	ruleUnjoined = "A machine that has not joined Omni is not switched or restarted."
)

// The rules that hold once all faults are over and some time has passed.
const (
	ruleSettled = "When all faults are over each wanted request gets one machine, with the power that is wished, and no other is left."
	ruleReboot  = "Each reboot id restarts a machine once, and nothing else does."
	rulePeace   = "A machine for which nothing is left to do is left in peace."
	ruleClean   = "In the end nothing is left, and no secret was shown."
)

// Times on the fake clock.
const (
	// noticeTime is how long a provider may take to notice what has happened behind its back.
	noticeTime = 2 * time.Minute
	settleTime = 90 * time.Minute
	peaceTime  = 3 * time.Minute
)

// broken ends the history.
func (p *player) broken(rule, want, format string, args ...any) {
	panic(&failure{rule: rule, want: want, got: fmt.Sprintf(format, args...)})
}

// check looks at the rules that hold at any time.
func (p *player) check() {
	if proc := p.e.process(); proc.ended() {
		p.broken(ruleRuns, "the provider runs", "it has ended by itself: %v", proc.err)
	}

	all := p.e.subject.Cloud.Machines()

	p.checkForeign(all)

	machines := p.e.machines()

	if p.surplus(machines) != "" {
		// What is read is read one after the other, and may have changed in between.
		time.Sleep(time.Millisecond)

		machines = p.e.machines()
		if surplus := p.surplus(machines); surplus != "" {
			p.broken(ruleOne, "one machine at most for each request", "%s\nrequests: %v\n%s", surplus, p.e.requests(), describe(machines))
		}
	}

	p.checkUnjoined(machines)
}

// surplus says what is too much, empty for nothing.
func (p *player) surplus(machines []ledger.Machine) string {
	if len(machines) > 0 && len(machines) > len(p.e.requests()) {
		return "there are more machines than requests"
	}

	uuids := map[string]string{}

	for _, m := range machines {
		uuid := strings.ToLower(m.UUID)
		if other := uuids[uuid]; other != "" {
			return fmt.Sprintf("%s and %s have the same UUID", other, m.ID)
		}

		uuids[uuid] = m.ID
	}

	return ""
}

func (p *player) checkForeign(all []ledger.Machine) {
	for id, want := range p.foreignMachines {
		i := slices.IndexFunc(all, func(m ledger.Machine) bool { return m.ID == id })

		switch {
		case i < 0:
			p.broken(ruleForeign, fmt.Sprintf("somebody else's machine %s stays as it is", id), "it is gone")
		case fmt.Sprint(all[i]) != fmt.Sprint(want):
			p.broken(ruleForeign, fmt.Sprintf("somebody else's machine stays as it is: %v", want), "%v", all[i])
		}
	}

	if len(p.foreignObjects) == 0 {
		return
	}

	objects := p.e.ledger.Objects()

	for _, want := range p.foreignObjects {
		if !slices.Contains(objects, want) {
			p.broken(ruleForeign, fmt.Sprintf("somebody else's %s stays as it is", want), "it is gone")
		}
	}
}

// checkUnjoined looks at machines that Omni has not known yet.
func (p *player) checkUnjoined(machines []ledger.Machine) {
	if !slices.ContainsFunc(machines, func(m ledger.Machine) bool { return !p.joined[m.ID] }) {
		return
	}

	links := map[string]bool{}

	for _, link := range list[*siderolink.Link](p.e) {
		links[link.Metadata().ID()] = true
	}

	for _, m := range machines {
		switch {
		case p.joined[m.ID]:
		case links[strings.ToLower(m.UUID)]:
			p.joined[m.ID] = true
		case m.Boots > 1:
			p.broken(ruleUnjoined, fmt.Sprintf("%s is started once until it joins", m.ID), "%d times", m.Boots)
		case m.On:
			p.seenOn[m.ID] = true
		case p.seenOn[m.ID] && p.isWanted(m):
			p.broken(ruleUnjoined, fmt.Sprintf("%s stays on until it joins", m.ID), "it is off")
		}
	}
}

// isWanted reports whether a request that runs has this machine, by what its status says.
func (p *player) isWanted(m ledger.Machine) bool {
	for _, s := range list[*infra.MachineRequestStatus](p.e) {
		if !strings.EqualFold(s.TypedSpec().Value.Id, m.UUID) || s.Metadata().Phase() != resource.PhaseRunning {
			continue
		}

		r, err := safe.StateGetByID[*infra.MachineRequest](p.e.ctx, p.e.state, s.Metadata().ID())

		return err == nil && r.Metadata().Phase() == resource.PhaseRunning
	}

	return false
}

// settle waits until all has come that has to come of the history.
func (p *player) settle() {
	start := time.Now()

	// A process may wait long for a connection, and then for the lease of one that was killed, before it notices anything.
	p.awaitAll(func() string {
		for _, s := range list[*infra.ProviderHealthStatus](p.e) {
			if s.Metadata().ID() == p.e.provider && s.TypedSpec().Value.LastHeartbeatTimestamp.AsTime().After(start) {
				return ""
			}
		}

		return "the provider is silent"
	})
	p.pass(noticeTime)
	p.awaitAll(p.missing)

	p.checkReboots()

	before := describeBoots(p.e.machines())

	p.pass(peaceTime)

	if missing := p.missing(); missing != "" {
		p.broken(rulePeace, "all stays as it has to be", "%s", missing)
	}

	if after := describeBoots(p.e.machines()); after != before {
		p.broken(rulePeace, "nothing happens to "+before, "%s", after)
	}

	p.replaceLost()
}

// awaitAll waits until nothing is missing.
func (p *player) awaitAll(missing func() string) {
	pause := 100 * time.Millisecond

	for start := time.Now(); ; pause = min(2*pause, time.Minute) {
		left := missing()
		if left == "" {
			return
		}

		if time.Since(start) > settleTime {
			p.broken(ruleSettled, fmt.Sprintf("all is as it has to be %s after the last fault", settleTime), "%s", left)
		}

		p.pass(pause)
	}
}

func describeBoots(machines []ledger.Machine) (text string) {
	for _, m := range machines {
		text += fmt.Sprintf("%s on=%t boots=%d ", m.ID, m.On, m.Boots)
	}

	return text
}

// missing says what has not come yet, empty if all has.
func (p *player) missing() string {
	p.reap()

	if len(p.removed)+len(p.removedSets) > 0 {
		return fmt.Sprintf("what was removed is still there: requests %v, sets %v%s", p.removed, p.removedSets, p.holders())
	}

	want := 0

	for id, lone := range p.lone {
		if lone.bad {
			if s := p.e.status(id); s.GetStage() != specs.MachineRequestStatusSpec_FAILED || !strings.Contains(s.GetError(), unknownField) {
				return fmt.Sprintf("request %s, whose class data is bad: stage %s, error %q", id, s.GetStage(), s.GetError())
			}

			continue
		}

		if lone.shaken && p.isLost(id) {
			continue
		}

		if missing := cmp.Or(p.satisfied(id), p.unrebooted(id)); missing != "" {
			return missing
		}

		want++
	}

	for set, size := range p.sets {
		members := p.members(set)
		if len(members) != size {
			return fmt.Sprintf("set %s has requests %v, not %d", set, members, size)
		}

		for _, id := range members {
			if missing := cmp.Or(p.satisfied(id), p.unrebooted(id)); missing != "" {
				return missing
			}

			want++
		}
	}

	if machines := p.e.machines(); len(machines) != want {
		return fmt.Sprintf("%s, not %d", describe(machines), want)
	}

	return ""
}

// holders says who holds on to requests that were removed.
func (p *player) holders() (text string) {
	for id := range p.removed {
		held, _ := p.e.destroy(infra.NewMachineRequest(id).Metadata())
		text += fmt.Sprintf("\n%s: %s", id, held)
	}

	return text
}

// satisfied says what a request lacks that wants a machine, empty for nothing.
func (p *player) satisfied(id string) string {
	s := p.e.status(id)
	m, ok := p.machineOf(id)

	switch w := p.wishOf(id); {
	case s.GetStage() != specs.MachineRequestStatusSpec_PROVISIONED:
		return fmt.Sprintf("request %s: stage %s, status %q, error %q", id, s.GetStage(), s.GetStatus(), s.GetError())
	case !ok:
		return fmt.Sprintf("request %s is provisioned, and there is no machine with UUID %q", id, s.GetId())
	case m.On != (w.power != "off"):
		return fmt.Sprintf("request %s: wished power %q, on=%t, error %q", id, w.power, m.On, s.GetError())
	}

	machine, err := safe.StateGetByID[*omni.Machine](p.e.ctx, p.e.state, strings.ToLower(s.GetId()))
	if err != nil {
		return fmt.Sprintf("the machine of request %s has not joined: %v", id, err)
	}

	if of, _ := machine.Metadata().Labels().Get(omni.LabelMachineRequest); of != id {
		return fmt.Sprintf("machine %s is matched with request %q, not %s", s.GetId(), of, id)
	}

	return ""
}

// unrebooted says which reboot of a request's machine has not happened or was not told, empty for none.
func (p *player) unrebooted(id string) string {
	w := p.wishOf(id)
	m, _ := p.machineOf(id)

	if w.last == nil || !w.last.ready || w.last.machine != m.ID || w.offs > 0 {
		return ""
	}

	if m.Boots <= w.last.boots {
		return fmt.Sprintf("%s of request %s has not been restarted for %s: it was started %d times, %d of them before that", m.ID, id, w.last.id, m.Boots, w.last.boots)
	}

	status, err := safe.StateGetByID[*infra.MachineStatus](p.e.ctx, p.e.state, strings.ToLower(m.UUID))
	if err != nil || status.TypedSpec().Value.LastRebootId != w.last.id {
		return fmt.Sprintf("the InfraMachineStatus of %s does not tell of reboot %s: %v, error %v", m.ID, w.last.id, status, err)
	}

	return ""
}

// isLost reports whether a request says that its machine was lost for good.
func (p *player) isLost(id string) bool {
	s := p.e.status(id)
	_, ok := p.machineOf(id)

	return s.GetStage() == specs.MachineRequestStatusSpec_FAILED && s.GetError() != "" && !ok
}

// checkReboots compares how often machines were started with what was asked.
func (p *player) checkReboots() {
	for id, w := range p.wishes {
		m, ok := p.machineOf(id)
		if !ok {
			continue
		}

		if most := 1 + w.reboots + w.offs; m.Boots > most {
			p.broken(ruleReboot, fmt.Sprintf("%s of request %s was started %d times at most", m.ID, id, most), "%d times", m.Boots)
		}
	}
}

// replaceLost asks for new machines where one was lost.
func (p *player) replaceLost() {
	for id, lone := range p.lone {
		if !lone.bad && p.isLost(id) {
			p.e.annotate(id, replaceAnnotation, "in-the-end")
			p.e.await("request "+id+" gets a new machine", func() (string, bool) {
				missing := p.satisfied(id)

				return missing, missing == ""
			})
		}
	}
}
