package conformance

import (
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// HistoryOptions say which histories Histories plays. The zero value plays a hundred, from seed 0.
type HistoryOptions struct {
	// Seeds is how many histories are drawn, 100 if zero. First is the seed of the first one.
	Seeds int
	First uint64
	// Steps is how long each is, 20 if zero.
	Steps int
	// Text, if not empty, is the one history to play instead.
	Text string
}

// Flags makes command line flags of the options: -seeds, -first-seed, -steps and -history.
func (h *HistoryOptions) Flags(set *flag.FlagSet) {
	set.IntVar(&h.Seeds, "seeds", h.Seeds, "how many random histories are played (default 100)")
	set.Uint64Var(&h.First, "first-seed", h.First, "seed of the first random history")
	set.IntVar(&h.Steps, "steps", h.Steps, "length of the random histories (default 20)")
	set.StringVar(&h.Text, "history", h.Text, "play this history instead, as a failure prints it")
}

const (
	// mostKinds is how many kinds of failures are looked into, and mostFailures how many seeds fail, before the rest is left out.
	mostKinds, mostFailures = 3, 30
	// progressTime is how often long runs say how far they are.
	progressTime = 5 * time.Second
)

// Histories plays random histories of an operator's wishes and of faults, several at once, and looks whether the rules hold that
// hold in all of them. One that fails is cut down to the few steps that matter.
func Histories(t *testing.T, opts Options, h HistoryOptions) {
	t.Helper()

	s, err := newSuite(opts, nil)
	if err != nil {
		t.Fatalf("conformance suite: %v", err)
	}

	if h.Text != "" {
		one, err := parseHistory(h.Text)
		if err != nil {
			t.Fatalf("conformance suite: history: %v", err)
		}

		if f := s.tryHistory(t, one); f != nil {
			t.Errorf("history: %s\n%s", one, f)
		}

		return
	}

	hunt := &hunt{suite: s, next: h.First, end: h.First + uint64(def(h.Seeds, 100)), steps: def(h.Steps, 20), began: time.Now()} //nolint:gosec // It is no negative number.
	hunt.first, hunt.told, hunt.kinds = h.First, hunt.began, map[string]bool{}

	// Each world is made and thrown away: there is little to collect, and much to look through.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))

	t.Run("workers", func(t *testing.T) {
		for n := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprintf("%d", n), func(t *testing.T) {
				t.Parallel()
				hunt.work(t)
			})
		}
	})

	t.Log(hunt.progress())
}

func def(n, otherwise int) int {
	if n > 0 {
		return n
	}

	return otherwise
}

// hunt is a search for failing seeds by several workers.
type hunt struct {
	suite *suite
	steps int
	first uint64
	end   uint64
	began time.Time

	mu     sync.Mutex
	next   uint64
	told   time.Time
	failed int
	kinds  map[string]bool
}

// take returns the next seed, false if there is none left.
func (h *hunt) take(t *testing.T) (seed uint64, ok bool) {
	t.Helper()

	h.mu.Lock()
	defer h.mu.Unlock()

	if h.next == h.end || h.failed >= mostFailures || len(h.kinds) >= mostKinds {
		return 0, false
	}

	if time.Since(h.told) > progressTime {
		h.told = time.Now()
		t.Log(h.progress())
	}

	h.next++

	return h.next - 1, true
}

// progress says how far the search is.
func (h *hunt) progress() string {
	done, took := h.next-h.first, time.Since(h.began)

	return fmt.Sprintf("%d of %d histories, %d failed, %s, %.1f each second",
		done, h.end-h.first, h.failed, took.Round(time.Second), float64(done)/took.Seconds())
}

func (h *hunt) work(t *testing.T) {
	t.Helper()

	for {
		seed, ok := h.take(t)
		if !ok {
			return
		}

		one := randomHistory(seed, h.steps, h.suite.opts.Claims)

		if f := h.suite.tryHistory(t, one); f != nil {
			if h.isNew(f) {
				t.Error(h.suite.explain(t, seed, one, f))
			} else {
				t.Errorf("the history of seed %d fails in the same way: %s", seed, f.kind())
			}
		}
	}
}

// isNew counts a failure and reports whether there was none of its kind before.
func (h *hunt) isNew(f *failure) bool {
	h.mu.Lock()
	defer h.mu.Unlock()

	known := h.kinds[f.kind()]
	h.failed++
	h.kinds[f.kind()] = true

	return !known
}

// tryHistory plays a history in a world of its own and returns how it failed, nil if it did not.
func (s *suite) tryHistory(t *testing.T, h history) *failure {
	t.Helper()

	_, f := s.attempt(t, testCase{rule: ruleClean, omni: omni.Options{Unsigned: true}, run: func(e *env) { e.playHistory(h) }}, trouble{})

	return f
}
