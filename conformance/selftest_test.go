package conformance

import (
	"context"
	"flag"
	"hash/crc32"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func toyOptions(f flaw) Options {
	return Options{
		Provider: "toy",
		Claims:   []Feature{DerivedUUID, Power, Reboot, Console, ConfigPatches, OneAtATime, NextRelease, Places},
		New: func(t *testing.T, w *World) Subject {
			c := newToyCloud(w.Boot)
			t.Cleanup(c.close)

			run := func(ctx context.Context, p Process) error { return runToy(ctx, f, c, p) }

			return Subject{Cloud: c, Data: `{"cores": 2}`, Faults: toyFaults, CreateOp: "create", Run: run, Next: run}
		},
	}
}

var whole = flag.Bool("whole", false, "try all cases on every provider, and all troubles on the right one")

// Without the flag -whole a part is tried of what is expected to pass: one in so many pairs of a broken provider and a case, and one
// in so many troubles of the right provider. Of the troubles of a broken one that it is expected to stand there are never more than a few.
const (
	pairsShare    = 40
	troublesShare = 8
	fewTroubles   = 2
)

// brokenBy has the cases that a provider with a flaw has to fail. It passes all others.
var brokenBy = map[flaw][]string{
	none: nil,
	// In the second, somebody else's machine has the name because it is a neighbour's.
	adoptsByName:    {"ownership/foreign-objects-untouched", "ownership/same-request-id"},
	trustsItsMemory: {"crash/after-each-cloud-call", "crash/after-each-write-to-omni", "idempotency/all-phases-twice"},
	// A misspelt field is an unknown one, and what is corrected is an unknown field.
	ignoresUnknownFields: {"class-data/unknown-field", "class-data/nearest-field", "class-data/corrected"},
	// In both Omni holds on to a machine.
	hurriesRemoval: {"deprovision/omni-holds-the-machine", "power/not-while-torn-down"},
	// These are the cases that start the provider again and look at a machine afterwards.
	startsAgain: {
		"idempotency/restarts", "idempotency/all-phases-twice", "ownership/two-providers", "ownership/same-request-id", "ownership/foreign-beside-own",
		"upgrade/unreadable-record", "upgrade/next-release", "power", "power/switched-off-at-the-console", "reboot", "reboot/provider-was-off",
		"replace/unreachable-at-start", "omni/key-replaced",
	},
	tellsUUIDLate:       {"provision/uuid-before-join"},
	takesSilenceForGone: {"faults/out-of-reach-while-removing"},
	takesSilenceForNone: {"faults/each-call/unauthorized"},
	takesNeighbours:     {"ownership/two-providers", "ownership/same-request-id", "matching/neighbours-machine"},
	clearsErrors:        {"status/error-stays"},
	hidesSteps:          {"status/text-moves-forward"},
	writesTooMuch:       {"status/nothing-after-the-end"},
	feelsWell:           {"health/cloud-unavailable", "health/cloud-unauthorized", "health/cloud-hangs", "places/health-names-it"},
	isSilent:            {"health/heartbeat"},
	failsAtItsEnd:       {"shutdown/during-each-cloud-call"},
	finishesCalls:       {"shutdown/while-any-call-hangs"},
	repeatsRequests:     {"secrets/echoed-by-the-cloud"},
	ignoresPauses:       {"faults/each-call/throttled", "capacity/rate-limit-holds-for-all", "capacity/full-for-ten-minutes"},
	givesNoHint:         {"class-data/nearest-field"},
	needsNoField:        {"class-data/empty", "class-data/missing-field"},
	publishesMap:        {"class-data/schema"},
	// These are the cases that have several machines and look at their names.
	givesOneName: {
		"provision/ten-at-once", "concurrency/fifty-at-once", "concurrency/half-made-half-removed", "omni/all-watches-cut",
		"omni/burst-while-nobody-watches",
	},
	keepsToken: {"omni/join-token-replaced"},
	// In all of them somebody else has a machine of the same name.
	removesByName: {
		"ownership/foreign-beside-own", "ownership/foreign-at-each-crash", "ownership/foreign-objects-untouched", "ownership/same-request-id",
	},
	bearsGrudges:    {"class-data/corrected"},
	switchesEarly:   {"power/not-before-it-joined"},
	rebootsAgain:    {"reboot/crash-at-each-cloud-call"},
	actsAlone:       {"one-at-a-time/twenty-requests", "one-at-a-time/holder-cut-off", "one-at-a-time/killed-in-the-middle"},
	sharesPatch:     {"config-patches"},
	uploadsEachTime: {"concurrency/fifty-at-once"},
	needsAllPlaces:  {"places/others-go-on-cut-off", "places/others-go-on-silent"},
	changesPlace:    {"places/not-made-elsewhere"},
	// In the other all machines are at the first place when that gets out of reach.
	takesUnseenForGone: {"places/out-of-reach-is-not-gone"},
	takesUnseenForEmpty: {
		"places/removed-while-out-of-reach", "places/others-go-on-cut-off", "places/others-go-on-silent",
	},
}

// TestSuiteFindsWhatIsWrong runs the suite on providers that each break one rule. Each has to fail the cases of that rule, and no
// others.
func TestSuiteFindsWhatIsWrong(t *testing.T) {
	// Each world is made and thrown away: there is little to collect, and much to look through.
	before := debug.SetGCPercent(400)
	t.Cleanup(func() { debug.SetGCPercent(before) })

	for f, want := range brokenBy {
		t.Run(testName(f), func(t *testing.T) {
			t.Parallel()

			s, err := newSuite(toyOptions(f), cases())
			require.NoError(t, err)

			for _, name := range want {
				require.Contains(t, s.outcomes, name)
			}

			for _, c := range s.cases {
				expected := slices.Contains(want, c.name)

				switch {
				case !s.claimed(c), !expected && f != none && !*whole && !isSample(f, c):
					continue
				case !expected:
					c.troubles = someTroubles(f, c)
				}

				t.Run(c.name, func(t *testing.T) {
					found := s.execute(t, c)

					switch {
					case expected:
						require.NotNil(t, found, "the suite does not see that the provider %s", f)
						t.Logf("got: %s", found.got)
					case found != nil:
						t.Errorf("%s", found)
					}
				})
			}
		})
	}
}

// isSample picks pairs, always the same ones.
func isSample(f flaw, c testCase) bool {
	return crc32.ChecksumIEEE([]byte(string(f)+c.name))%pairsShare == 0
}

// someTroubles returns the part of a case's troubles that a provider is tried with which is expected to stand them.
func someTroubles(f flaw, c testCase) func(calls) []trouble {
	switch {
	case c.troubles == nil || f == none && *whole:
		return c.troubles
	case f == none:
		return every(troublesShare, c.troubles)
	case !isSample(f, c):
		return nil
	default:
		return func(made calls) []trouble {
			all := c.troubles(made)

			return every(max(len(all)/fewTroubles, 1), func(calls) []trouble { return all })(made)
		}
	}
}

// TestEveryCaseLooksForWhatIsNeverRight runs one case on providers that break the rules which hold in all cases.
func TestEveryCaseLooksForWhatIsNeverRight(t *testing.T) {
	for f, want := range map[flaw]string{
		logsJoinToken:  `secret "join token" is in the provider's log`,
		logsFirstToken: `secret "join token" is in the provider's log`,
		forgetsMachine: "1 machines",
		givesUp:        "the provider has ended by itself",
		staysTooLong:   "it still runs",
	} {
		t.Run(testName(f), func(t *testing.T) {
			t.Parallel()

			s, err := newSuite(toyOptions(f), cases())
			require.NoError(t, err)

			// Only a provider that ends at an error minds this one.
			_, found := s.attempt(t, s.cases[0], trouble{arm: func(e *env) { e.ledger.LoseReply(1) }})
			require.NotNil(t, found)
			require.Contains(t, found.got, want)
		})
	}
}

func testName(f flaw) string { return strings.ReplaceAll("provider "+string(f), " ", "-") }

func TestFailureTellsAllThatIsNeeded(t *testing.T) {
	f := &failure{
		rule: "A rule.", want: "1 machine", got: "2 machines\na, b", history: "00:00 create a\n00:01 create b\n",
		again: again("TestConformance/crash/after-each-cloud-call/call-3-reply-lost"),
	}

	require.Equal(t, `A rule.
want:    1 machine
got:     2 machines
         a, b
history: 00:00 create a
         00:01 create b
again:   go test -run '^TestConformance$/^crash$/^after-each-cloud-call$/^call-3-reply-lost$' github.com/omni-infra/omni-infra-providers/conformance`, f.String())
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	good := toyOptions(none)

	for name, tt := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"no provider":          {func(o *Options) { o.Provider = "" }, "Options.Provider"},
		"no subject":           {func(o *Options) { o.New = nil }, "Options.New"},
		"unknown feature":      {func(o *Options) { o.Claims = []Feature{"flies"} }, `"flies" does not exist`},
		"unknown case":         {func(o *Options) { o.Waive = map[string]string{"no/case": "why"} }, `"no/case" does not exist`},
		"waiver for no reason": {func(o *Options) { o.Waive = map[string]string{"provision": " "} }, "gives no reason"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := good
			tt.change(&bad)

			_, err := newSuite(bad, cases())
			require.ErrorContains(t, err, tt.want)
		})
	}
}

