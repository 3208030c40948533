package provider_test

import (
	"bytes"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/deploy"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/cdi"
)

// granted are the rights that the provider's manifest grants: in the namespaces of machines, and in the whole cluster.
func granted(t *testing.T) (role, clusterRole []rbacv1.PolicyRule) {
	t.Helper()

	for document := range bytes.SplitSeq(deploy.RBAC, []byte("---\n")) {
		var r struct {
			Kind  string              `json:"kind"`
			Rules []rbacv1.PolicyRule `json:"rules"`
		}

		require.NoError(t, yaml.Unmarshal(document, &r))

		switch r.Kind {
		case "Role":
			role = append(role, r.Rules...)
		case "ClusterRole":
			clusterRole = append(clusterRole, r.Rules...)
		}
	}

	require.NotEmpty(t, role)
	require.NotEmpty(t, clusterRole)

	return role, clusterRole
}

// rightsOf takes the rules apart: "get virtualmachines.kubevirt.io".
func rightsOf(rules []rbacv1.PolicyRule) []string {
	var all []string

	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all = append(all, rightOf(verb, group, resource))
				}
			}
		}
	}

	return all
}

func rightOf(verb, group, resource string) string {
	if group == "" {
		return verb + " " + resource
	}

	return verb + " " + resource + "." + group
}

// clerk notes which rights are used.
type clerk struct {
	next http.RoundTripper

	mu sync.Mutex
	// inNamespaces and inCluster are the rights by where they were used.
	inNamespaces, inCluster map[string]bool
	refused                 []string
}

// RoundTrip implements http.RoundTripper.
func (c *clerk) RoundTrip(r *http.Request) (*http.Response, error) {
	verb := map[string]string{"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}[r.Method]

	// /api/v1/... or /apis/group/version/..., then perhaps namespaces/name, and the resource, the name and the subresource.
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group, rest := "", parts[2:]

	if parts[0] == "apis" {
		group, rest = parts[1], parts[3:]
	}

	namespaced := rest[0] == "namespaces" && len(rest) > 2
	if namespaced {
		rest = rest[2:]
	}

	resource := rest[0]
	if len(rest) == 3 {
		resource += "/" + rest[2]
	}

	if verb == "get" && len(rest) == 1 {
		verb = "list"

		if r.URL.Query().Get("watch") != "" {
			verb = "watch"
		}
	}

	resp, err := c.next.RoundTrip(r)

	c.mu.Lock()
	defer c.mu.Unlock()

	right := rightOf(verb, group, resource)
	if namespaced {
		c.inNamespaces[right] = true
	} else {
		c.inCluster[right] = true
	}

	if err == nil && resp.StatusCode == http.StatusForbidden {
		c.refused = append(c.refused, right)
	}

	return resp, err
}

// TestEveryRightIsUsedAndNoOtherIs goes through all that the driver does. Whoever makes it do more says so here and in the manifest.
func TestEveryRightIsUsedAndNoOtherIs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		opts := kubevirt.Options{Enter: keepImages}
		opts.CDI.Times.Import, opts.CDI.CollectAfter, opts.Virt.Times.Start = 30*time.Second, time.Minute, 5*time.Second

		notes := &clerk{inNamespaces: map[string]bool{}, inCluster: map[string]bool{}}
		noted := func(c *provider.Config) {
			c.Cluster.Rest.Wrap(func(next http.RoundTripper) http.RoundTripper {
				notes.next = next

				return notes
			})
		}

		l := newLab(t, opts, noted)
		l.furnish()
		k := l.admin()

		provision := func(request, data string) {
			t.Helper()

			o := l.provision(requestOf(request, data), 3*time.Hour)
			require.NoError(t, o.err, "%v", o.said)
		}

		// An image whose DataVolume CDI collects is imported after some trouble, used again later, and swept.
		undo := l.CDI.Inject(cdi.Fault{Message: "no route to host"})
		require.Error(t, l.provision(requestOf("collected", classData), 3*time.Minute).err)
		undo()

		for _, v := range l.volumes(machine.LabelImage) {
			_, err := k.CDI.CdiV1beta1().DataVolumes(namespace).Patch(t.Context(), v.GetName(), types.MergePatchType,
				[]byte(`{"metadata":{"annotations":{"cdi.kubevirt.io/storage.deleteAfterCompletion":"true"}}}`), metav1.PatchOptions{})
			require.NoError(t, err)
		}

		provision("collected", classData)
		time.Sleep(2 * time.Hour)
		require.Empty(t, l.volumes(machine.LabelImage))
		provision("again", classData)

		// One whose DataVolume stays, and the other sources.
		const (
			kept      = "{cores: 2, memory: 2048, disk_size: 10, storage_class_name: standard}"
			container = "{cores: 2, memory: 2048, disk_size: 10, image: {source: container_disk, reference: registry.test/talos}, run_strategy: Manual}"
		)

		provision("kept", kept)
		time.Sleep(2 * time.Hour)
		provision("kept-again", kept)
		provision("snapshot", snapshotClass)
		provision("container", container)

		// What a class may name.
		provision("network", "{disk_size: 10, instancetype: {name: medium, kind: namespace}, networks: [{type: multus, network: vlan7}]}")

		for _, data := range []string{
			"{disk_size: 10, instancetype: {name: nothing}}",
			"{cores: 2, memory: 2048, disk_size: 10, preference: {name: nothing, kind: namespace}}",
			"{cores: 2, memory: 2048, disk_size: 10, preference: {name: nothing}}",
			"{cores: 2, memory: 2048, disk_size: 10, storage_class_name: nothing}",
			"{cores: 2, memory: 2048, disk_size: 10, priority_class: nothing}",
		} {
			_, err := l.driver.Plan(t.Context(), requestOf("nothing", data))
			require.Equal(t, driver.KindTerminal, driver.KindOf(err), "%s: %v", data, err)
		}

		// What was made is looked at by a process that does not know of it, and a Secret that somebody has changed is put right.
		name := machine.NamesOf(ref("container")).Secret
		_, err := k.Core.CoreV1().Secrets(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(`{"data":{"userdata":"bm90aGluZw=="}}`), metav1.PatchOptions{})
		require.NoError(t, err)
		l.restart(noted)
		provision("container", container)
		provision("again", "{cores: 4, memory: 2048, disk_size: 10}")

		secret, err := k.Secrets().Get(t.Context(), namespace, name)
		require.NoError(t, err)
		require.Equal(t, joinConfig, string(secret.Data[machine.SecretUserData]))

		// Power.
		for _, want := range []driver.Power{driver.PowerOff, driver.PowerOn} {
			require.NoError(t, l.driver.SetPower(t.Context(), ref("container"), want))
			time.Sleep(5 * time.Minute)
		}

		require.NoError(t, l.driver.Reboot(t.Context(), ref("container")))
		time.Sleep(5 * time.Minute)

		// All looks, with watches and without.
		look := func() {
			t.Helper()

			_, err := l.driver.List(t.Context(), providerID)
			require.NoError(t, err)
			_, err = l.driver.Addresses(t.Context(), providerID)
			require.NoError(t, err)
			require.NoError(t, l.driver.Check(t.Context()))
			synctest.Wait()
		}

		look()
		l.watch()
		l.restart(noted)
		look()

		for range 30 {
			time.Sleep(time.Hour)
			look()
		}

		images, shots, contents := l.counted()
		require.Equal(t, []int{0, 0, 0}, []int{images, shots, contents})
		require.Empty(t, l.claims(machine.LabelImage))

		// One machine was deleted, and not what belongs to it; the others go as they should.
		orphan := metav1.DeletePropagationOrphan
		require.NoError(t, k.KubeVirt.KubevirtV1().VirtualMachines(namespace).Delete(t.Context(), l.vm("snapshot").Name, metav1.DeleteOptions{PropagationPolicy: &orphan}))
		time.Sleep(time.Minute)

		for _, request := range []string{"collected", "again", "kept", "kept-again", "snapshot", "container", "network"} {
			l.mustRemove(request)
		}

		require.Empty(t, l.left())

		role, clusterRole := granted(t)
		assert.ElementsMatch(t, rightsOf(role), slices.Collect(maps.Keys(notes.inNamespaces)), "what the Role grants, and what was used")
		assert.ElementsMatch(t, rightsOf(clusterRole), slices.Collect(maps.Keys(notes.inCluster)), "what the ClusterRole grants, and what was used")
		assert.Empty(t, notes.refused)
	})
}

