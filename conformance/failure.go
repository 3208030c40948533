package conformance

import (
	"fmt"
	"strings"
)

// failure is a rule that was broken. Cases raise it with a panic, which the suite catches at the end of the run.
type failure struct {
	rule, want, got string
	// history is what happened in the cloud and to the provider, on the simulated clock.
	history string
	// again is the command that runs the case once more.
	again string
}

// String is what a developer reads.
func (f *failure) String() string {
	var b strings.Builder

	fmt.Fprintf(&b, "%s\n", f.rule)
	fmt.Fprintf(&b, "want:    %s\n", indent(f.want))
	fmt.Fprintf(&b, "got:     %s\n", indent(f.got))
	fmt.Fprintf(&b, "history: %s\n", indent(abridge(f.history)))
	fmt.Fprintf(&b, "again:   %s", f.again)

	return b.String()
}

// abridge keeps the beginning and the end of a long history.
func abridge(history string) string {
	const first, last = 50, 70

	lines := strings.Split(strings.TrimSpace(history), "\n")
	if left := len(lines) - first - last; left > 0 {
		lines = append(append(lines[:first:first], fmt.Sprintf("... %d lines ...", left)), lines[len(lines)-last:]...)
	}

	return strings.Join(lines, "\n")
}

func indent(text string) string { return strings.ReplaceAll(text, "\n", "\n         ") }

// again returns the command for the test of that name.
func again(test string) string {
	parts := strings.Split(test, "/")
	for i := range parts {
		parts[i] = "^" + parts[i] + "$"
	}

	return fmt.Sprintf("go test -run '%s' .", strings.Join(parts, "/"))
}
