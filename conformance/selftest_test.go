package conformance

import (
	"context"
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

// TestSuiteFindsWhatIsWrong runs the suite on providers that each break one rule. Each has to fail the case of that rule, and no
// other.
func TestSuiteFindsWhatIsWrong(t *testing.T) {
	for f, want := range map[flaw]string{
		none:                 "",
		adoptsByName:         "ownership/foreign-objects-untouched",
		trustsItsMemory:      "crash/after-each-cloud-call",
		ignoresUnknownFields: "class-data/unknown-field",
		hurriesRemoval:       "deprovision/omni-holds-the-machine",
		startsAgain:          "idempotency/restarts",
		tellsUUIDLate:        "provision/uuid-before-join",
	} {
		t.Run(strings.ReplaceAll("provider "+string(f), " ", "-"), func(t *testing.T) {
			t.Parallel()

			s, err := newSuite(toyOptions(f), cases())
			require.NoError(t, err)

			for _, c := range s.cases {
				if len(c.needs) > 0 && c.needs[0] != DerivedUUID {
					continue
				}

				t.Run(c.name, func(t *testing.T) {
					found := s.execute(t, c)

					switch {
					case c.name == want:
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
