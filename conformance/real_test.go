package conformance

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRealTimeFindsWhatIsWrong plays cases on the wall's clock: the right provider passes, and those that break a rule are found.
func TestRealTimeFindsWhatIsWrong(t *testing.T) {
	for _, tt := range []struct {
		flaw flaw
		name string
	}{
		{none, "idempotency/restarts"},
		{startsAgain, "idempotency/restarts"},
		{tellsUUIDLate, "provision/uuid-before-join"},
	} {
		t.Run(testName(tt.flaw)+"/"+tt.name, func(t *testing.T) {
			t.Parallel()

			s, err := newSuite(toyOptions(tt.flaw), cases())
			require.NoError(t, err)

			s.real, s.points = &Real{Patience: time.Minute, Calm: 500 * time.Millisecond}, 2
			s.real.setDefaults()

			found := s.execute(t, find(t, tt.name))
			require.Equal(t, tt.flaw != none, found != nil, "%v", found)
		})
	}
}

func find(t *testing.T, name string) testCase {
	t.Helper()

	for _, c := range cases() {
		if c.name == name {
			return c
		}
	}

	t.Fatalf("there is no case %s", name)

	return testCase{}
}

func TestWhatAProviderMakesOfLooksIsWatchedForAsLongAsTheyTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		on := Real{}
		on.setDefaults()

		e := newEnv("toy")
		e.asked, e.pace = t.Context(), on.pace()

		watch := func() time.Duration {
			start := time.Now()
			e.throughout(calm, "nothing", func() (string, bool) { return "", true })

			return time.Since(start).Truncate(time.Second)
		}

		var blind time.Duration

		e.overLooks(func() { blind = watch() })
		require.Equal(t, on.Looks, blind)
		require.Equal(t, on.Calm, watch(), "as before")
	})
}
