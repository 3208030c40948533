// Package report is how a run of the conformance suite is told: as text, JSON, JUnit XML or an HTML page. The suite, its program
// and whoever reads committed reports import it.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Version is the version of the JSON form. It changes when a reader of an older one would be misled.
const Version = 1

// Verdict is how a case ended.
type Verdict string

// The verdicts.
const (
	Pass Verdict = "pass"
	Fail Verdict = "fail"
	// Waived cases fail, are known to, and the provider's author says why.
	Waived Verdict = "waived"
	// Unclaimed cases are of a feature that the provider does not claim to have.
	Unclaimed Verdict = "unclaimed"
	// Unseen cases need to see or do something that is not possible where the suite was run.
	Unseen Verdict = "unseen"
	// Broken cases could not be judged, as the suite or what it depends on failed.
	Broken Verdict = "error"
)

// Verdicts are all of them, in the order in which they are listed.
var Verdicts = []Verdict{Pass, Fail, Broken, Waived, Unclaimed, Unseen}

// Report is the result of one run.
type Report struct {
	// Version is that of the form.
	Version int `json:"version"`
	// Provider is the provider's name.
	Provider string `json:"provider"`
	// Where says in words where the suite was run.
	Where string `json:"where"`
	// Claims are the features that the provider says it has.
	Claims []string `json:"claims"`
	// Cases are all cases of the suite, in its order.
	Cases []Case `json:"cases"`
}

// Case is how one case ended.
type Case struct {
	// ID never means another case. Name is a path in kebab case whose first part is the theme.
	ID   string `json:"id"`
	Name string `json:"name"`
	// Rule says what is right.
	Rule string `json:"rule"`
	// Features are those without which the case makes no sense, and Means what it has to see and to do.
	Features []string `json:"features,omitempty"`
	Means    []string `json:"means,omitempty"`
	Verdict  Verdict  `json:"verdict"`
	// Reason is why the case was not run or is waived, or what broke.
	Reason string `json:"reason,omitempty"`
	// Points says of a case that is repeated at many points at how many of them it was, where those were not all.
	Points string `json:"points,omitempty"`
	// Failure is what was seen of a case that failed or is waived.
	Failure *Failure `json:"failure,omitempty"`
	// Seconds is how long the case took.
	Seconds float64 `json:"seconds,omitempty"`
}

// Failure is a broken rule.
type Failure struct {
	// Want is what should have been there, Got what was there instead.
	Want string `json:"want"`
	Got  string `json:"got"`
	// History has what happened, one thing a line, each with its time on the run's clock.
	History []string `json:"history,omitempty"`
	// Again is the command that runs the case once more.
	Again string `json:"again,omitempty"`
}

// String returns the failure as a developer reads it below the rule.
func (f *Failure) String() string {
	var b strings.Builder

	fmt.Fprintf(&b, "want:    %s\n", indent(f.Want))
	fmt.Fprintf(&b, "got:     %s\n", indent(f.Got))
	fmt.Fprintf(&b, "history: %s\n", indent(strings.Join(Abridge(f.History), "\n")))
	fmt.Fprintf(&b, "again:   %s", f.Again)

	return b.String()
}

func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n         ") }

// Abridge keeps the beginning and the end of a long history.
func Abridge(history []string) []string {
	const first, last = 50, 70

	left := len(history) - first - last
	if left <= 0 {
		return history
	}

	middle := fmt.Sprintf("... %d lines ...", left)

	return slices.Concat(history[:first], []string{middle}, history[len(history)-last:])
}

// Theme is the first part of the case's name.
func (c Case) Theme() string {
	theme, _, _ := strings.Cut(c.Name, "/")

	return theme
}

// OK reports whether no case failed or broke.
func (r Report) OK() bool { return r.Count(Fail)+r.Count(Broken) == 0 }

// Count returns how many cases ended with the verdict.
func (r Report) Count(v Verdict) (n int) {
	for _, c := range r.Cases {
		if c.Verdict == v {
			n++
		}
	}

	return n
}

// Summary counts the verdicts in a line.
func (r Report) Summary() string {
	words := map[Verdict]string{
		Pass: "passed", Fail: "failed", Broken: "could not be judged", Waived: "waived", Unclaimed: "unclaimed", Unseen: "not visible here",
	}

	var parts []string

	for _, v := range Verdicts {
		if n := r.Count(v); n > 0 || v == Pass || v == Fail {
			parts = append(parts, fmt.Sprintf("%d %s", n, words[v]))
		}
	}

	return strings.Join(parts, ", ")
}

// Stable returns the report without what differs from one run to the next: times, histories and commands.
func (r Report) Stable() Report {
	r.Cases = slices.Clone(r.Cases)

	for i := range r.Cases {
		r.Cases[i].Seconds, r.Cases[i].Failure = 0, nil
	}

	return r
}

// WriteJSON writes the report as JSON, which Read reads.
func (r Report) WriteJSON(w io.Writer) error {
	r.Version = Version
	if r.Claims == nil {
		r.Claims = []string{}
	}

	if r.Cases == nil {
		r.Cases = []Case{}
	}

	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")

	return encoder.Encode(r)
}

// Read reads a report in its JSON form.
func Read(from io.Reader) (r Report, err error) {
	data, err := io.ReadAll(from)
	if err != nil {
		return r, fmt.Errorf("read report: %w", err)
	}

	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("read report: %w", err)
	}

	switch {
	case r.Version != Version:
		return r, fmt.Errorf("read report: version is %d, want %d", r.Version, Version)
	case r.Provider == "":
		return r, errors.New("read report: provider is missing")
	}

	seen := map[string]bool{}

	for i, c := range r.Cases {
		switch {
		case c.ID == "" || c.Name == "":
			return r, fmt.Errorf("read report: case %d has no id or no name", i+1)
		case seen[c.ID]:
			return r, fmt.Errorf("read report: case %q is there twice", c.ID)
		case !slices.Contains(Verdicts, c.Verdict):
			return r, fmt.Errorf("read report: case %q has verdict %q, want one of %v", c.ID, c.Verdict, Verdicts)
		}

		seen[c.ID] = true
	}

	return r, nil
}

// Formats are the forms in which Write writes a report.
var Formats = []string{"text", "json", "junit", "html"}

// Write writes the report in one of Formats.
func (r Report) Write(w io.Writer, format string) error {
	write, ok := map[string]func(io.Writer) error{
		"text": r.WriteText, "json": r.WriteJSON, "junit": r.WriteJUnit, "html": r.WriteHTML,
	}[format]
	if !ok {
		return fmt.Errorf("report format %q: want one of %s", format, strings.Join(Formats, ", "))
	}

	return write(w)
}
