//go:build !real

package kubevirt_test

import (
	"context"
	"flag"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/deploy"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	sim "github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/cdi"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

// TestConformance is on a cluster that takes its time, and gives the provider the rights of its manifest and no other.
func TestConformance(t *testing.T) { conformance.Run(t, options()) }

// A history costs seconds of processor time here: few are played unless more are asked for.
var histories = conformance.HistoryOptions{Seeds: 15}

func init() { histories.Flags(flag.CommandLine) }

// TestRandomHistories takes the flags -seeds, -first-seed, -steps and -history.
func TestRandomHistories(t *testing.T) { conformance.Histories(t, options(), histories) }

func options() conformance.Options {
	return conformance.Options{
		Provider: "kubevirt",
		Claims:   claims,
		New: func(t *testing.T, w *conformance.World) conformance.Subject {
			s := newSite(t, w)

			return conformance.Subject{
				Cloud: s, Data: data, CreateOp: "create virtualmachines", Faults: apiserver.Faults,
				Secrets: map[string]string{"service account token": sim.Token}, Run: s.run("v1.0.0"), Next: s.run("v1.1.0"),
			}
		},
	}
}

// site is a simulated cluster.
type site struct {
	*sim.Cluster
}

func newSite(t *testing.T, w *conformance.World) *site {
	t.Helper()

	c, err := sim.New(sim.Options{
		ControllerOptions: sim.ControllerOptions{
			Namespaces: []string{deploy.Namespace},
			Virt: virt.Options{
				Times: virt.Times{Pull: time.Second, Start: 2 * time.Second, Shutdown: 2 * time.Second},
				Boot:  booter(t, w), Unbootable: unbootable(t),
			},
			CDI: cdi.Options{Times: cdi.Times{Import: 20 * time.Second, Clone: 3 * time.Second}},
		},
		Latency:        func(string) time.Duration { return 5 * time.Millisecond },
		NamespaceRules: map[string][]rbacv1.PolicyRule{deploy.Namespace: rights(t)},
		Enter: func(o ledger.Object, object *unstructured.Unstructured) ledger.Object {
			// Images are there for all machines.
			if object.GetLabels()["omni-infra.dev/image"] != "" {
				o.Kind, o.Keep = "image-"+o.Kind, true
			}

			return o
		},
	})
	require.NoError(t, err)
	t.Cleanup(c.Close)

	return &site{c}
}

// rights are those that the manifest grants in a namespace of machines.
func rights(t *testing.T) (rules []rbacv1.PolicyRule) {
	t.Helper()

	for document := range strings.SplitSeq(string(deploy.RBAC), "\n---\n") {
		var role rbacv1.Role

		require.NoError(t, yaml.Unmarshal([]byte(document), &role))
		rules = append(rules, role.Rules...)
	}

	require.NotEmpty(t, rules)

	return rules
}

// AddForeign makes an object that belongs to somebody else, and waits until it is there for all to see. An image of theirs is an object
// like any other.
func (s *site) AddForeign(kind, name string) (id string, err error) {
	if id, err = s.Cluster.AddForeign(strings.TrimPrefix(kind, "image-"), name); err == nil && kind == "vm" {
		s.await(func() bool { return s.has(id) })
	}

	return id, err
}

// DeleteMachine deletes a machine and waits for its end, as `kubectl delete` does.
func (s *site) DeleteMachine(id string) error {
	err := s.Cluster.DeleteMachine(id)
	if err == nil {
		s.await(func() bool { return !s.has(id) })
	}

	return err
}

// SwitchOff stops a machine and waits until it is off.
func (s *site) SwitchOff(id string) error {
	err := s.Cluster.SwitchOff(id)
	if err == nil {
		s.await(func() bool {
			return !slices.ContainsFunc(s.Machines(), func(m ledger.Machine) bool { return m.ID == id && m.On })
		})
	}

	return err
}

func (s *site) has(id string) bool {
	return slices.ContainsFunc(s.Machines(), func(m ledger.Machine) bool { return m.ID == id })
}

// await waits a minute at the most. Who waits in vain sees what there is.
func (*site) await(done func() bool) {
	for range 600 {
		if done() {
			return
		}

		time.Sleep(100 * time.Millisecond)
	}
}

// run runs the provider with its calls in the books.
func (s *site) run(version string) func(context.Context, conformance.Process) error {
	return func(ctx context.Context, p conformance.Process) error {
		return runProvider(ctx, p, version, deploy.Namespace, cluster.Config{Rest: s.RESTConfig(s.Ledger().Session())}, lifecycle.Config{})
	}
}