func TestWaivedCaseHasToFail(t *testing.T) {
	opts := toyOptions(none)
	opts.Waive = map[string]string{"provision": "no machines yet"}

	s, err := newSuite(opts, cases())
	require.NoError(t, err)

	v, text := s.judge(s.cases[0], nil)
	require.Equal(t, failed, v)
	require.Contains(t, text, "take its waiver away")

	v, text = s.judge(s.cases[0], &failure{rule: "A rule."})
	require.Equal(t, waived, v)
	require.Contains(t, text, "no machines yet")
}

func TestIDsAndNamesOfCasesAreUnique(t *testing.T) {
	seen := map[string]bool{}

	for _, c := range cases() {
		require.Regexp(t, `^[A-Z]{2}-\d\d$`, c.id)
		require.Regexp(t, `^[a-z0-9-]+(/[a-z0-9-]+)*$`, c.name)
		require.True(t, strings.HasSuffix(c.rule, "."), "%s: the rule is a sentence", c.id)
		require.False(t, seen[c.id] || seen[c.name], "%s %s", c.id, c.name)

		seen[c.id], seen[c.name] = true, true
	}
}

func TestHistoryThatFailsIsExplained(t *testing.T) {
	s, err := newSuite(toyOptions(trustsItsMemory), nil)
	require.NoError(t, err)

	h, err := parseHistory("5s fault reply-lost 4; 0s create r-1; 25s create r-2; 30s pass; 0s kill 5s; 1m remove r-2")
	require.NoError(t, err)

	f := s.tryHistory(t, h)
	require.NotNil(t, f)
	require.Equal(t, ruleOne, f.rule)

	text := s.explain(t, 7, h, f)
	require.Contains(t, text, "the history of seed 7 breaks a rule")
	require.Contains(t, text, "keep:    {id: \"HI-NN\"")
	require.Regexp(t, `shrunk:  [05]s fault reply-lost 4; 0s create r-1; \S+ \S+( \S+)?\n`, text)
	require.Contains(t, text, "again:   go test -run '^TestHistoryThatFailsIsExplained$' github.com/omni-infra/omni-infra-providers/conformance -history '")
}
