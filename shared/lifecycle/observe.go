package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

const (
	// looksForAbsence is how many complete looks in a row have to miss a machine before it is taken for gone.
	looksForAbsence = 2
	// secondLook is the pause before a machine that was missed is looked for again.
	secondLook = 5 * time.Second
	// emptyGrace is how long the cloud has to have none of several machines before they are taken for gone.
	emptyGrace = 10 * time.Minute
	// settleTime gathers events of the cloud into one look.
	settleTime = 300 * time.Millisecond
	// watchTimeout renews the cloud's stream of events now and then, should it have died unnoticed.
	watchTimeout = time.Hour
)

// observe looks at the whole cloud, at intervals and when the cloud says that something changed.
func (p *Provider) observe(ctx context.Context) {
	poke := make(chan struct{}, 1)

	var wg sync.WaitGroup
	defer wg.Wait()

	if watcher, ok := p.cfg.Driver.(driver.Watcher); ok {
		wg.Go(func() { p.watchCloud(ctx, watcher, poke) })
	}

	pause, took := secondLook, time.Duration(0)

	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		case <-poke:
			// A cloud where something always happens is looked at half of the time at most.
			sleep(ctx, max(settleTime, took))
		}

		p.gate.wait(ctx)

		pause = p.cfg.PollInterval
		started := time.Now()

		missed, err := p.look(ctx)
		if err != nil && ctx.Err() == nil {
			p.log.Warn("cloud is not seen", zap.Error(err))
		}

		if p.cfg.Sweep != SweepOff {
			p.sweep()
		}

		p.lookForAddresses(ctx)

		took = time.Since(started)

		if missed {
			pause = secondLook
		}
	}
}

func (p *Provider) watchCloud(ctx context.Context, watcher driver.Watcher, poke chan<- struct{}) {
	look := func(driver.Ref) {
		select {
		case poke <- struct{}{}:
		default:
		}
	}

	pause := backoff{first: time.Second, most: time.Minute}

	for tries := 0; ctx.Err() == nil; tries++ {
		p.gate.wait(ctx)

		started := time.Now()
		err := do(ctx, p, watchTimeout, "watching the cloud", func(ctx context.Context) error { return watcher.Watch(ctx, p.cfg.ID, look) })

		if ctx.Err() != nil {
			return
		}

		if !errors.Is(err, context.DeadlineExceeded) {
			p.log.Warn("events of the cloud were cut off", zap.Error(err))
		}

		// What happened meanwhile is only seen by a full look.
		look(driver.Ref{})

		if time.Since(started) > pause.most {
			tries = 0
		}

		sleep(ctx, pause.after(tries))
	}
}

// look compares one list of the cloud's machines with the requests that have one. A list that failed says nothing, and one that
// could not see a place says nothing of what may be there.
func (p *Provider) look(ctx context.Context) (missed bool, err error) {
	// What was provisioned before the look began has to be in it.
	provisioned := p.statuses.all(func(s *infra.MachineRequestStatus) bool {
		return isProvisioned(s) && s.Metadata().Phase() == resource.PhaseRunning
	})

	v, err := p.list(ctx)
	if err != nil {
		return false, err
	}

	found := v.whole()
	known := map[string]string{}

	for _, status := range provisioned {
		id := status.Metadata().ID()

		// Nor does it say anything about a machine that was given up meanwhile.
		if now, ok := p.statuses.get(id); !ok || !isProvisioned(now) || now.Metadata().Phase() != resource.PhaseRunning {
			continue
		}

		// A machine that this library did not make carries no mark that the driver could see.
		if rec, ok := p.records.get(id); !ok || !rec.ours() {
			continue
		}

		if p.judges(v.unseen, id) {
			known[id] = p.recordedPlace(id)
		} else if machine, ok := found[id]; ok && p.looks.saw(id, machine) {
			p.queue.add(id)
		}
	}

	doubted, err := p.looks.doubt(known, found)
	if doubted[everywhere] {
		return false, err
	}

	if p.cfg.Sweep != SweepOff {
		p.sweepMachines(ctx, v)
	}

	for id, place := range known {
		machine, ok := found[id]

		switch {
		case ok:
			if p.looks.saw(id, machine) {
				p.queue.add(id)
			}
		case doubted[place]:
		default:
			switch misses := p.looks.missed(id); {
			case misses < looksForAbsence:
				missed = true
			case misses == looksForAbsence:
				p.queue.hurry(id)
			default:
				p.queue.add(id)
			}
		}
	}

	return missed, err
}

// view is what one list of the cloud showed.
type view struct {
	machines []driver.Machine
	// unseen is nil when the list was complete.
	unseen *driver.Unseen
}

// whole returns the machines that are more than left-over objects, by their requests.
func (v view) whole() map[string]driver.Machine {
	found := make(map[string]driver.Machine, len(v.machines))

	for _, machine := range v.machines {
		if !machine.Incomplete {
			found[machine.RequestID] = machine
		}
	}

	return found
}

// placeOf returns where the list shows a request's machine, or what there is of it; empty when it does not.
func (v view) placeOf(id string) string {
	place := ""

	for _, machine := range v.machines {
		if machine.RequestID == id && (place == "" || !machine.Incomplete) {
			place = machine.Place
		}
	}

	return place
}

func (p *Provider) list(ctx context.Context) (v view, err error) {
	v.machines, err = ask(ctx, p, p.cfg.CallTimeout, "listing the cloud's machines", func(ctx context.Context) ([]driver.Machine, error) {
		return p.cfg.Driver.List(ctx, p.cfg.ID)
	})
	v.unseen = driver.UnseenOf(err)
	err = wrap(err, "list machines")
	p.looks.listed(v, err)

	if v.unseen == nil {
		return v, err
	}

	return v, nil
}

