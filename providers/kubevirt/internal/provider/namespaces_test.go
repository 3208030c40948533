package provider_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
)

// second is a namespace beside the usual one. By its name it comes first.
const second = "machines"

// twins is a lab whose driver makes machines in two namespaces.
type twins struct{ *lab }

func newTwins(t *testing.T) *twins {
	t.Helper()

	role, clusterRole := granted(t)
	l := &twins{}
	l.lab = newLab(t, kubevirt.Options{
		ControllerOptions: kubevirt.ControllerOptions{Namespaces: []string{namespace, second}}, Enter: keepImages,
		Rules: clusterRole, NamespaceRules: map[string][]rbacv1.PolicyRule{namespace: role, second: role},
	}, l.tune)

	return l
}

func (*twins) tune(c *provider.Config) { c.Operator.Namespaces = []string{namespace, second} }

// in is class data with a namespace.
func in(namespace string) string {
	return fmt.Sprintf("{cores: 2, memory: 2048, disk_size: 10, namespace: %s}", namespace)
}

// forbid takes the rights to a resource in a namespace away.
func (l *twins) forbid(namespace, resource string) {
	l.t.Helper()

	role, clusterRole := granted(l.t)
	rules := map[string][]rbacv1.PolicyRule{}

	for _, of := range []string{"omni", second} {
		rules[of] = slices.Clone(role)
		if of == namespace {
			rules[of] = slices.DeleteFunc(rules[of], func(r rbacv1.PolicyRule) bool { return slices.Contains(r.Resources, resource) })
		}
	}

	l.Server().SetUser(apiserver.User{Name: kubevirt.User, Token: kubevirt.Token, Rules: clusterRole, NamespaceRules: rules})
}

// vms are the virtual machines of a request, by namespace.
func (l *twins) vms(request string) map[string]*kubevirtv1.VirtualMachine {
	l.t.Helper()

	found := map[string]*kubevirtv1.VirtualMachine{}

	for _, of := range []string{namespace, second} {
		all, err := l.admin().VirtualMachines().List(l.t.Context(), of, metav1.ListOptions{})
		require.NoError(l.t, err)

		for _, vm := range all {
			if machine.Owns(ref(request), vm) {
				found[of] = vm
			}
		}
	}

	return found
}

func TestMachineThatRunsIsNotMoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newTwins(t)
		require.NoError(t, l.provision(requestOf("r-1", in(namespace)), time.Hour).err)
		before := l.vms("r-1")

		for _, watched := range []bool{true, false} {
			if !watched {
				l.watch()
			}

			o := l.provision(requestOf("r-1", in(second)), time.Hour)
			require.Equal(t, driver.KindTerminal, driver.KindOf(o.err), "%v", o.said)
			require.ErrorContains(t, o.err, `namespace: the machine runs in namespace "omni" already, and cannot be moved to "machines"`)
		}

		after := l.vms("r-1")
		require.Len(t, after, 1)
		assert.Equal(t, before[namespace].UID, after[namespace].UID)

		m, err := l.driver.Find(t.Context(), ref("r-1"))
		require.NoError(t, err)
		assert.Equal(t, driver.PowerOn, m.Power)
	})
}

func TestMachineThatHasNotRunIsMadeWhereItsClassSaysNow(t *testing.T) {
	for _, watched := range []bool{true, false} {
		t.Run(fmt.Sprintf("watched-%t", watched), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newTwins(t)

				// It never gets its Secret.
				_, err := l.AddForeign("secret", machine.NamesOf(ref("r-1")).Secret)
				require.NoError(t, err)
				require.Error(t, l.provision(requestOf("r-1", in(namespace)), time.Minute).err)
				require.Contains(t, l.vms("r-1"), namespace)

				if !watched {
					l.watch()
				}

				var said []string

				for range 200 {
					err := l.attempt(t.Context(), requestOf("r-1", in(second)))
					require.LessOrEqual(t, len(l.vms("r-1")), 1, "%v", said)

					if err == nil {
						break
					}

					said = append(said, err.Error())

					time.Sleep(5 * time.Second)
				}

				assert.Contains(t, strings.Join(said, "\n"), "is made anew, as its class names another namespace")

				after := l.vms("r-1")
				require.Len(t, after, 1)
				require.Contains(t, after, second)
				assert.True(t, after[second].Status.Ready)

				m, err := l.driver.Find(t.Context(), ref("r-1"))
				require.NoError(t, err)
				assert.Equal(t, second+"/"+after[second].Name, m.ID)

				l.mustRemove("r-1")
				assert.Empty(t, l.left())
			})
		})
	}
}

