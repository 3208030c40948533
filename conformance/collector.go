package conformance

import (
	"os"
	"runtime/debug"
	"testing"
)

// garbage is the percentage of garbage to live memory at which the collector runs. A world is small and is gone within
// milliseconds; at Go's default of 100 a third of all processor time goes into collecting.
const garbage = 400

// collectLess lets the garbage of the process grow until the test ends, unless its environment says how far.
func collectLess(t *testing.T) {
	t.Helper()

	if os.Getenv("GOGC") != "" {
		return
	}

	before := debug.SetGCPercent(garbage)
	t.Cleanup(func() { debug.SetGCPercent(before) })
}
