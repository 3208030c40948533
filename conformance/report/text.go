package report

import (
	"fmt"
	"io"
	"strings"
)

// WriteText writes the report as a person reads it on a terminal.
func (r Report) WriteText(w io.Writer) error {
	r = r.printable()

	var b strings.Builder

	width := 0
	for _, c := range r.Cases {
		width = max(width, len(c.Name))
	}

	for _, c := range r.Cases {
		line := fmt.Sprintf("%-9s %s  %-*s", c.Verdict, c.ID, width, c.Name)
		if c.Seconds > 0 {
			line += fmt.Sprintf(" %5.1f s", c.Seconds)
		}

		if c.Reason != "" {
			line += "  " + c.Reason
		}

		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}

	for _, c := range r.Cases {
		if c.Failure != nil && c.Verdict != Waived {
			fmt.Fprintf(&b, "\n%s %s: %s\n%s\n", c.ID, c.Name, c.Rule, c.Failure)
		}
	}

	fmt.Fprintf(&b, "\nconformance of provider %s, %s: %s\n", r.Provider, r.Where, r.Summary())

	_, err := io.WriteString(w, b.String())

	return err
}

func detail(c Case) string {
	if c.Failure == nil {
		return ""
	}

	return c.Failure.String()
}
