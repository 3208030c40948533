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

	f := s.execute(t, c)
	v, text := s.judge(c, f)
	s.ended[c.name] = v

	if v == failed {
		t.Error(text)
	} else if text != "" {
		t.Log(text)
	}
}

// judge says how a case has ended and what there is to tell.
func (s *suite) judge(c testCase, f *failure) (verdict, string) {
	reason, isWaived := s.opts.Waive[c.name]

	switch {
	case isWaived && f == nil:
		return failed, fmt.Sprintf("%s passes now; take its waiver away (%s)", c.id, reason)
	case isWaived:
		s.reason[c.name] = reason

		return waived, fmt.Sprintf("%s is waived: %s\n%s", c.id, reason, f)
	case f != nil:
		return failed, fmt.Sprintf("%s %s", c.id, f)
	default:
		return passed, ""
	}
}

// execute runs a case in all its forms and returns its first failure, nil if there is none.
func (s *suite) execute(t *testing.T, c testCase) *failure {
	t.Helper()

	made, first := s.attempt(t, c, trouble{})
	if first != nil || c.troubles == nil {
		return first
	}

	for _, it := range c.troubles(made) {
		t.Run(it.name, func(t *testing.T) { _, first = s.attempt(t, c, it) })

		// One is enough to see what is wrong.
		if first != nil {
			return first
		}
	}

	return nil
}

// attempt runs a case once, in a world and a bubble of its own.
func (s *suite) attempt(t *testing.T, c testCase, it trouble) (made calls, f *failure) {
	t.Helper()

	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, s.opts)
		f = e.play(c, it)
		made = calls{cloud: e.ledger.Calls(), omni: e.writes.Calls()}

		if f != nil {
			f.rule, f.again = c.rule, again(t.Name())
		}
	})

	return made, f
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
