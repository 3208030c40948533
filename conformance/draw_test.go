package conformance

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPointsAreDrawnOverTheWholeCourse(t *testing.T) {
	var all []trouble
	for n := range 10 {
		all = append(all, trouble{name: fmt.Sprintf("call-%d", n)})
	}

	drawn, of := draw(testCase{id: "XX-01"}, all, 3, 0)
	again, _ := draw(testCase{id: "XX-01"}, all, 3, 0)

	require.Equal(t, " of 10 points", of)
	require.Len(t, drawn, 3)

	for i, limits := range [][2]string{{"call-0", "call-2"}, {"call-3", "call-5"}, {"call-6", "call-9"}} {
		require.GreaterOrEqual(t, drawn[i].name, limits[0])
		require.LessOrEqual(t, drawn[i].name, limits[1])
		require.Equal(t, drawn[i].name, again[i].name)
	}

	few, of := draw(testCase{}, all[:3], 3, 0)
	require.Len(t, few, 3)
	require.Empty(t, of)
}

func TestFewPointsAreEnoughToPlayButNotForAReport(t *testing.T) {
	s, err := newSuite(toyOptions(none), []testCase{find(t, "crash/after-each-cloud-call")})
	require.NoError(t, err)

	s.points = 2
	require.Nil(t, s.execute(t, s.cases[0]))

	o := s.of(s.cases[0])
	require.Regexp(t, "^2 points of ", o.points)

	o.verdict = passed
	require.ErrorContains(t, s.save(filepath.Join(t.TempDir(), "report.json"), "in a simulation", "toy"), "a report has all")
}
