package conformance

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func toyOptions(f flaw) Options {
	return Options{
		Provider: "toy",
		Claims:   []Feature{DerivedUUID},
		New: func(t *testing.T, w *World) Subject {
			c := newToyCloud(w.Boot)
			t.Cleanup(c.close)

			return Subject{Cloud: c, Data: `{"cores": 2}`, Run: func(ctx context.Context, p Process) error { return runToy(ctx, f, c, p) }}
		},
	}
}

// TestSuiteFindsWhatIsWrong runs the suite on providers that each break one rule. Each has to fail the cases of that rule, and no
// others. To save time the others are run without the troubles that befall the right provider.
func TestSuiteFindsWhatIsWrong(t *testing.T) {
	for f, want := range map[flaw][]string{
		none:                 nil,
		adoptsByName:         {"ownership/foreign-objects-untouched"},
		trustsItsMemory:      {"crash/after-each-cloud-call", "crash/after-each-write-to-omni"},
		ignoresUnknownFields: {"class-data/unknown-field"},
		hurriesRemoval:       {"deprovision/omni-holds-the-machine"},
		startsAgain:          {"idempotency/restarts", "ownership/two-providers"},
		tellsUUIDLate:        {"provision/uuid-before-join"},
		takesSilenceForGone:  {"faults/out-of-reach-while-removing"},
		takesNeighbours:      {"ownership/two-providers"},
	} {
		t.Run(testName(f), func(t *testing.T) {
			t.Parallel()

			s, err := newSuite(toyOptions(f), cases())
			require.NoError(t, err)

			for _, c := range s.cases {
				if len(c.needs) > 0 && c.needs[0] != DerivedUUID {
					continue
				}

				expected := slices.Contains(want, c.name)
				if f != none && !expected {
					c.troubles = nil
				}

				t.Run(c.name, func(t *testing.T) {
					found := s.execute(t, c)

					switch {
					case expected:
						require.NotNil(t, found, "the suite does not see that the provider %s", f)
						t.Log(found)
					case found != nil:
						t.Errorf("%s", found)
					}
				})
			}
		})
	}
}

// TestEveryCaseLooksForWhatIsNeverRight runs one case on providers that break the rules which hold in all cases.
func TestEveryCaseLooksForWhatIsNeverRight(t *testing.T) {
	for f, want := range map[flaw]string{
		logsJoinToken:  `secret "join token" is in the provider's log`,
		forgetsMachine: "1 machines",
		givesUp:        "the provider has ended by itself",
		staysTooLong:   "it still runs",
	} {
		t.Run(testName(f), func(t *testing.T) {
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
again:   go test -run '^TestConformance$/^crash$/^after-each-cloud-call$/^call-3-reply-lost$' .`, f.String())
}

func TestLongHistoryIsAbridgedInTheMiddle(t *testing.T) {
	short := abridge(strings.Repeat("line\n", 1000))

	require.Equal(t, 121, len(strings.Split(short, "\n")))
	require.Contains(t, short, "... 880 lines ...")
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