func (l *lab) volumes(selector string) []metav1.Object {
	l.t.Helper()

	volumes, err := l.admin().DataVolumes().List(l.t.Context(), namespace, metav1.ListOptions{LabelSelector: selector})
	require.NoError(l.t, err)

	return objects(volumes)
}

func (l *lab) claims(selector string) []metav1.Object {
	l.t.Helper()

	claims, err := l.admin().Claims().List(l.t.Context(), namespace, metav1.ListOptions{LabelSelector: selector})
	require.NoError(l.t, err)

	return objects(claims)
}

func objects[T metav1.Object](all []T) []metav1.Object {
	out := make([]metav1.Object, len(all))
	for i := range all {
		out[i] = all[i]
	}

	return out
}

func TestOptionalRightsAreNotNeeded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.furnish()

		role, _ := granted(t)
		role = slices.DeleteFunc(slices.Clone(role), func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Resources, "virtualmachineinstancetypes") || slices.Contains(r.Resources, "network-attachment-definitions")
		})
		l.Server().SetUser(apiserver.User{Name: kubevirt.User, Token: kubevirt.Token, NamespaceRules: map[string][]rbacv1.PolicyRule{namespace: role}})

		o := l.provision(requestOf("r-1", "{disk_size: 20, storage_class_name: standard, instancetype: {name: medium, kind: namespace}, networks: [{type: multus, network: vlan7}]}"), time.Hour)
		require.NoError(t, o.err, "%v", o.said)
		l.mustRemove("r-1")
		require.Empty(t, l.left())
	})
}

func TestSecretsOfOtherNamespacesCannotBeRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		role, clusterRole := granted(t)
		l := newLab(t, kubevirt.Options{
			ControllerOptions: kubevirt.ControllerOptions{Namespaces: []string{namespace, "somebodys"}},
			Rules:             clusterRole, NamespaceRules: map[string][]rbacv1.PolicyRule{namespace: role},
		})

		_, err := l.admin().Secrets().Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "somebodys", Name: "s"}}, "somebody")
		require.NoError(t, err)

		l.restart(func(c *provider.Config) { c.Operator.Namespaces = []string{"somebodys"} })

		_, err = l.driver.List(t.Context(), providerID)
		require.ErrorContains(t, err, `lacks the right to list virtualmachines.kubevirt.io in namespace "somebodys"`)
	})
}
