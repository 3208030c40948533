package conformance

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Real says how RunReal plays cases on a real backend. The zero value of everything but Where is its default.
type Real struct {
	// Where says in reports what the machines are made on, as "on libvirtd with QEMU".
	Where string
	// Only selects cases by id and name; nil means all.
	Only *regexp.Regexp
	// Parallel is how many cases, or points of generated ones, are played at once; 1 by default. Each has a provider id of its own.
	Parallel int
	// Patience is how long anything is waited for; three minutes by default.
	Patience time.Duration
	// Calm is what is left of all other times of a case that are longer: how long nothing must happen before it is taken that
	// nothing will, and how long faults last. It has to be longer than the provider takes to act on what it is told. Three
	// seconds by default.
	Calm time.Duration
	// Looks is how long the provider takes to look at its cloud several times, a place that is silent included: as long is watched
	// what it makes of a cloud that it cannot see. 45 seconds by default.
	Looks time.Duration
	// Hang is how long a call hangs that is to hang, which has to be longer than the provider waits for one; 15 seconds by default.
	Hang time.Duration
	// Points is how many of the points of a generated case are tried, spread over all; three by default. Seed draws them.
	Points int
	Seed   uint64

	crew *crew
}

// RunReal is Run on a real backend and in real time: the same cases, each judged by the same rules, as far as they need no hours.
// Omni is simulated, and the provider runs in this process, as in Run. Options.New stands an adapter before the backend: its
// machines are those that the backend has, its books have the calls that the provider makes, and what exists is looked up
// (ledger.Look). The machines may be simulated ones, booted when the backend starts one, with what the provider has laid there.
func RunReal(t *testing.T, opts Options, on Real) {
	t.Helper()

	on.setDefaults()

	s, err := newSuite(opts, slices.DeleteFunc(cases(), func(c testCase) bool {
		return on.Only != nil && !on.Only.MatchString(c.id) && !on.Only.MatchString(c.name)
	}))
	if on.Where == "" {
		err = errors.Join(err, errors.New("Real.Where is required"))
	}

	if err != nil {
		t.Fatalf("conformance suite: %v", err)
	}

	s.real, s.points, s.seed = &on, on.Points, on.Seed

	t.Cleanup(func() {
		t.Log(s.summary())

		if path := os.Getenv(reportEnv); on.Only == nil {
			if err := s.save(path, on.Where, s.opts.Provider+"-real"); err != nil {
				t.Errorf("conformance suite: %v", err)
			}
		}
	})

	collectLess(t)

	on.crew.play(on.order(s.cases), on.Parallel, func(c testCase) {
		t.Run(c.name, func(t *testing.T) { s.report(t, c) })
	})
}

func (on *Real) setDefaults() {
	on.Parallel, on.Points = cmp.Or(on.Parallel, 1), cmp.Or(on.Points, 3)
	on.Patience, on.Calm, on.Hang = cmp.Or(on.Patience, 3*time.Minute), cmp.Or(on.Calm, 3*time.Second), cmp.Or(on.Hang, 15*time.Second)
	on.Looks = cmp.Or(on.Looks, 45*time.Second)
	on.crew = newCrew()
}

// order puts the cases that take longest first, so that none of them is left to the end.
func (*Real) order(all []testCase) []testCase {
	return slices.SortedStableFunc(slices.Values(all), func(a, b testCase) int {
		switch {
		case a.troubles != nil && b.troubles == nil:
			return -1
		case a.troubles == nil && b.troubles != nil:
			return 1
		}

		return 0
	})
}

func (on *Real) pace() pace {
	return pace{
		patience: on.Patience, longest: on.Calm, looks: on.Looks, hang: on.Hang, poll: 100 * time.Millisecond, slowPoll: 500 * time.Millisecond,
		boot: 2 * time.Second, shutdown: 100 * time.Millisecond,
	}
}

// atOnce plays a case at all of the points, with the other players' help, and returns the first point's failure, nil if there is none.
func (s *suite) atOnce(t *testing.T, c testCase, all []trouble) *failure {
	t.Helper()

	failures := make([]*failure, len(all))

	s.real.crew.each(len(all), func(i int) {
		t.Run(all[i].name, func(t *testing.T) { _, failures[i] = s.attempt(t, c, all[i]) })
	})

	for _, f := range failures {
		if f != nil {
			return f
		}
	}

	return nil
}

// visible reports whether the case can be played where the suite is. If not, it has ended.
func (s *suite) visible(c testCase) bool {
	if s.real == nil || !slices.Contains(c.uses, fakeClock) {
		return true
	}

	s.of(c).verdict, s.of(c).reason = unseen, "needs "+string(fakeClock)

	return false
}

// attemptReal plays a case once on the wall's clock. What New has given to t.Cleanup is done at the end of the attempt.
func (s *suite) attemptReal(t *testing.T, c testCase, it trouble) (e *env, f *failure, stuck string) {
	t.Helper()

	opts := s.opts
	// Attempts at the same time must not see each other's machines.
	opts.Provider = strings.ToLower(fmt.Sprintf("%s-%s-%d", opts.Provider, c.id, s.of(c).attempts.Add(1)))

	play := func(t *testing.T) {
		t.Helper()

		e = newSimulation(t, opts, c.omni, s.real.pace())

		if err := catch(func() { f = e.live(c, it) }); err != nil {
			f = &failure{want: "the case can be played", got: e.history().Redact(err.Error()), history: e.history().History()}
		}

		stuck = e.endWithin(endTime + s.real.Hang)

		if f != nil {
			keepHistory(t, f)
		}
	}

	if c.troubles != nil && it.name == "" {
		t.Run("undisturbed", play)
	} else {
		play(t)
	}

	if e == nil {
		// New has failed the test, and said why.
		e, f = newEnv(opts.Provider), &failure{want: "a cloud to play on", got: "there is none"}
	}

	return e, f, stuck
}

// historiesEnv names the environment variable with the directory that keeps the whole histories of attempts that failed: in real time
// they are long.
const historiesEnv = "CONFORMANCE_HISTORIES"

func keepHistory(t *testing.T, f *failure) {
	t.Helper()

	dir := os.Getenv(historiesEnv)
	if dir == "" {
		return
	}

	path := filepath.Join(dir, strings.ReplaceAll(t.Name(), "/", "_")+".txt")
	if err := os.WriteFile(path, []byte(f.history), 0o600); err != nil {
		t.Errorf("conformance suite: keep a history: %v", err)
	}
}

// endWithin is end for a place where something may go on for ever. It says what does, empty if all has ended.
func (e *env) endWithin(limit time.Duration) (stuck string) {
	done := make(chan struct{})

	go func() {
		defer close(done)
		e.end()
	}()

	select {
	case <-done:
		return ""
	case <-time.After(limit):
		return fmt.Sprintf("something still runs %s later", limit)
	}
}
