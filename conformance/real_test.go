package conformance

import (
	"fmt"
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

			s.real = &Real{Patience: time.Minute, Calm: 500 * time.Millisecond, Points: 2}
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

func TestPointsAreDrawnOverTheWholeCourse(t *testing.T) {
	var all []trouble
	for n := range 10 {
		all = append(all, trouble{name: fmt.Sprintf("call-%d", n)})
	}

	on := Real{Points: 3}
	drawn, of := on.draw(testCase{id: "XX-01"}, all)
	again, _ := on.draw(testCase{id: "XX-01"}, all)

	require.Equal(t, " of 10 points", of)
	require.Len(t, drawn, 3)

	for i, limits := range [][2]string{{"call-0", "call-2"}, {"call-3", "call-5"}, {"call-6", "call-9"}} {
		require.GreaterOrEqual(t, drawn[i].name, limits[0])
		require.LessOrEqual(t, drawn[i].name, limits[1])
		require.Equal(t, drawn[i].name, again[i].name)
	}

	few, of := on.draw(testCase{}, all[:3])
	require.Len(t, few, 3)
	require.Empty(t, of)
}
