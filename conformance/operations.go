package conformance

import (
	"fmt"
	"strings"
)

// operation is a kind of step.
type operation struct {
	name string
	args []argument
	// needs is the feature without which the step is left out, empty for none.
	needs Feature
	// weight says how often it is drawn, compared with the others.
	weight int
	run    func(p *player, args []string)
}

// String returns the form of a step.
func (o *operation) String() string {
	text := o.name
	for _, a := range o.args {
		text += " " + string(a)
	}

	return text
}

// operations are all that can happen.
var operations = []*operation{
	// The operator's wishes.
	{name: "create", args: []argument{requestArg}, weight: 12, run: func(p *player, a []string) { p.create(a[0], false) }},
	{name: "create-bad", args: []argument{requestArg}, weight: 2, run: func(p *player, a []string) { p.create(a[0], true) }},
	{name: "remove", args: []argument{requestArg}, weight: 8, run: func(p *player, a []string) { p.remove(a[0]) }},
	{name: "set", args: []argument{setArg, countArg}, weight: 8, run: func(p *player, a []string) { p.scale(a[0], numeral(a[1])) }},
	{name: "remove-set", args: []argument{setArg}, weight: 2, run: func(p *player, a []string) { p.removeSet(a[0]) }},
	{name: "power", args: []argument{targetArg, switchArg}, needs: Power, weight: 6, run: func(p *player, a []string) { p.power(a[0], a[1]) }},
	{name: "reboot", args: []argument{targetArg, wordArg}, needs: Reboot, weight: 6, run: func(p *player, a []string) { p.reboot(a[0], a[1]) }},
	{name: "replace", args: []argument{targetArg, wordArg}, needs: Replace, weight: 2, run: func(p *player, a []string) { p.replace(a[0], a[1]) }},
	{name: "delete-link", args: []argument{targetArg}, needs: Replace, weight: 4, run: func(p *player, a []string) { p.deleteLink(a[0]) }},

	// What happens in the cloud.
	{name: "delete-machine", args: []argument{targetArg}, needs: Replace, weight: 5, run: func(p *player, a []string) { p.deleteMachine(a[0]) }},
	{name: "add-foreign", args: []argument{countArg}, weight: 3, run: func(p *player, a []string) { p.addForeign(numeral(a[0])) }},
	{name: "outage", args: []argument{durationArg}, weight: 4, run: func(p *player, a []string) { p.outage(duration(a[0])) }},
	{name: "fault", args: []argument{faultArg, countArg}, weight: 12, run: func(p *player, a []string) { p.fault(a[0], numeral(a[1])) }},
	{name: "cut-events", weight: 1, run: func(p *player, _ []string) { p.cutEvents() }},
	{name: "hold-boots", args: []argument{durationArg}, weight: 4, run: func(p *player, a []string) { p.holdBoots(duration(a[0])) }},

	// What befalls the provider's process.
	{name: "kill", args: []argument{durationArg}, weight: 5, run: func(p *player, a []string) { p.kill(duration(a[0])) }},
	{name: "restart", args: []argument{durationArg}, weight: 4, run: func(p *player, a []string) { p.restart(duration(a[0])) }},
	{name: "crash-at-call", args: []argument{countArg, replyArg}, weight: 5, run: func(p *player, a []string) { p.crashAtCall(numeral(a[0]), a[1]) }},
	{name: "crash-at-write", args: []argument{countArg, replyArg}, weight: 5, run: func(p *player, a []string) { p.crashAtWrite(numeral(a[0]), a[1]) }},

	// What befalls Omni.
	{name: "conflict", args: []argument{countArg}, weight: 3, run: func(p *player, a []string) { p.conflict(numeral(a[0])) }},
	{name: "lose-write-reply", args: []argument{countArg}, weight: 4, run: func(p *player, a []string) { p.loseWriteReply(numeral(a[0])) }},
	{name: "cut-watches", weight: 2, run: func(p *player, _ []string) { p.cutWatches() }},
	{name: "partition", args: []argument{durationArg}, weight: 3, run: func(p *player, a []string) { p.partition(duration(a[0])) }},
	{name: "restart-omni", args: []argument{durationArg}, weight: 2, run: func(p *player, a []string) { p.restartOmni(duration(a[0])) }},

	{name: "pass", weight: 2, run: func(*player, []string) {}},
}

func findOperation(name string) *operation {
	for _, o := range operations {
		if o.name == name {
			return o
		}
	}

	return nil
}

func operationNames() string {
	names := make([]string, len(operations))
	for i, o := range operations {
		names[i] = fmt.Sprintf("%q", o.name)
	}

	return strings.Join(names, ", ")
}
