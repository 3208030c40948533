//go:build real

package kubevirt_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/controlplane"
)

// TestMain ends the cluster that the tests share.
func TestMain(m *testing.M) {
	code := m.Run()

	if cluster := started.Load(); cluster != nil {
		if err := cluster.Close(); err != nil {
			fmt.Fprintln(os.Stderr, "end the cluster:", err)

			code = max(code, 1)
		}
	}

	os.Exit(code)
}

var how = conformance.Real{
	Where: "on a Kubernetes API server", Parallel: 24, Points: 4, Patience: 3 * time.Minute, Hang: 12 * time.Second, Looks: 20 * time.Second,
}

func init() {
	flag.IntVar(&how.Parallel, "cases", how.Parallel, "how many cases are played at once")
	flag.IntVar(&how.Points, "points", how.Points, "how many points of each generated case are played")
	flag.Uint64Var(&how.Seed, "seed", how.Seed, "which points are drawn")
	flag.DurationVar(&how.Patience, "patience", how.Patience, "how long anything is waited for")
}

// TestConformanceOnRealAPIServer plays the suite on kube-apiserver and etcd. Its rules for objects and rights are the real ones; the
// controllers of KubeVirt and its importer are simulated.
func TestConformanceOnRealAPIServer(t *testing.T) {
	conformance.RunReal(t, conformance.Options{Provider: "kubevirt", Claims: claims, New: newSubject}, how)
}

// The provider's patience, which fits that of the suite: a call that hangs, hangs longer.
const (
	callTimeout = 8 * time.Second
	leaseTime   = 5 * time.Second
)

func newSubject(t *testing.T, w *conformance.World) conformance.Subject {
	t.Helper()

	c := newCloud(t, w)

	return conformance.Subject{
		Cloud: c, Faults: controlplane.Faults, CreateOp: "create virtualmachines", Data: data,
		Run: c.run("v1.0.0"), Next: c.run("v1.1.0"), Secrets: map[string]string{"service account token": c.account.BearerToken},
	}
}

// run runs the provider with its calls in the books. It ends in error with the cluster.
func (c *cloud) run(version string) func(context.Context, conformance.Process) error {
	return func(asked context.Context, p conformance.Process) error {
		ctx, done := c.cluster.During(asked)
		defer done()

		session := c.books.Session()

		account := *c.account
		account.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return &controlplane.Transport{Next: next, Session: session, Ledger: c.books}
		})

		err := runProvider(ctx, p, version, c.namespace, cluster.Config{Rest: &account, CallTimeout: callTimeout}, lifecycle.Config{
			CallTimeout: 2 * callTimeout, LeaseDuration: leaseTime, PollInterval: 5 * time.Second, HeartbeatInterval: 5 * time.Second,
		})
		if err == nil && asked.Err() == nil {
			err = context.Cause(ctx)
		}

		return err
	}
}
