package conformance

import (
	"cmp"
	"fmt"
	"github.com/omni-infra/omni-infra-providers/conformance/report"
	"runtime/debug"
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
func (f *failure) String() string { return f.rule + "\n" + f.report().String() }

func (f *failure) report() *report.Failure {
	history := strings.Split(strings.TrimSpace(f.history), "\n")

	return &report.Failure{Want: f.want, Got: f.got, History: history, Again: f.again}
}

// again returns the command for the test of that name, to be run from anywhere in its module or workspace.
func again(test string) string {
	parts := strings.Split(test, "/")
	for i := range parts {
		parts[i] = "^" + parts[i] + "$"
	}

	tested := "."
	if info, ok := debug.ReadBuildInfo(); ok {
		tested = cmp.Or(strings.TrimSuffix(info.Path, ".test"), tested)
	}

	return fmt.Sprintf("go test -run '%s' %s", strings.Join(parts, "/"), tested)
}