// looks remembers how each machine was last seen, how often it was missed since, and since when Omni has not known it.
type looks struct {
	mu     sync.Mutex
	last   map[string]driver.Machine
	misses map[string]int
	absent map[string]time.Time
	// interfaces are those of the machines of which something was told.
	interfaces map[string][]driver.Interface
	// places are those where the last list that showed anything of a request showed it.
	places map[string][]string
	// empty is since when looks have found none of several machines, by the place that should have them.
	empty   map[string]time.Time
	strange error
	// failed is how many lists failed in a row, those that could not see a place too; unseen is the last one's error.
	failed int
	unseen error
}

// everywhere stands for all places together.
const everywhere = "\x00" // before all names

// listed notes how a list of the cloud's machines went.
func (l *looks) listed(v view, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	switch {
	case err == nil:
		l.failed, l.unseen = 0, nil
	case driver.KindOf(err) != driver.KindPending:
		l.failed, l.unseen = l.failed+1, err
	}

	if err != nil && v.unseen == nil {
		return
	}

	places := map[string][]string{}

	for _, machine := range v.machines {
		if machine.Place != "" && !slices.Contains(places[machine.RequestID], machine.Place) {
			places[machine.RequestID] = append(places[machine.RequestID], machine.Place)
		}
	}

	if v.unseen != nil {
		for id, before := range l.places {
			for _, place := range before {
				if hides(v.unseen, place) && !slices.Contains(places[id], place) {
					places[id] = append(places[id], place)
				}
			}
		}
	}

	l.places = places
}

// begun reports whether a list has shown anything yet, be it of some places alone.
func (l *looks) begun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.places != nil
}

// placesOf returns where something of a request was seen last.
func (l *looks) placesOf(id string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.places[id]
}

// doubt notes whether a look found none of several machines of a place, or of all places. All of them gone at once is more often the
// wrong cloud, as after a slip in its address, than their end: for a while the answer is an error, which health shows, and counts
// as no look at those machines. known holds the machines that the look would have shown, with the place of each.
func (l *looks) doubt(known map[string]string, found map[string]driver.Machine) (doubted map[string]bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	machines, seen := map[string]int{}, map[string]bool{}

	for id, place := range known {
		for _, group := range slices.Compact([]string{everywhere, cmp.Or(place, everywhere)}) {
			_, ok := found[id]
			machines[group]++
			seen[group] = seen[group] || ok
		}
	}

	before := l.empty
	l.empty, l.strange, doubted = map[string]time.Time{}, nil, map[string]bool{}

	for _, group := range slices.Sorted(maps.Keys(machines)) {
		if machines[group] < 2 || seen[group] {
			continue
		}

		since, ok := before[group]
		if !ok {
			since = time.Now()
		}

		l.empty[group] = since

		left := (emptyGrace - time.Since(since)).Round(time.Second)
		if emptyGrace <= time.Since(since) {
			continue
		}

		doubted[group] = true

		switch {
		case l.strange != nil:
		case group == everywhere:
			l.strange = fmt.Errorf("the cloud has none of the %d machines of this provider: is it the right one? They are given up in %s", machines[group], left)
		default:
			l.strange = fmt.Errorf("place %q has none of the %d machines that were made there: is it the right one? They are given up in %s", group, machines[group], left)
		}
	}

	return doubted, l.strange
}

// trouble returns what is strange about the last look, or nil. One list that failed is none: the next may succeed.
func (l *looks) trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()

	failed := l.unseen
	if l.failed < 2 {
		failed = nil
	}

	if driver.UnseenOf(failed) != nil {
		return cmp.Or(l.strange, failed)
	}

	return cmp.Or(failed, l.strange)
}

// missed notes that a complete look did not find the machine, and returns how many did not in a row.
func (l *looks) missed(id string) int {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.misses == nil {
		l.misses = map[string]int{}
	}

	l.misses[id]++

	return l.misses[id]
}

// saw notes how a look found the machine, and reports whether that is news.
func (l *looks) saw(id string, machine driver.Machine) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	delete(l.misses, id)

	if l.last == nil {
		l.last = map[string]driver.Machine{}
	}

	before, ok := l.last[id]
	l.last[id] = machine

	return !ok || !reflect.DeepEqual(before, machine)
}

// machine returns the machine as it was last seen.
func (l *looks) machine(id string) (driver.Machine, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	machine, ok := l.last[id]

	return machine, ok
}

func (l *looks) isVanished(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.misses[id] >= looksForAbsence
}

// absentFor returns how long Omni has not known the machine; the first call begins the time.
func (l *looks) absentFor(id string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.absent == nil {
		l.absent = map[string]time.Time{}
	}

	since, ok := l.absent[id]
	if !ok {
		since = time.Now()
		l.absent[id] = since
	}

	return time.Since(since)
}

// present notes that Omni knows the machine.
func (l *looks) present(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	delete(l.absent, id)
}

func (l *looks) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.last, l.misses, l.absent, l.places, l.interfaces = nil, nil, nil, nil, nil
	l.empty, l.strange = nil, nil
	l.failed, l.unseen = 0, nil
}

func (l *looks) forget(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	delete(l.last, id)
	delete(l.misses, id)
	delete(l.absent, id)
	delete(l.places, id)
	delete(l.interfaces, id)
}
