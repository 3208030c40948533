package conformance

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// mostTries bounds how often a failing history is played again to find what matters in it.
const mostTries = 200

// shrink returns the shortest history found that still fails in the given way, which fails is asked for, at most mostTries times.
func shrink(h history, fails func(history) bool) history {
	tries := 0
	still := func(h history) bool {
		tries++

		return tries <= mostTries && fails(h)
	}

	for before := ""; before != h.String() && tries < mostTries; {
		before = h.String()
		h = dropSteps(h, still)
		h = shortenTimes(h, still)
	}

	return h
}

// dropSteps leaves steps out, first half of them at once, in the end one by one.
func dropSteps(h history, fails func(history) bool) history {
	for size := len(h) / 2; size >= 1; size /= 2 {
		for at := len(h) - size; at >= 0; {
			without := append(append(history{}, h[:at]...), h[at+size:]...)

			if len(without) > 0 && fails(without) {
				h = without
			}

			at = min(at-size, len(h)-size)
			if at < 0 {
				break
			}
		}
	}

	return h
}

// shortenTimes takes times away, or makes them shorter and rounder.
func shortenTimes(h history, fails func(history) bool) history {
	for i := range h {
		for _, after := range shorter(h[i].after) {
			if next := h.with(i, func(s *step) { s.after = after }); fails(next) {
				h = next

				break
			}
		}

		for j, kind := range h[i].op.args {
			if kind != durationArg {
				continue
			}

			for _, d := range shorter(duration(h[i].args[j])) {
				if next := h.with(i, func(s *step) { s.args[j] = d.String() }); fails(next) {
					h = next

					break
				}
			}
		}
	}

	return h
}

func shorter(d time.Duration) (all []time.Duration) {
	for _, next := range []time.Duration{0, d.Truncate(time.Minute), d.Truncate(time.Second), d.Truncate(100 * time.Millisecond)} {
		if next < d && (next > 0 || len(all) == 0) {
			all = append(all, next)
		}
	}

	return all
}

// with returns a copy in which one step is changed.
func (h history) with(i int, change func(*step)) history {
	next := append(history{}, h...)
	next[i].args = append([]string(nil), next[i].args...)
	change(&next[i])

	return next
}

var digits = regexp.MustCompile(`[0-9.]+`)

// kind is what two failures have in common that have the same cause, as far as one can tell.
func (f *failure) kind() string {
	if f.rule != ruleClean {
		return f.rule
	}

	first, _, _ := strings.Cut(f.got, "\n")

	return digits.ReplaceAllString(first, "")
}

// explain cuts a failing history down and returns all that a developer needs.
func (s *suite) explain(t *testing.T, seed uint64, h history, f *failure) string {
	t.Helper()

	var last *failure

	small := shrink(h, func(h history) bool {
		found := s.tryHistory(t, h)
		if found == nil || found.kind() != f.kind() {
			return false
		}

		last = found

		return true
	})

	var b strings.Builder

	fmt.Fprintf(&b, "the history of seed %d breaks a rule.\n", seed)

	if last == nil {
		fmt.Fprintf(&b, "It does so by chance: no shorter one was found that fails in the same way.\n")

		last = f
	}

	last.again = fmt.Sprintf("%s -history '%s'", again(strings.SplitN(t.Name(), "/", 2)[0]), small)

	fmt.Fprintf(&b, "%s\n", last)
	fmt.Fprintf(&b, "seed:    %s -first-seed %d -seeds 1\n", again(strings.SplitN(t.Name(), "/", 2)[0]), seed)
	fmt.Fprintf(&b, "drawn:   %s\n", h)
	fmt.Fprintf(&b, "shrunk:  %s\n", small)
	fmt.Fprintf(&b, "keep:    {id: \"HI-NN\", name: \"histories/NAME\", rule: %q, text: %q},", last.rule, small)

	return b.String()
}
