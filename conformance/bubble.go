package conformance

import (
	"fmt"
	"testing"
	"testing/synctest"
)

// inBubble runs f on a fake clock of its own. What f starts may block for ever, or go on when f has returned; that is said in the
// text returned, empty when all ended, and ends nothing else.
func inBubble(t *testing.T, f func(t *testing.T)) (stuck string) {
	t.Helper()

	defer func() {
		if p := recover(); p != nil {
			stuck = fmt.Sprint(p)
		}
	}()

	synctest.Test(t, f)

	return ""
}
