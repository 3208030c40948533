package conformance

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/omni-infra/omni-infra-providers/conformance/report"
)

// suite runs cases against one provider.
type suite struct {
	opts  Options
	cases []testCase
	// outcomes has one of each case, by name. Cases may be run at the same time; each writes its own.
	outcomes map[string]*outcome
	// real is nil on the fake clock.
	real *Real
	// points is how many points of a generated case are played, zero for all. seed draws them.
	points int
	seed   uint64
}

// outcome is how a case ended; its verdict is empty until then.
type outcome struct {
	verdict verdict
	reason  string
	failure *failure
	// points says of a generated case what it covers.
	points string
	// attempts counts how often it was played.
	attempts atomic.Int32
}

func (s *suite) of(c testCase) *outcome { return s.outcomes[c.name] }

func newSuite(opts Options, all []testCase) (*suite, error) {
	s, err := planSuite(opts, all)

	if opts.Provider == "" || opts.New == nil {
		err = errors.Join(errors.New("Options.Provider and Options.New are required"), err)
	}

	return s, err
}

// planSuite checks what opts say of features and cases.
func planSuite(opts Options, all []testCase) (*suite, error) {
	var problems []error

	for _, f := range opts.Claims {
		if !slices.Contains(features, f) {
			problems = append(problems, fmt.Errorf("claimed feature %q does not exist; there are %v", f, features))
		}
	}

	known := maps.Clone(opts.Waive)
	if known == nil {
		known = map[string]string{}
	}

	maps.Copy(known, opts.Unsteady)

	for name, reason := range known {
		if !slices.ContainsFunc(cases(), func(c testCase) bool { return c.name == name }) {
			problems = append(problems, fmt.Errorf("waived case %q does not exist", name))
		}

		if strings.TrimSpace(reason) == "" {
			problems = append(problems, fmt.Errorf("waiver of case %q gives no reason", name))
		}
	}

	s := &suite{opts: opts, cases: all, outcomes: map[string]*outcome{}}

	for _, c := range all {
		s.outcomes[c.name] = &outcome{}
	}

	return s, errors.Join(problems...)
}

// report runs a case as the test t.
func (s *suite) report(t *testing.T, c testCase) {
	t.Helper()

	if !s.claimed(c) || !s.visible(c) {
		t.Skip(s.of(c).reason)
	}

	f := s.execute(t, c)
	v, text := s.judge(c, f)
	s.of(c).verdict, s.of(c).failure = v, f

	if v == failed {
		t.Error(text)
	} else if text != "" {
		t.Log(text)
	}
}

// claimed reports whether the provider claims all features that a case needs. If not, the case has ended.
func (s *suite) claimed(c testCase) bool {
	for _, f := range c.needs {
		if !slices.Contains(s.opts.Claims, f) {
			s.of(c).verdict, s.of(c).reason = unclaimed, fmt.Sprintf("feature %q is not claimed", f)

			return false
		}
	}

	return true
}

// judge says how a case has ended and what there is to tell.
func (s *suite) judge(c testCase, f *failure) (verdict, string) {
	reason, isWaived := s.opts.Waive[c.name]
	chance, isUnsteady := s.opts.Unsteady[c.name]

	switch {
	case isUnsteady:
		s.of(c).reason = chance

		return waived, fmt.Sprintf("%s is waived: %s", c.id, chance)
	case isWaived && f == nil:
		return failed, fmt.Sprintf("%s passes now; take its waiver away (%s)", c.id, reason)
	case isWaived:
		s.of(c).reason = reason

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

	all, of := c.troubles(made), ""
	if s.points > 0 {
		all, of = draw(c, all, s.points, s.seed)
	}

	s.of(c).points = pointsOf(all) + of

	t.Logf("%s: %s", c.name, s.of(c).points)

	if s.real != nil {
		return s.atOnce(t, c, all)
	}

	for _, it := range all {
		t.Run(it.name, func(t *testing.T) { _, first = s.attempt(t, c, it) })

		// One is enough to see what is wrong.
		if first != nil {
			return first
		}
	}

	return nil
}

var ordinal = regexp.MustCompile(`[0-9]+`)

// pointsOf says at how many points the provider is troubled, and in how many ways at each: "2x23 points".
func pointsOf(all []trouble) string {
	places := map[string]bool{}
	for _, it := range all {
		places[ordinal.FindString(it.name)] = true
	}

	if ways := len(all) / max(len(places), 1); ways > 1 && ways*len(places) == len(all) {
		return fmt.Sprintf("%dx%d points", ways, len(places))
	}

	return fmt.Sprintf("%d points", len(all))
}

// attempt runs a case once, in a world of its own, and on the fake clock in a bubble of its own.
func (s *suite) attempt(t *testing.T, c testCase, it trouble) (made calls, f *failure) {
	t.Helper()

	var (
		e     *env
		stuck string
	)

	if s.real != nil {
		e, f, stuck = s.attemptReal(t, c, it)
	} else {
		stuck = inBubble(t, func(t *testing.T) {
			setup := c.omni
			// A case has been played with signed calls before its points are; there are hundreds of those, and signatures would cost a
			// third of them.
			setup.Unsigned = setup.Unsigned || it.name != ""

			e = newSimulation(t, s.opts, setup, simulatedPace)
			f = e.play(c, it)
		})
	}

	made = e.counted

	if stuck != "" && f == nil {
		f = &failure{want: "all that the provider has started has ended when its process has", got: stuck, history: e.history().History()}
	}

	if f != nil {
		f.rule, f.again = cmp.Or(f.rule, c.rule), again(t.Name())
	}

	return made, f
}

// result returns the report on all cases that have ended.
func (s *suite) result(where string) report.Report {
	r := report.Report{Version: report.Version, Provider: s.opts.Provider, Where: where}

	for _, f := range s.opts.Claims {
		r.Claims = append(r.Claims, string(f))
	}

	for _, c := range s.cases {
		o := s.of(c)
		if o.verdict == "" {
			continue
		}

		entry := c.entry()
		entry.Verdict, entry.Reason = o.verdict, o.reason

		if s.real != nil {
			entry.Points = o.points
		}

		if o.failure != nil {
			entry.Failure = o.failure.report()
		}

		r.Cases = append(r.Cases, entry)
	}

	return r
}

// entry returns the case as it is in reports, without a verdict.
func (c testCase) entry() report.Case {
	entry := report.Case{ID: c.id, Name: c.name, Rule: c.rule}

	for _, f := range c.needs {
		entry.Features = append(entry.Features, string(f))
	}

	for _, m := range c.uses {
		entry.Means = append(entry.Means, string(m))
	}

	return entry
}

// summary counts the verdicts and lists all cases but the passed ones; of these the generated ones, with what they cover.
func (s *suite) summary() string {
	r := s.result("")

	text := fmt.Sprintf("conformance of provider %s: %s", r.Provider, r.Summary())

	for _, c := range r.Cases {
		if c.Verdict != passed {
			text += fmt.Sprintf("\n  %-9s %s %s %s", c.Verdict, c.ID, c.Name, c.Reason)
		} else if points := s.outcomes[c.Name].points; points != "" {
			text += fmt.Sprintf("\n  %-9s %s %s: %s", c.Verdict, c.ID, c.Name, points)
		}
	}

	return text
}
