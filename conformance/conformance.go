// Package conformance is a test suite for infra providers of Omni, whoever wrote them. It knows a provider by what it does to
// Omni and to its cloud, both simulated, and by nothing else. A provider's own test runs it:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Options{
//			Provider: "example",
//			Claims:   []conformance.Feature{conformance.DerivedUUID},
//			New: func(t *testing.T, w *conformance.World) conformance.Subject { ... },
//		})
//	}
//
// Everything runs on a fake clock (testing/synctest), so no part of a subject may use sockets.
package conformance

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/client"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// Options describe the provider under test. Provider and New are required.
type Options struct {
	// Provider is the name in reports, and the provider's id in Omni: a DNS label.
	Provider string
	// Claims are the features that the provider says it has. Cases of features that are not claimed are not run.
	Claims []Feature
	// Waive has the names of cases that the provider is known to fail, with the reason. A waived case that passes is a failure:
	// its waiver has to go.
	Waive map[string]string
	// Unsteady has the names of cases that the provider fails at times, with the reason. They are waived however they end.
	Unsteady map[string]string
	// New makes a fresh cloud and says how to run the provider on it. It is called in the bubble of each run of a case; what has
	// to end with the run is given to t.Cleanup.
	New func(t *testing.T, w *World) Subject
}

// Subject is a provider with its cloud.
type Subject struct {
	// Cloud is the simulated cloud.
	Cloud Cloud
	// Data is class data of a good machine, a YAML or JSON mapping.
	Data string
	// Run runs the provider's process until ctx ends, and returns nil then. It is called again after a crash, and is to take
	// nothing over from the run before. Its connection to the cloud is a session of its own in the cloud's ledger.
	Run func(ctx context.Context, p Process) error
	// Next is what Run is for another release of the provider, one that an operator may upgrade to. It is nil if there is none.
	Next func(ctx context.Context, p Process) error

	// Faults are the kinds of faults, besides those that the ledger plays by itself, that the cloud answers calls with as its
	// real counterpart would. All are worth having; cases do with what there is.
	Faults []ledger.FaultKind
	// CreateOp is the ledger's name of the call that makes a machine. It is needed to tell how often the provider tries.
	CreateOp string
	// Secrets are values by their names that must not be seen anywhere: the cloud's credentials, those in Data.
	Secrets map[string]string
	// Outputs returns other texts that the provider shows, by their places, as its metrics. It may be nil.
	Outputs func() map[string]string
}

// Cloud is the simulated cloud, seen from its owner's side. Its methods may be called from several goroutines.
type Cloud interface {
	// Ledger has the cloud's calls and objects.
	Ledger() *ledger.Ledger
	// Machines returns all machines of the cloud.
	Machines() []ledger.Machine
	// DeleteMachine takes a machine away, as someone at the cloud's console would.
	DeleteMachine(id string) error
	// AddForeign makes an object that belongs to somebody else, of a kind that the ledger has named. Names that the cloud holds
	// unique may be refused with an error.
	AddForeign(kind, name string) (id string, err error)
}

// Process is what one process of the provider has.
type Process struct {
	// ProviderID is its id in Omni.
	ProviderID string
	// Key is its service account key. It is a secret.
	Key string
	// Client is the real client of Omni, connected to the simulated one with Key; the suite closes it. State is its state.
	Client *client.Client
	State  state.State
	// Logger takes the provider's log. The suite looks through it for secrets.
	Logger *zap.Logger
}

// Run runs all cases as subtests of t, as many at once as go test has been told to run in parallel, and reports how each one
// ended. With go test's flag -short a generated case is played at a few of its points, spread over its course; no report is written
// of that.
func Run(t *testing.T, opts Options) {
	t.Helper()

	s, err := newSuite(opts, cases())
	if err != nil {
		t.Fatalf("conformance suite: %v", err)
	}

	if testing.Short() {
		s.points = shortPoints
	}

	collectLess(t)
	t.Cleanup(func() {
		t.Log(s.summary())

		if err := s.save(os.Getenv(reportEnv), "in a simulation", s.opts.Provider); err != nil {
			t.Errorf("conformance suite: %v", err)
		}
	})

	for _, c := range s.cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s.report(t, c)
		})
	}
}

// reportEnv names the environment variable with the file, or the existing directory, that Run writes its report to as JSON. In a
// directory the file has the provider's name. The report is the same whenever and wherever the verdicts are.
const reportEnv = "CONFORMANCE_REPORT"

// save writes the report of a run of all cases to a file, or into a directory under that name.
func (s *suite) save(path, where, name string) error {
	r := s.result(where).Stable()

	switch info, err := os.Stat(path); {
	case path == "":
		return nil
	case s.real == nil && s.points > 0:
		return fmt.Errorf("$%s: -short leaves points out, and a report has all", reportEnv)
	case len(r.Cases) < len(s.cases):
		return fmt.Errorf("$%s: %d of %d cases were run, and a report has all", reportEnv, len(r.Cases), len(s.cases))
	case err == nil && info.IsDir():
		path = filepath.Join(path, name+".json")
	}

	var text bytes.Buffer

	if err := r.WriteJSON(&text); err != nil {
		return err
	}

	return os.WriteFile(path, text.Bytes(), 0o644) //nolint:gosec // for everybody to read
}