func TestOldestOfTwoMachinesOfARequestIsItsMachineAndBothAreRemoved(t *testing.T) {
	for _, first := range []string{namespace, second} {
		t.Run(first, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				l := newTwins(t)
				other := map[string]string{namespace: second, second: namespace}[first]

				require.NoError(t, l.provision(requestOf("r-1", in(first)), time.Hour).err)
				time.Sleep(time.Minute)

				// As somebody makes it who restores a backup, into the wrong place.
				vm := l.vms("r-1")[first]
				again := copyOf(vm, vm.Name)
				again.Namespace = other
				_, err := l.admin().VirtualMachines().Create(t.Context(), again, "somebody")
				require.NoError(t, err)
				synctest.Wait()
				require.Len(t, l.vms("r-1"), 2)

				m, err := l.driver.Find(t.Context(), ref("r-1"))
				require.NoError(t, err)
				assert.Equal(t, first+"/"+vm.Name, m.ID)
				assert.Equal(t, driver.PowerOn, m.Power)

				list, err := l.driver.List(t.Context(), providerID)
				require.NoError(t, err)
				require.Len(t, list, 2, "both are seen")

				l.mustRemove("r-1")
				assert.Empty(t, l.vms("r-1"))
				assert.Empty(t, l.left())
			})
		})
	}
}

func TestRemovalIsNotDoneWhileANamespaceCannotBeSeen(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newTwins(t)
		require.NoError(t, l.provision(requestOf("r-1", in(second)), time.Hour).err)
		l.forbid(second, "virtualmachines")

		done, err := l.driver.Remove(t.Context(), ref("r-1"))
		require.False(t, done)
		require.ErrorContains(t, err, `lacks the right to list virtualmachines.kubevirt.io in namespace "machines"`)

		_, err = l.driver.Find(t.Context(), ref("r-1"))
		require.Error(t, err)
		require.False(t, driver.IsNotFound(err), "it may be there: %v", err)

		l.forbid("", "")
		l.mustRemove("r-1")
		assert.Empty(t, l.left())
	})
}

func TestCrashWhileAClassMovesLeavesOneMachine(t *testing.T) {
	var calls int

	bubble(t, func(t *testing.T) {
		l := newTwins(t)
		require.NoError(t, l.provision(requestOf("r-1", in(namespace)), time.Hour).err)

		calls = l.Ledger().Calls()
	})

	require.Greater(t, calls, 10)

	for _, lost := range []bool{false, true} {
		for n := 1; n <= calls; n++ {
			t.Run(fmt.Sprintf("%d-%t", n, lost), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					l := newTwins(t)

					l.Ledger().CrashAfter(n, lost, func() {})
					_ = l.provision(requestOf("r-1", in(namespace)), time.Minute)
					l.Ledger().CrashAfter(0, false, nil)
					l.restart(l.tune)

					o := l.provision(requestOf("r-1", in(second)), time.Hour)
					vms := l.vms("r-1")
					require.Len(t, vms, 1, "%v", o.said)

					if o.err == nil {
						require.Contains(t, vms, second)
					} else {
						require.ErrorContains(t, o.err, "cannot be moved")
						require.Contains(t, vms, namespace)
						require.NotEqual(t, kubevirtv1.RunStrategyHalted, *vms[namespace].Spec.RunStrategy)
					}

					l.mustRemove("r-1")
					require.Empty(t, l.left())
				})
			})
		}
	}
}
