package memory_test

import (
	"context"
	"testing"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/providers/memory/internal/official"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

// leftToUsers are the cases that the provider fails, with the reason, which is the library's each time.
var leftToUsers = map[string]string{
	"deprovision/before-any-call":            "Run ends with an error when it is told to end early",
	"start":                                  "Run ends with an error when it is told to end early",
	"class-data/unknown-field":               "UnmarshalProviderData ignores fields that do not exist",
	"class-data/nearest-field":               "UnmarshalProviderData ignores fields that do not exist",
	"class-data/corrected":                   "UnmarshalProviderData ignores fields that do not exist",
	"class-data/wrong-type":                  "UnmarshalProviderData names the line, not the field",
	"ownership/two-providers":                "the type of the provider's state holds its id, and is fixed when the program is built",
	"ownership/same-request-id":              "the type of the provider's state holds its id, and is fixed when the program is built",
	"deprovision/record-gone":                "the request is held for ever when its state is gone",
	"replace/while-provisioning":             "a step that fails is tried again, never those before it",
	"upgrade/unreadable-record":              "the request is held for ever when its state cannot be read",
	"idempotency/ten-replies-of-omni-lost":   "the process ends at the first error of the write that begins it",
	"upgrade/provisioned-by-another-library": "Run ends with an error when it is told to end early",
	"idempotency/lost-replies-of-omni":       "the process ends at the first error of the write that begins it",
	"crash/after-each-write-to-omni":         "the request is held for ever after a crash between the removal of its state and of its finalizer",
	"faults/each-call/throttled":             "it knows no time to wait that the cloud asks for",
	"capacity/rate-limit-holds-for-all":      "it knows no time to wait that the cloud asks for",
	"omni/each-write/unavailable":            "the process ends at the first error of the write that begins it",
	"omni/each-write/conflict":               "the process ends at the first error of the write that begins it",
	"omni/each-write/internal":               "the process ends at the first error of the write that begins it",
	"omni/each-write/reply-lost":             "the process ends at the first error of the write that begins it",
	"omni/each-write/hang":                   "writes to Omni have no deadline",
	"omni/partition-at-each-call":            "the process ends when a watch is cut off",
	"omni/all-watches-cut":                   "the process ends when a watch is cut off",
	"omni/burst-while-nobody-watches":        "the process ends when a watch is cut off",
	"status/error-stays":                     "errors of steps fail the request, and go at each try",
	"health/cloud-hangs":                     "the health check has no deadline, and no heartbeat comes meanwhile",
	"shutdown/during-each-cloud-call":        "its own end is logged as an error",
	"shutdown/while-any-call-hangs":          "its own end is logged as an error",
	"shutdown/during-each-write-to-omni":     "Run ends with an error when it is told to end early",
	"secrets/echoed-by-the-cloud":            "errors of steps are shown and logged as they are",
	"factory/hangs":                          "calls to the image factory have no deadline",
}

// unsteady are cases that it fails at times.
var unsteady = map[string]string{
	"omni/restart-at-each-call":   "the process ends when a watch is cut off, if no call of it has met the end of the connection before",
	"omni/partition-at-each-call": "the process ends when a watch is cut off, if no call of it has met the end of the connection before",
}

// TestOfficialLibrary runs the suite on a provider that stands on the official library. What it is known to fail is waived with
// the reason, and has to fail.
func TestOfficialLibrary(t *testing.T) {
	conformance.Run(t, conformance.Options{
		Provider: official.ProviderID,
		Claims:   []conformance.Feature{conformance.DerivedUUID},
		Waive:    leftToUsers,
		Unsteady: unsteady,
		New: func(t *testing.T, w *conformance.World) conformance.Subject {
			c := cloud.New(cloud.Options{Boot: func(ctx context.Context, vm cloud.VM) {
				w.Boot(ctx, conformance.Guest{UUID: vm.UUID, UserData: vm.UserData})
			}})
			t.Cleanup(c.Close)

			return conformance.Subject{
				Cloud: c, Data: "{cores: 2}", Faults: faults, CreateOp: string(cloud.OpCreateVM),
				Run: func(ctx context.Context, p conformance.Process) error {
					return official.Run(ctx, p.Client, p.State, c.Client(), p.Logger)
				},
			}
		},
	})
}
