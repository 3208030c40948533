package conformance

import (
	"slices"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// lasting lets a fault last for a while. There is one of a name at a time; the others do nothing.
func (p *player) lasting(name string, d time.Duration, begin, end func()) {
	if !p.begin(name) {
		p.nothing("that lasts already")

		return
	}

	begin()
	p.e.tasks.Go(func() {
		_ = sleep(p.healed, d)

		end()
		p.over(name)
	})
}

func (p *player) begin(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.faults[name] {
		return false
	}

	p.faults[name] = true

	return true
}

func (p *player) over(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.faults, name)
}

// lasts reports whether any fault does.
func (p *player) lasts() bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	return len(p.faults) > 0
}

// end takes all faults back and returns when the provider runs.
func (p *player) end() {
	for _, undo := range p.undo {
		undo()
	}

	p.undo = nil
	p.e.ledger.CrashAfter(0, false, nil)
	p.e.writes.CrashAfter(0, false, nil)
	p.heal()

	for p.lasts() && p.e.ctx.Err() == nil {
		time.Sleep(100 * time.Millisecond)
	}
}

func (p *player) outage(d time.Duration) {
	p.lasting("outage", d, func() { p.e.ledger.Outage(true) }, func() { p.e.ledger.Outage(false) })
}

func (p *player) partition(d time.Duration) {
	p.lasting("partition", d, func() { p.e.omni.PartitionAPI(true) }, func() { p.e.omni.PartitionAPI(false) })
}

func (p *player) holdBoots(d time.Duration) {
	var release func()

	p.lasting("hold-boots", d, func() { release = p.e.world.hold() }, func() { release() })
}

func (p *player) restartOmni(d time.Duration) {
	p.lasting("restart-omni", 0, func() {}, func() {
		if err := p.e.omni.Restart(p.e.ctx, d); err != nil && p.e.ctx.Err() == nil {
			panic(err)
		}
	})
}

// fault befalls the call to the cloud of that number from now on.
func (p *player) fault(kind string, n int) {
	own := []ledger.FaultKind{ledger.Cut, ledger.Lost, ledger.Hang, ledger.Slow}

	if !slices.Contains(append(own, p.e.subject.Faults...), ledger.FaultKind(kind)) {
		p.nothing("the cloud has no words for that")

		return
	}

	p.undo = append(p.undo, p.e.ledger.Inject(ledger.Fault{Kind: ledger.FaultKind(kind), Nth: n}))
}

func (p *player) conflict(n int) {
	p.inject(omni.Fault{Method: "Update", Provider: p.e.provider, Nth: n, Err: omni.ErrConflict})
}

func (p *player) loseWriteReply(n int) {
	for _, method := range []string{"Create", "Update", "Destroy"} {
		p.inject(omni.Fault{Method: method, Provider: p.e.provider, Nth: n, LoseReply: true})
	}
}

func (p *player) inject(f omni.Fault) { p.undo = append(p.undo, p.e.omni.Inject(f)) }

// cutWatches ends the streams that providers follow, one kind after the other.
func (p *player) cutWatches() {
	for _, typ := range []resource.Type{
		infra.MachineRequestType, infra.MachineRequestStatusType, infra.MachineRegistrationType, infra.ConfigPatchRequestType,
		infra.InfraMachineStatusType, siderolink.ProviderJoinConfigType,
	} {
		p.e.omni.BreakWatches(typ)
	}
}

// cutEvents ends the cloud's streams of events, if it has any.
func (p *player) cutEvents() {
	if cloud, ok := p.e.subject.Cloud.(interface{ BreakWatches() }); ok {
		cloud.BreakWatches()
	} else {
		p.nothing("the cloud has no events")
	}
}

// kill lets the provider's process die now and starts it again after a while.
func (p *player) kill(d time.Duration) {
	proc := p.e.process()

	p.lasting("down", d, func() {
		proc.kill()
		p.e.ledger.Disconnect()
		p.e.writes.Disconnect()
		p.e.note("the provider is dead")
	}, func() {
		<-proc.done
		p.e.start()
	})
}

func (p *player) crashAtCall(n int, reply string) {
	p.e.ledger.CrashAfter(p.e.ledger.Calls()+n, reply == "lost", func() { p.kill(restartTime) })
}

func (p *player) crashAtWrite(n int, reply string) {
	p.e.writes.CrashAfter(p.e.writes.Calls()+n, reply == "lost", func() { p.kill(restartTime) })
}

// restart ends the provider in order and starts it again after a while.
func (p *player) restart(d time.Duration) {
	if !p.begin("down") {
		p.nothing("the provider is down")

		return
	}

	p.e.stop()
	p.e.tasks.Go(func() {
		_ = sleep(p.healed, d)

		p.e.start()
		p.over("down")
	})
}
