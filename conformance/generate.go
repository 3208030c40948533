package conformance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// The names that random histories use: few, so that much happens to each.
const (
	mostRequests = 3
	mostSets     = 2
	mostMachines = 3
)

// randomHistory draws a history of that many steps. The same seed draws the same history, for the same features.
func randomHistory(seed uint64, steps int, claims []Feature) history {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0)), claims: claims} // It has to be repeatable.

	// Nothing happens to nobody: a wish comes first.
	h := history{g.step(findOperation([]string{"create", "set"}[g.IntN(2)]), 0)}

	for len(h) < steps {
		h = append(h, g.step(g.operation(), g.pause()))
	}

	return h
}

type generator struct {
	*rand.Rand

	claims []Feature
	// targets are machines that were asked for so far; most of what happens, happens to them.
	targets []string
	words   int
}

func (g *generator) operation() *operation {
	for {
		o := operations[g.IntN(len(operations))]
		if (o.needs == "" || slices.Contains(g.claims, o.needs)) && g.IntN(heaviest()) < o.weight {
			return o
		}
	}
}

func heaviest() (most int) {
	for _, o := range operations {
		most = max(most, o.weight)
	}

	return most
}

// pause draws a time between two steps: often none, so that things happen together, sometimes long enough for all to calm down.
func (g *generator) pause() time.Duration {
	switch n := g.IntN(100); {
	case n < 20:
		return 0
	case n < 45:
		return g.upTo(time.Second, time.Millisecond)
	case n < 85:
		return g.upTo(30*time.Second, 100*time.Millisecond)
	case n < 99:
		return g.upTo(3*time.Minute, time.Second)
	default:
		return g.upTo(time.Hour, time.Minute)
	}
}

// upTo draws a round time.
func (g *generator) upTo(most, unit time.Duration) time.Duration {
	return time.Duration(g.Int64N(int64(most/unit))+1) * unit
}

func (g *generator) step(o *operation, after time.Duration) step {
	s := step{after: after, op: o}

	for _, kind := range o.args {
		s.args = append(s.args, g.argument(o, kind))
	}

	switch o.name {
	case "create":
		g.targets = append(g.targets, s.args[0])
	case "set":
		for n := range numeral(s.args[1]) {
			g.targets = append(g.targets, fmt.Sprintf("%s.%d", s.args[0], n))
		}
	}

	return s
}

func (g *generator) argument(o *operation, kind argument) string {
	switch kind {
	case requestArg:
		return fmt.Sprintf("r-%d", g.IntN(mostRequests)+1)
	case setArg:
		return fmt.Sprintf("s-%d", g.IntN(mostSets)+1)
	case targetArg:
		if len(g.targets) > 0 {
			return g.targets[g.IntN(len(g.targets))]
		}

		return "r-1"
	case countArg:
		if o.name == "set" {
			return fmt.Sprint(g.IntN(mostMachines + 1))
		}

		return fmt.Sprint(g.IntN(20) + 1)
	case durationArg:
		return []time.Duration{
			0, g.upTo(time.Second, time.Millisecond), g.upTo(40*time.Second, time.Second), g.upTo(15*time.Minute, time.Second),
		}[g.IntN(4)].String()
	case switchArg:
		return []string{"on", "off"}[g.IntN(2)]
	case replyArg:
		return []string{"lost", "seen"}[g.IntN(2)]
	case faultArg:
		return string(faultKinds[g.IntN(len(faultKinds))])
	case wordArg:
		g.words++

		return fmt.Sprintf("w-%d", g.words)
	default:
		panic("no such kind of argument: " + kind)
	}
}
