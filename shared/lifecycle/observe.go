package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"reflect"
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

		sleep(ctx, p.gate.closedFor())

		pause = p.cfg.PollInterval
		started := time.Now()

		missed, err := p.look(ctx)
		if err != nil && ctx.Err() == nil {
			p.log.Warn("cloud is not seen", zap.Error(err))
		}

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

// look compares one complete list of the cloud's machines with the requests that have one. A list that failed says nothing.
func (p *Provider) look(ctx context.Context) (missed bool, err error) {
	// What was provisioned before the look began has to be in it.
	provisioned := p.statuses.all(func(s *infra.MachineRequestStatus) bool {
		return isProvisioned(s) && s.Metadata().Phase() == resource.PhaseRunning
	})

	list, err := ask(ctx, p, p.cfg.CallTimeout, "listing the cloud's machines", func(ctx context.Context) ([]driver.Machine, error) {
		return p.cfg.Driver.List(ctx, p.cfg.ID)
	})
	if err != nil {
		return false, fmt.Errorf("list machines: %w", err)
	}

	found := make(map[string]driver.Machine, len(list))

	for _, machine := range list {
		if !machine.Incomplete {
			found[machine.RequestID] = machine
		}
	}

	known := make([]string, 0, len(provisioned))
	strange := len(provisioned) > 1

	for _, status := range provisioned {
		id := status.Metadata().ID()

		// Nor does it say anything about a machine that was given up meanwhile.
		if now, ok := p.statuses.get(id); !ok || !isProvisioned(now) || now.Metadata().Phase() != resource.PhaseRunning {
			continue
		}

		// A machine that this library did not make carries no mark that the driver could see.
		if rec, ok := p.records.get(id); !ok || rec.spec.Version == 0 {
			continue
		}

		known = append(known, id)

		if _, ok := found[id]; ok {
			strange = false
		}
	}

	if err := p.looks.none(strange && len(known) > 1, len(known)); err != nil {
		return false, err
	}

	for _, id := range known {
		machine, ok := found[id]

		switch {
		case ok:
			if p.looks.saw(id, machine) {
				p.queue.add(id)
			}
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

	return missed, nil
}

// looks remembers how each machine was last seen, how often it was missed since, and since when Omni has not known it.
type looks struct {
	mu     sync.Mutex
	last   map[string]driver.Machine
	misses map[string]int
	absent map[string]time.Time
	// empty is since when looks have found none of several machines.
	empty   time.Time
	strange error
}

// none notes whether a complete look found none of several machines. All of them gone at once is more often the wrong cloud, as
// after a slip in its address, than their end: for a while the answer is an error, which health shows, and counts as no look.
func (l *looks) none(none bool, known int) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	if !none {
		l.empty, l.strange = time.Time{}, nil

		return nil
	}

	if l.empty.IsZero() {
		l.empty = time.Now()
	}

	left := emptyGrace - time.Since(l.empty)
	if left <= 0 {
		l.strange = nil

		return nil
	}

	l.strange = fmt.Errorf("the cloud has none of the %d machines of this provider: is it the right one? They are given up in %s", known, left.Round(time.Second))

	return l.strange
}

// trouble returns what is strange about the last look, or nil.
func (l *looks) trouble() error {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.strange
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

func (l *looks) forget(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	delete(l.last, id)
	delete(l.misses, id)
	delete(l.absent, id)
}
