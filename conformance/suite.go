package conformance

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
)

// suite runs cases against one provider.
type suite struct {
	opts   Options
	cases  []testCase
	ended  map[string]verdict
	reason map[string]string
}

func newSuite(opts Options, all []testCase) (*suite, error) {
	var problems []error

	if opts.Provider == "" || opts.New == nil {
		problems = append(problems, errors.New("Options.Provider and Options.New are required"))
	}

	for _, f := range opts.Claims {
		if !slices.Contains(features, f) {
			problems = append(problems, fmt.Errorf("claimed feature %q does not exist; there are %v", f, features))
		}
	}

	for name, reason := range opts.Waive {
		if !slices.ContainsFunc(all, func(c testCase) bool { return c.name == name }) {
			problems = append(problems, fmt.Errorf("waived case %q does not exist", name))
		}

		if strings.TrimSpace(reason) == "" {
			problems = append(problems, fmt.Errorf("waiver of case %q gives no reason", name))
		}
	}

	return &suite{opts: opts, cases: all, ended: map[string]verdict{}, reason: map[string]string{}}, errors.Join(problems...)
}

// report runs a case as the test t.
func (s *suite) report(t *testing.T, c testCase) {
	t.Helper()

	for _, f := range c.needs {
		if !slices.Contains(s.opts.Claims, f) {
			s.ended[c.name], s.reason[c.name] = unclaimed, fmt.Sprintf("feature %q is not claimed", f)
			t.Skip(s.reason[c.name])
		}
	}

	reason, isWaived := s.opts.Waive[c.name]
	f := s.execute(t, c)

	switch {
	case isWaived && f == nil:
		s.ended[c.name] = failed
		t.Errorf("the case passes now; take its waiver away (%s)", reason)
	case isWaived:
		s.ended[c.name], s.reason[c.name] = waived, reason
		t.Logf("waived: %s\n%s", reason, f)
	case f != nil:
		s.ended[c.name] = failed
		t.Errorf("%s\n%s", c.id, f)
	default:
		s.ended[c.name] = passed
	}
}

// execute runs a case in all its forms and returns its first failure, nil if there is none.
func (s *suite) execute(t *testing.T, c testCase) *failure {
	t.Helper()

	calls, first := s.attempt(t, c, crash{})
	if first != nil || !c.crashes {
		return first
	}

	for n := 1; n <= calls; n++ {
		for _, lost := range []bool{true, false} {
			at := crash{call: n, lost: lost}

			t.Run(at.String(), func(t *testing.T) {
				if _, f := s.attempt(t, c, at); f != nil && first == nil {
					first = f
				}
			})

			// One is enough to see what is wrong.
			if first != nil {
				return first
			}
		}
	}

	return nil
}

// attempt runs a case once, in a world and a bubble of its own, and returns how many calls the cloud got.
func (s *suite) attempt(t *testing.T, c testCase, at crash) (calls int, f *failure) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, s.opts)
		f = e.play(c, at)
		calls = e.subject.Cloud.Ledger().Calls()

		if f != nil {
			f.rule, f.again = c.rule, again(t.Name())
		}
	})

	return calls, f
}

// crash says when the provider dies: around a call to the cloud, or never.
type crash struct {
	call int
	lost bool
}

// String is the name of the subtest.
func (c crash) String() string {
	if c.lost {
		return fmt.Sprintf("call-%d-reply-lost", c.call)
	}

	return fmt.Sprintf("call-%d-reply-delivered", c.call)
}

// summary counts the verdicts and lists all but the passed cases.
func (s *suite) summary() string {
	counts := map[verdict]int{}

	var lines strings.Builder

	for _, c := range s.cases {
		v, ok := s.ended[c.name]
		if !ok {
			continue
		}

		counts[v]++

		if v != passed {
			fmt.Fprintf(&lines, "\n  %-9s %s %s %s", v, c.id, c.name, s.reason[c.name])
		}
	}

	return fmt.Sprintf("conformance of provider %s: %d passed, %d failed, %d waived, %d unclaimed%s",
		s.opts.Provider, counts[passed], counts[failed], counts[waived], counts[unclaimed], lines.String())
}
