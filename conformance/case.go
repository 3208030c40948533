package conformance

import (
	"github.com/omni-infra/omni-infra-providers/conformance/report"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// testCase is one rule and how it is tried.
type testCase struct {
	// id is short and never used again for another rule; name is a path in kebab case, whose first part is the theme.
	id, name string
	// rule is one sentence that says what is right.
	rule string
	// needs are the features without which the case makes no sense.
	needs []Feature
	// uses is what the case has to see and to do besides Omni's API and the provider's process. Where that is not to be had, the
	// case cannot be run.
	uses []means
	// omni says how the simulated Omni is set up, where that matters. A case that says anything uses simulatedOmni.
	omni omni.Options
	// run tries the rule in a fresh world where the provider runs. What it asked of Omni is taken back afterwards, and the world
	// has to be clean then, so no case has to do that itself.
	run func(e *env)
	// troubles, if not nil, makes the suite repeat run with each of these, given how many calls the first run made. Calls are those
	// in the window of the case, if run opens one.
	troubles func(made calls) []trouble
	// window says that run opens a window, in which the troubles befall the provider.
	window bool
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
		lifecycleCases, matchingCases, deprovisionCases, teardownCases, classDataCases, classSchemaCases, ownershipCases, foreignCases, neighbourCases,
		idempotencyCases, repeatCases, concurrencyCases, dayTwoCases, powerCases, replaceCases, removedCases, patchCases, upgradeCases, twinCases,
		statusCases, healthCases, shutdownCases, secretCases, capacityCases, omniCases, faultCases, crashCases, startCases, eachCallCases,
		placeCases,
		historyCases(),
	} {
		all = append(all, theme...)
	}

	return all
}

// verdict is how a case ended.
type verdict = report.Verdict

const (
	passed    = report.Pass
	failed    = report.Fail
	broken    = report.Broken
	waived    = report.Waived
	unclaimed = report.Unclaimed
	// unseen cases use means that there are not where the suite is run.
	unseen = report.Unseen
)
