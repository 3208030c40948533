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
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	"github.com/omni-infra/omni-infra-providers/sim/factory"
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
	Where: "on a Kubernetes API server", Parallel: 24, Points: 4, Patience: 2 * time.Minute, Hang: 8 * time.Second, Looks: 20 * time.Second,
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
	callTimeout = 5 * time.Second
	leaseTime   = 3 * time.Second
)

func newSubject(t *testing.T, w *conformance.World) conformance.Subject {
	t.Helper()

	c := newCloud(t, w)

	return conformance.Subject{
		Cloud: c, Faults: controlplane.Faults, CreateOp: "create virtualmachines", Data: data,
		Run: c.run("v1.0.0"), Next: c.run("v1.1.0"), Secrets: map[string]string{"service account token": c.account.BearerToken},
	}
}

// run runs the provider as its program does, with its calls in the books.
func (c *cloud) run(version string) func(context.Context, conformance.Process) error {
	return func(ctx context.Context, p conformance.Process) error {
		images, err := bootasset.New(bootasset.Config{
			Schematics: bootasset.OmniSchematics{Management: p.Client.Management()},
			HTTP:       &http.Client{Transport: factory.Transport{Handler: http.HandlerFunc(serveImage)}},
		})
		if err != nil {
			return err
		}

		session := c.books.Session()

		account := *c.account
		account.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return &controlplane.Transport{Next: next, Session: session, Ledger: c.books}
		})

		d, err := provider.New(provider.Config{
			Cluster:  cluster.Config{Rest: &account, CallTimeout: callTimeout},
			Operator: machine.Operator{Namespaces: []string{c.namespace}}, Version: version, Logger: p.Logger,
		})
		if err != nil {
			return err
		}
		defer d.Close()

		engine, err := lifecycle.New(lifecycle.Config{
			ID: p.ProviderID, Name: "kubevirt " + version, Driver: d, Schema: machine.Schema(), Images: images, Logger: p.Logger,
			CallTimeout: 2 * callTimeout, LeaseDuration: leaseTime, PollInterval: 5 * time.Second, HeartbeatInterval: 5 * time.Second,
		})
		if err != nil {
			return err
		}

		return engine.Run(ctx, p.State)
	}
}
