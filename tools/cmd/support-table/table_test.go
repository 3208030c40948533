package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/conformance/report"
)

const root = "../../.."

func TestTablesAreThoseOfTheCommittedReports(t *testing.T) {
	reports, err := readReports(filepath.Join(root, reportsDir))
	require.NoError(t, err)
	require.NotEmpty(t, reports)

	for _, table := range tables {
		text, err := os.ReadFile(filepath.Join(root, table.file))
		require.NoError(t, err)

		want, err := table.insert(string(text), reports)
		require.NoError(t, err)
		assert.Equal(t, want, string(text), "%s is old: make report", table.file)
	}
}

func TestCommittedReportsHaveTheCasesOfTheSuite(t *testing.T) {
	reports, err := readReports(filepath.Join(root, reportsDir))
	require.NoError(t, err)

	for _, r := range reports {
		var got []report.Case

		for _, c := range r.Cases {
			c.Verdict, c.Reason, c.Points = "", "", ""
			got = append(got, c)
		}

		assert.Equal(t, conformance.Cases(), got, "the report of provider %s is old: make report", r.Provider)
	}
}

func TestTableShowsWhatDidNotPass(t *testing.T) {
	var cases []report.Case

	for _, v := range report.Verdicts {
		cases = append(cases, report.Case{Name: "power/x", Verdict: v})
	}

	reports := []report.Report{
		{Provider: "example", Where: "in a simulation", Claims: []string{"power", "reboot"}, Cases: cases},
		{Provider: "example", Where: "on a cloud", Claims: []string{"power"}, Cases: cases[:1]},
	}

	assert.Equal(t, [][]string{
		{"provider", "conformance", "features"},
		{"[example](providers/example)", "1 of 5, 1 fail, 1 error, 1 waived, 1 unseen", "power, reboot"},
		{"[example on a cloud](providers/example)", "1 of 1", "power"},
	}, byProvider(reports))

	rows := byTheme(reports)
	assert.Contains(t, rows, []string{"`power`", "1 of 5, 1 fail, 1 error, 1 waived, 1 unseen", "1 of 1"})
	assert.Contains(t, rows, []string{"`provision`", "–", "–"})
	assert.Contains(t, rows, []string{"feature `power`", "yes", "yes"})
	assert.Contains(t, rows, []string{"feature `replace`", "no", "no"})
}

func TestTableReplacesTheOneThatIsThere(t *testing.T) {
	one := table{name: "t", rows: func([]report.Report) [][]string { return [][]string{{"a", "b"}, {"1|\n", "2"}} }}

	const (
		begin = "before\n<!-- support table t: make report writes it -->\n"
		end   = "<!-- end of table -->\nafter\n"
	)

	text, err := one.insert(begin+"| old |\n"+end, nil)
	require.NoError(t, err)
	assert.Equal(t, begin+"| a | b |\n|---|---|\n| 1\\|  | 2 |\n"+end, text)

	_, err = one.insert("nothing", nil)
	require.ErrorContains(t, err, "where the table goes")
	_, err = one.insert(begin, nil)
	require.ErrorContains(t, err, `behind the table "t"`)
}
