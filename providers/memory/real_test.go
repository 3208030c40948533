package memory_test

import (
	"regexp"
	"testing"
	"time"

	"github.com/omni-infra/omni-infra-providers/conformance"
)

// TestSuiteInRealTime shows that the suite's way of playing on real backends works, here on a backend that is none.
func TestSuiteInRealTime(t *testing.T) {
	conformance.RunReal(t, options(nil, 2*time.Second), conformance.Real{
		Where: "in memory", Parallel: 4, Calm: time.Second, Points: 2,
		Only: regexp.MustCompile(`^(LC-01|LC-03|DP-02|DT-02|NB-01|CR-01|CR-02|FA-01|CA-01)$`),
	})
}
