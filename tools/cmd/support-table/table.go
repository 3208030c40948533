package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/conformance/report"
)

const reportsDir = "conformance/reports"

// table is a table in a Markdown file, between two comments.
type table struct {
	name, file string
	rows       func([]report.Report) [][]string
}

var tables = []table{
	{name: "providers", file: "README.md", rows: byProvider},
	{name: "themes", file: "conformance/README.md", rows: byTheme},
	{name: "comparison", file: "conformance/docs/comparison.md", rows: byCase},
}

// The two libraries that are compared, by their providers. The second one is no provider of this repository, and is in no other table.
const (
	ours     = "memory"
	official = "official"
)

// readReports reads all reports of a directory, sorted by provider and place.
func readReports(dir string) ([]report.Report, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, err
	}

	var all []report.Report

	for _, file := range files {
		r, err := readReport(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}

		all = append(all, r)
	}

	slices.SortStableFunc(all, func(a, b report.Report) int {
		return cmp.Or(cmp.Compare(a.Provider, b.Provider), cmp.Compare(a.Where, b.Where))
	})

	return all, nil
}

// title is the provider's name, and where the suite was run if that was no simulation.
func title(r report.Report) string {
	if place, real := strings.CutPrefix(r.Where, "on "); real {
		return r.Provider + " on " + place
	}

	return r.Provider
}

// of returns the reports that a table is about.
func (t table) of(reports []report.Report) []report.Report {
	if t.name == "comparison" {
		return reports
	}

	return slices.DeleteFunc(slices.Clone(reports), func(r report.Report) bool { return r.Provider == official })
}

func readReport(file string) (report.Report, error) {
	f, err := os.Open(file)
	if err != nil {
		return report.Report{}, err
	}
	defer f.Close() //nolint:errcheck // it was read

	return report.Read(f)
}

// insert returns the text of a file with the table in its place.
func (t table) insert(text string, reports []report.Report) (string, error) {
	begin, end := fmt.Sprintf("<!-- support table %s: make report writes it -->\n", t.name), "<!-- end of table -->\n"

	head, rest, ok := strings.Cut(text, begin)
	if !ok {
		return "", fmt.Errorf("want a line %q where the table goes", strings.TrimSpace(begin))
	}

	_, tail, ok := strings.Cut(rest, end)
	if !ok {
		return "", fmt.Errorf("want a line %q behind the table %q", strings.TrimSpace(end), t.name)
	}

	return head + begin + markdown(t.rows(t.of(reports))) + end + tail, nil
}

// escape keeps a cell in its place.
var escape = strings.NewReplacer("|", `\|`, "\n", " ")

func markdown(rows [][]string) string {
	var b strings.Builder

	for i, row := range rows {
		var cells []string
		for _, cell := range row {
			cells = append(cells, escape.Replace(cell))
		}

		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))

		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}

	return b.String()
}

// byProvider has a row for each provider.
func byProvider(reports []report.Report) [][]string {
	rows := [][]string{{"provider", "conformance", "features"}}

	for _, r := range reports {
		rows = append(rows, []string{
			fmt.Sprintf("[%s](providers/%s)", title(r), r.Provider), score(r.Cases), strings.Join(r.Claims, ", "),
		})
	}

	return rows
}

// byTheme has a row for each theme and for each feature, and a column for each provider.
func byTheme(reports []report.Report) [][]string {
	head := []string{"theme"}
	for _, r := range reports {
		head = append(head, title(r))
	}

	rows := [][]string{head}

	var themes []string

	for _, c := range conformance.Cases() {
		if !slices.Contains(themes, c.Theme()) {
			themes = append(themes, c.Theme())
		}
	}

	for _, theme := range themes {
		row := []string{"`" + theme + "`"}

		for _, r := range reports {
			row = append(row, score(slices.DeleteFunc(slices.Clone(r.Cases), func(c report.Case) bool { return c.Theme() != theme })))
		}

		rows = append(rows, row)
	}

	for _, f := range conformance.Features() {
		row := []string{fmt.Sprintf("feature `%s`", f)}

		for _, r := range reports {
			claimed := "no"
			if slices.Contains(r.Claims, string(f)) {
				claimed = "yes"
			}

			row = append(row, claimed)
		}

		rows = append(rows, row)
	}

	return rows
}

// byCase has a row for each case that the provider on the official library is asked, or the reference provider.
func byCase(reports []report.Report) [][]string {
	rows := [][]string{{"case", "rule", "official library", "this library"}}

	verdicts := func(provider string) map[string]report.Case {
		all := map[string]report.Case{}

		for _, r := range reports {
			for _, c := range r.Cases {
				if r.Provider == provider {
					all[c.ID] = c
				}
			}
		}

		return all
	}

	theirs, own := verdicts(official), verdicts(ours)

	for _, c := range conformance.Cases() {
		rows = append(rows, []string{fmt.Sprintf("%s `%s`", c.ID, c.Name), c.Rule, outcome(theirs, c.ID), outcome(own, c.ID)})
	}

	return rows
}

// outcome says how a case ended. For a library a feature that is not claimed is one that it does not have.
func outcome(cases map[string]report.Case, id string) string {
	c, ok := cases[id]

	switch {
	case !ok:
		return "not run"
	case c.Verdict == report.Pass:
		return "yes"
	case c.Verdict == report.Unclaimed:
		return "–"
	default:
		return "**no**: " + c.Reason
	}
}

// score says how many of the cases that the provider has to pass it passes, and what became of the others.
func score(cases []report.Case) string {
	r := report.Report{Cases: cases}

	due := len(cases) - r.Count(report.Unclaimed)
	if due == 0 {
		return "–"
	}

	text := fmt.Sprintf("%d of %d", r.Count(report.Pass), due)

	for _, v := range []report.Verdict{report.Fail, report.Broken, report.Waived, report.Unseen} {
		if n := r.Count(v); n > 0 {
			text += fmt.Sprintf(", %d %s", n, v)
		}
	}

	return text
}
