package report

import (
	_ "embed"
	"html/template"
	"io"
	"slices"
	"strings"
)

//go:embed page.html.tmpl
var page string

// moment is one line of a history.
type moment struct{ At, What string }

// theme is the cases of one theme.
type theme struct {
	Name  string
	Cases []Case
}

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"timeline": timeline,
	"mark":     func(v Verdict) string { return marks[v] },
	"bad":      func(c Case) bool { return c.Verdict == Fail || c.Verdict == Broken },
	"wrong":    func(cases []Case) int { return Report{Cases: cases}.Count(Fail) + Report{Cases: cases}.Count(Broken) },
	"passed":   func(cases []Case) int { return Report{Cases: cases}.Count(Pass) },
}).Parse(page))

// marks tell verdicts apart without their colours.
var marks = map[Verdict]string{Pass: "✓", Fail: "✗", Broken: "!", Waived: "~", Unclaimed: "–", Unseen: "·"}

// WriteHTML writes the report as one page of HTML that needs nothing else and is also well-formed XML.
func (r Report) WriteHTML(w io.Writer) error {
	r = r.printable()

	var themes []theme

	for _, c := range r.Cases {
		i := slices.IndexFunc(themes, func(t theme) bool { return t.Name == c.Theme() })
		if i < 0 {
			i, themes = len(themes), append(themes, theme{Name: c.Theme()})
		}

		themes[i].Cases = append(themes[i].Cases, c)
	}

	var counts []struct {
		Verdict Verdict
		N       int
	}

	for _, v := range Verdicts {
		if n := r.Count(v); n > 0 {
			counts = append(counts, struct {
				Verdict Verdict
				N       int
			}{v, n})
		}
	}

	return pageTemplate.Execute(w, map[string]any{"Report": r, "Themes": themes, "Counts": counts, "OK": r.OK()})
}

// timeline takes the history's lines apart: the time, and what happened then. Lines that belong to the one before have no time.
func timeline(history []string) []moment {
	var all []moment

	for _, line := range history {
		at, what, ok := strings.Cut(line, " ")
		if !ok || strings.Count(at, ":") < 1 || strings.Trim(at, "0123456789:.") != "" {
			at, what = "", line
		}

		all = append(all, moment{At: at, What: what})
	}

	return all
}

// printable returns the report without characters that XML cannot hold, or that a terminal would obey.
func (r Report) printable() Report {
	r.Provider, r.Where = printable(r.Provider), printable(r.Where)
	r.Claims = slices.Clone(r.Claims)

	for i := range r.Claims {
		r.Claims[i] = printable(r.Claims[i])
	}

	r.Cases = slices.Clone(r.Cases)

	for i, c := range r.Cases {
		c.ID, c.Name, c.Rule, c.Reason = printable(c.ID), printable(c.Name), printable(c.Rule), printable(c.Reason)

		if c.Failure != nil {
			f := *c.Failure
			f.Want, f.Got, f.Again = printable(f.Want), printable(f.Got), printable(f.Again)
			f.History = slices.Clone(f.History)

			for j := range f.History {
				f.History[j] = printable(f.History[j])
			}

			c.Failure = &f
		}

		r.Cases[i] = c
	}

	return r
}
