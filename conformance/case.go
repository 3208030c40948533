package conformance

// testCase is one rule and how it is tried.
type testCase struct {
	// id is short and never used again for another rule; name is a path in kebab case, whose first part is the theme.
	id, name string
	// rule is one sentence that says what is right.
	rule string
	// needs are the features without which the case makes no sense.
	needs []Feature
	// run tries the rule in a fresh world where the provider runs. What it asked of Omni is taken back afterwards, and the world
	// has to be clean then, so no case has to do that itself.
	run func(e *env)
	// troubles, if not nil, makes the suite repeat run with each of these, given how many calls the first run made.
	troubles func(made calls) []trouble
}

// calls are how many calls a provider made to the cloud, and how many to Omni that write.
type calls struct{ cloud, omni int }

// trouble is something that befalls the provider in the course of a run.
type trouble struct {
	// name is that of a subtest.
	name string
	arm  func(e *env)
}

// cases returns all cases in the order in which they are run.
func cases() []testCase {
	var all []testCase

	for _, theme := range [][]testCase{
		lifecycleCases, deprovisionCases, classDataCases, ownershipCases, idempotencyCases, dayTwoCases, faultCases, crashCases,
	} {
		all = append(all, theme...)
	}

	return all
}

// verdict is how a case ended.
type verdict string

const (
	passed    verdict = "pass"
	failed    verdict = "fail"
	waived    verdict = "waived"
	unclaimed verdict = "unclaimed"
)
