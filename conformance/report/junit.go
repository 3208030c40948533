package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
	"unicode"
)

type junitSuites struct {
	XMLName xml.Name   `xml:"testsuites"`
	Suite   junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Time     string      `xml:"time,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string     `xml:"classname,attr"`
	Name    string     `xml:"name,attr"`
	Time    string     `xml:"time,attr"`
	Failure *junitNote `xml:"failure"`
	Error   *junitNote `xml:"error"`
	Skipped *junitNote `xml:"skipped"`
}

type junitNote struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// WriteJUnit writes the report as JUnit XML, in the form that CI systems read: a waived, unclaimed or unseen case is skipped.
func (r Report) WriteJUnit(w io.Writer) error {
	suite := junitSuite{
		Name: "conformance of provider " + printable(r.Provider), Tests: len(r.Cases),
		Failures: r.Count(Fail), Errors: r.Count(Broken), Skipped: len(r.Cases) - r.Count(Fail) - r.Count(Broken) - r.Count(Pass),
	}

	var total float64

	for _, c := range r.Cases {
		total += c.Seconds
		suite.Cases = append(suite.Cases, junit(r.Provider, c))
	}

	suite.Time = seconds(total)

	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}

	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")

	if err := encoder.Encode(junitSuites{Suite: suite}); err != nil {
		return err
	}

	_, err := io.WriteString(w, "\n")

	return err
}

func junit(provider string, c Case) junitCase {
	test := junitCase{Class: printable(provider + "." + c.Theme()), Name: printable(c.ID + " " + c.Name), Time: seconds(c.Seconds)}
	note := &junitNote{Message: printable(string(c.Verdict) + ": " + c.Reason)}

	if c.Verdict == Fail || c.Verdict == Broken {
		note = &junitNote{Message: printable(c.Rule), Text: printable(strings.TrimSpace(c.Reason + "\n" + detail(c)))}
	}

	switch c.Verdict {
	case Pass:
	case Fail:
		test.Failure = note
	case Broken:
		test.Error = note
	case Waived, Unclaimed, Unseen:
		test.Skipped = note
	}

	return test
}

func seconds(s float64) string { return fmt.Sprintf("%.3f", s) }

// printable replaces what XML cannot hold, and what a terminal would obey.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' || r == 0xFFFE || r == 0xFFFF {
			return '\uFFFD'
		}

		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}
