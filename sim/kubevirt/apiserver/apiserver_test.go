package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	rbac "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	kubevirtv1 "kubevirt.io/api/core/v1"
	"kubevirt.io/client-go/kubevirt"

	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/definitions"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

var machines = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachines"}

// start returns a server with all definitions, which ends with the test.
func start(t *testing.T) *apiserver.Server {
	t.Helper()

	return startWith(t, apiserver.Options{})
}

func startWith(t *testing.T, opts apiserver.Options) *apiserver.Server {
	t.Helper()

	all, err := definitions.All()
	require.NoError(t, err)

	opts.Definitions = all

	s, err := apiserver.New(opts)
	require.NoError(t, err)
	t.Cleanup(s.Close)

	return s
}

func vms(t *testing.T, config *rest.Config) dynamic.ResourceInterface {
	t.Helper()

	c, err := dynamic.NewForConfig(config)
	require.NoError(t, err)

	return c.Resource(machines).Namespace("default")
}

func kube(t *testing.T, config *rest.Config) kubernetes.Interface {
	t.Helper()

	c, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)

	return c
}

func machine(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": map[string]any{"name": name, "namespace": "default"},
		"spec": map[string]any{"runStrategy": "Halted", "template": map[string]any{"spec": map[string]any{"domain": map[string]any{
			"devices": map[string]any{},
		}}}},
	}}
}

func create(t *testing.T, c dynamic.ResourceInterface, names ...string) {
	t.Helper()

	for _, name := range names {
		_, err := c.Create(t.Context(), machine(name), metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

func TestInformerMissesNothingOverCutAndCompactedWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		admin := vms(t, s.Admin())

		c, err := dynamic.NewForConfig(s.Admin())
		require.NoError(t, err)

		factory := dynamicinformer.NewDynamicSharedInformerFactory(c, 0)
		informer := factory.ForResource(machines)
		_ = informer.Informer()

		ctx, cancel := context.WithCancel(t.Context())
		factory.Start(ctx.Done())

		defer func() {
			cancel()
			factory.Shutdown()
		}()

		require.True(t, factory.WaitForCacheSync(ctx.Done())[machines])

		names := func() (got []string) {
			all, err := informer.Lister().List(labels.Everything())
			require.NoError(t, err)

			for _, o := range all {
				got = append(got, o.(*unstructured.Unstructured).GetName())
			}

			return got
		}

		create(t, admin, "a")
		time.Sleep(time.Second)
		require.ElementsMatch(t, []string{"a"}, names())

		s.CutWatches()
		create(t, admin, "b")
		time.Sleep(time.Minute)
		require.ElementsMatch(t, []string{"a", "b"}, names())

		s.Stop()
		time.Sleep(time.Minute)
		require.ElementsMatch(t, []string{"a", "b"}, names())
		s.Start()

		create(t, admin, "c")
		require.NoError(t, admin.Delete(t.Context(), "a", metav1.DeleteOptions{}))
		s.Compact()
		time.Sleep(5 * time.Minute)
		require.ElementsMatch(t, []string{"b", "c"}, names())
	})
}

func TestWatchFromBeforeTheCompactionHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		c := vms(t, s.Admin())
		create(t, c, "a")

		before := fmt.Sprint(s.Revision())
		create(t, c, "b")

		w, err := c.Watch(t.Context(), metav1.ListOptions{ResourceVersion: before})
		require.NoError(t, err)
		require.Equal(t, "b", (<-w.ResultChan()).Object.(*unstructured.Unstructured).GetName())
		w.Stop()

		s.Compact()

		w, err = c.Watch(t.Context(), metav1.ListOptions{ResourceVersion: before})
		require.NoError(t, err)

		defer w.Stop()

		e := <-w.ResultChan()
		require.Equal(t, "ERROR", string(e.Type))
		require.True(t, apierrors.IsResourceExpired(apierrors.FromObject(e.Object)))
	})
}

func TestBookmarksTellHowFarAQuietWatchIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		w, err := vms(t, s.Admin()).Watch(t.Context(), metav1.ListOptions{AllowWatchBookmarks: true})
		require.NoError(t, err)

		defer w.Stop()

		initial := <-w.ResultChan()
		require.Equal(t, "true", initial.Object.(*unstructured.Unstructured).GetAnnotations()["k8s.io/initial-events-end"])

		_, err = kube(t, s.Admin()).CoreV1().ConfigMaps("default").Create(t.Context(), &core.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "other"},
		}, metav1.CreateOptions{})
		require.NoError(t, err)

		begun := time.Now()
		e := <-w.ResultChan()
		require.Equal(t, "BOOKMARK", string(e.Type))
		require.Equal(t, time.Minute, time.Since(begun))
		require.Equal(t, fmt.Sprint(s.Revision()), e.Object.(*unstructured.Unstructured).GetResourceVersion())
	})
}

func TestListsArePagedFromOneState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		c := vms(t, s.Admin())
		create(t, c, "a", "b", "c", "d")

		first, err := c.List(t.Context(), metav1.ListOptions{Limit: 2})
		require.NoError(t, err)
		require.Len(t, first.Items, 2)
		require.Equal(t, int64(2), *first.GetRemainingItemCount())

		require.NoError(t, c.Delete(t.Context(), "c", metav1.DeleteOptions{}))

		second, err := c.List(t.Context(), metav1.ListOptions{Limit: 2, Continue: first.GetContinue()})
		require.NoError(t, err)
		require.Len(t, second.Items, 2, "the state is that of the first page")
		require.Empty(t, second.GetContinue())

		s.Compact()
		create(t, c, "e")

		_, err = c.List(t.Context(), metav1.ListOptions{Limit: 2, Continue: first.GetContinue()})
		require.True(t, apierrors.IsResourceExpired(err), "%v", err)

		status, ok := errors.AsType[*apierrors.StatusError](err)
		require.True(t, ok)

		rest, err := c.List(t.Context(), metav1.ListOptions{Limit: 9, Continue: status.ErrStatus.Continue})
		require.NoError(t, err)
		require.Len(t, rest.Items, 2, "d and e, as they are now")
	})
}

func TestDryRunChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		c := vms(t, s.Admin())
		create(t, c, "a")

		before, all := s.Revision(), []string{metav1.DryRunAll}

		_, err := c.Create(t.Context(), machine("b"), metav1.CreateOptions{DryRun: all})
		require.NoError(t, err)
		_, err = c.Apply(t.Context(), "c", machine("c"), metav1.ApplyOptions{DryRun: all, FieldManager: "test"})
		require.NoError(t, err)
		_, err = c.Patch(t.Context(), "a", "application/merge-patch+json", []byte(`{"spec":{"runStrategy":"Always"}}`), metav1.PatchOptions{DryRun: all})
		require.NoError(t, err)
		require.NoError(t, c.Delete(t.Context(), "a", metav1.DeleteOptions{DryRun: all}))
		require.NoError(t, c.DeleteCollection(t.Context(), metav1.DeleteOptions{DryRun: all}, metav1.ListOptions{}))
		require.NoError(t, kube(t, s.Admin()).CoreV1().Namespaces().Delete(t.Context(), "default", metav1.DeleteOptions{DryRun: all}))
		require.Equal(t, before, s.Revision())
	})
}

func TestNamespaceGoesWhenItIsFinalized(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kube(t, start(t).Admin()).CoreV1().Namespaces()

		_, err := c.Create(t.Context(), &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.NoError(t, c.Delete(t.Context(), "n", metav1.DeleteOptions{}))
		require.NoError(t, c.Delete(t.Context(), "n", metav1.DeleteOptions{}))

		n, err := c.Get(t.Context(), "n", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, core.NamespaceTerminating, n.Status.Phase)
		require.NotNil(t, n.DeletionTimestamp)

		n.Spec.Finalizers = nil
		_, err = c.Finalize(t.Context(), n, metav1.UpdateOptions{})
		require.NoError(t, err)

		_, err = c.Get(t.Context(), "n", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
	})
}

func TestPodsThatRunGetTimeToEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := kube(t, start(t).Admin()).CoreV1().Pods("default")

		for name, node := range map[string]string{"pending": "", "running": "node"} {
			_, err := c.Create(t.Context(), &core.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: core.PodSpec{
				NodeName: node, Containers: []core.Container{{Name: "c", Image: "i"}},
			}}, metav1.CreateOptions{})
			require.NoError(t, err)
			require.NoError(t, c.Delete(t.Context(), name, metav1.DeleteOptions{}))
		}

		_, err := c.Get(t.Context(), "pending", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err))

		p, err := c.Get(t.Context(), "running", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, int64(30), *p.DeletionGracePeriodSeconds)

		require.NoError(t, c.Delete(t.Context(), "running", *metav1.NewDeleteOptions(0)))
		_, err = c.Get(t.Context(), "running", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err))
	})
}

func TestQuotaLimitsWhatIsCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		c := vms(t, s.Admin())

		_, err := kube(t, s.Admin()).CoreV1().ResourceQuotas("default").Create(t.Context(), &core.ResourceQuota{
			ObjectMeta: metav1.ObjectMeta{Name: "few"},
			Spec:       core.ResourceQuotaSpec{Hard: core.ResourceList{"count/virtualmachines.kubevirt.io": resource.MustParse("1")}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)

		create(t, c, "a")
		_, err = c.Create(t.Context(), machine("b"), metav1.CreateOptions{})
		require.True(t, apierrors.IsForbidden(err))
		require.EqualError(t, err, `virtualmachines.kubevirt.io "b" is forbidden: exceeded quota: few, requested: `+
			`count/virtualmachines.kubevirt.io=1, used: count/virtualmachines.kubevirt.io=1, limited: count/virtualmachines.kubevirt.io=1`)
	})
}

func TestUserMayDoWhatItsRulesSay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.SetUser(apiserver.User{Name: "system:serviceaccount:omni:provider", Token: "first token", NamespaceRules: map[string][]rbac.PolicyRule{
			"default": {{APIGroups: []string{"kubevirt.io"}, Resources: []string{"virtualmachines"}, Verbs: []string{"get", "create"}}},
		}})

		session := s.Ledger().Session()
		c := vms(t, s.Client(session, "first token"))
		create(t, c, "a")

		_, err := c.List(t.Context(), metav1.ListOptions{})
		require.EqualError(t, err, `virtualmachines.kubevirt.io is forbidden: User "system:serviceaccount:omni:provider" cannot list `+
			`resource "virtualmachines" in API group "kubevirt.io" in the namespace "default"`)

		_, err = c.Get(t.Context(), "a", metav1.GetOptions{}, "status")
		require.True(t, apierrors.IsForbidden(err), "a subresource is a right of its own")

		require.True(t, s.RotateToken("system:serviceaccount:omni:provider", "second token"))
		_, err = c.Get(t.Context(), "a", metav1.GetOptions{})
		require.True(t, apierrors.IsUnauthorized(err))
		require.EqualError(t, err, "Unauthorized")

		_, err = vms(t, s.Client(session, "second token")).Get(t.Context(), "a", metav1.GetOptions{})
		require.NoError(t, err)

		anonymous := s.Admin()
		anonymous.BearerToken = ""
		_, err = vms(t, anonymous).Get(t.Context(), "a", metav1.GetOptions{})
		require.ErrorContains(t, err, `User "system:anonymous" cannot get resource "virtualmachines"`)

		as := s.Admin()
		as.Impersonate.UserName = "system:serviceaccount:omni:provider"
		require.True(t, apierrors.IsForbidden(vms(t, as).Delete(t.Context(), "a", metav1.DeleteOptions{})))

		s.RemoveUser("system:serviceaccount:omni:provider")
		_, err = vms(t, s.Client(session, "second token")).Get(t.Context(), "a", metav1.GetOptions{})
		require.True(t, apierrors.IsUnauthorized(err))
	})
}

func TestFaultsAreAnsweredAsARealClusterDoes(t *testing.T) {
	for kind, want := range map[ledger.FaultKind]func(*testing.T, error){
		ledger.NotFound:     func(t *testing.T, err error) { require.True(t, apierrors.IsNotFound(err)) },
		ledger.Conflict:     func(t *testing.T, err error) { require.True(t, apierrors.IsConflict(err)) },
		ledger.Unavailable:  func(t *testing.T, err error) { require.True(t, apierrors.IsServiceUnavailable(err)) },
		ledger.Full:         func(t *testing.T, err error) { require.ErrorContains(t, err, `"a" is forbidden: exceeded quota`) },
		ledger.Unauthorized: func(t *testing.T, err error) { require.True(t, apierrors.IsUnauthorized(err)) },
		ledger.Echo:         func(t *testing.T, err error) { require.ErrorContains(t, err, `"runStrategy":"Halted"`) },
		ledger.Cut:          func(t *testing.T, err error) { require.ErrorContains(t, err, "connection reset by peer") },
		ledger.Hang:         func(t *testing.T, err error) { require.ErrorIs(t, err, context.DeadlineExceeded) },
		ledger.Throttled:    func(t *testing.T, err error) { require.NoError(t, err, "client-go waits, and tries again") },
	} {
		t.Run(string(kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := start(t)
				s.SetUser(apiserver.User{Name: "u", Token: "t"})
				c := vms(t, s.Client(s.Ledger().Session(), "t"))

				s.Ledger().Inject(ledger.Fault{Kind: kind, Op: "create virtualmachines", For: time.Hour})

				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Hour)
				if kind == ledger.Hang {
					ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
				}

				defer cancel()

				_, err := c.Create(ctx, machine("a"), metav1.CreateOptions{})
				want(t, err)
				require.Empty(t, s.Ledger().Leaks())

				_, err = c.Get(t.Context(), "a", metav1.GetOptions{})
				require.Equal(t, kind != ledger.Throttled, apierrors.IsNotFound(err), "it had no effect")
			})
		})
	}
}

func TestLostReplyHasItsEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.SetUser(apiserver.User{Name: "u", Token: "t"})
		c := vms(t, s.Client(s.Ledger().Session(), "t"))

		s.Ledger().Inject(ledger.Fault{Kind: ledger.Lost, Op: "create virtualmachines"})
		_, err := c.Create(t.Context(), machine("a"), metav1.CreateOptions{})
		require.ErrorContains(t, err, "connection reset by peer")

		_, err = c.Get(t.Context(), "a", metav1.GetOptions{})
		require.NoError(t, err)
		require.Contains(t, s.Ledger().History(), "create virtualmachines default -> connection to the cloud is closed")

		s.Ledger().Inject(ledger.Fault{Kind: ledger.Slow, Op: "delete", For: time.Hour})

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()

		require.ErrorIs(t, c.Delete(ctx, "a", metav1.DeleteOptions{}), context.DeadlineExceeded)
		s.Ledger().Settle()
		_, err = c.Get(t.Context(), "a", metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err))
	})
}

func TestBooksHaveTheObjectsAndNoSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startWith(t, apiserver.Options{Object: func(o *unstructured.Unstructured) (ledger.Object, bool) {
			return ledger.Object{Kind: "machine", ID: string(o.GetUID()), Name: o.GetName()}, o.GetKind() == "VirtualMachine"
		}})
		s.SetUser(apiserver.User{Name: "u", Token: "t"})
		config := s.Client(s.Ledger().Session(), "t")

		require.NoError(t, s.Ledger().Secret("join token", "canary-4711"))

		_, err := kube(t, config).CoreV1().Secrets("default").Create(t.Context(), &core.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"userdata": "canary-4711"},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Empty(t, s.Ledger().Leaks(), "a Secret may have it")

		c := vms(t, config)
		create(t, c, "a")
		require.Len(t, s.Ledger().Objects(), 1)
		require.NoError(t, c.Delete(t.Context(), "a", metav1.DeleteOptions{}))
		require.Empty(t, s.Ledger().Objects())

		bad := machine("b")
		bad.SetAnnotations(map[string]string{"note": "canary-4711"})
		_, err = c.Create(t.Context(), bad, metav1.CreateOptions{DryRun: []string{"All"}})
		require.NoError(t, err)
		require.Equal(t, []string{`secret "join token" is in create virtualmachines default`}, s.Ledger().Leaks())
	})
}

func TestHooksChangeAndRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		c := vms(t, s.Admin())
		asked := 0

		s.AddHook(apiserver.Hook{
			Name: "mutator.example", Resource: machines.GroupResource(), Operations: []apiserver.Operation{apiserver.Create},
			Mutate: func(_ context.Context, r *apiserver.Review) error {
				asked++

				return unstructured.SetNestedField(r.Object.Object, "Manual", "spec", "runStrategy")
			},
			Validate: func(_ context.Context, r *apiserver.Review) error {
				if r.Object.GetName() == "odd" {
					return apiserver.Refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "it is odd",
						metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Message: "odd", Field: "metadata.name"})
				}

				if r.Object.GetName() == "broken" {
					return errors.New("connection refused")
				}

				return nil
			},
		})

		got, err := c.Create(t.Context(), machine("a"), metav1.CreateOptions{})
		require.NoError(t, err)

		strategy, _, _ := unstructured.NestedString(got.Object, "spec", "runStrategy")
		require.Equal(t, "Manual", strategy)

		_, err = c.Create(t.Context(), machine("odd"), metav1.CreateOptions{DryRun: []string{"All"}})
		require.EqualError(t, err, `admission webhook "mutator.example" denied the request: it is odd`)
		require.True(t, apierrors.IsInvalid(err))

		_, err = c.Apply(t.Context(), "broken", machine("broken"), metav1.ApplyOptions{FieldManager: "test"})
		require.EqualError(t, err, `Internal error occurred: failed calling webhook "mutator.example": connection refused`)
		require.Equal(t, 3, asked)
	})
}

func TestGroupsOfOthersAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		s.SetUser(apiserver.User{Name: "u", Token: "t"})
		s.Serve(schema.GroupVersion{Group: "subresources.kubevirt.io", Version: "v1"},
			[]metav1.APIResource{{Name: "virtualmachines/start", Kind: "VirtualMachine", Namespaced: true, Verbs: metav1.Verbs{"update"}}},
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				info, _ := request.RequestInfoFrom(r.Context())
				who, _ := request.UserFrom(r.Context())
				w.Header().Set("Seen", info.Verb+" "+info.Namespace+"/"+info.Name+"/"+info.Subresource+" by "+who.GetName())
				w.WriteHeader(http.StatusAccepted)
			}))

		config := s.Client(s.Ledger().Session(), "t")
		c, err := kubevirt.NewForConfig(config)
		require.NoError(t, err)
		require.NoError(t, c.KubevirtV1().VirtualMachines("default").Start(t.Context(), "a", &kubevirtv1.StartOptions{}))
		require.Equal(t, 1, s.Ledger().CallsOf("update virtualmachines/start"))
	})
}

func TestGeneratedClientsAndDiscoveryWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		c, err := kubevirt.NewForConfig(s.Admin())
		require.NoError(t, err)

		made, err := c.KubevirtV1().VirtualMachines("default").Create(t.Context(), &kubevirtv1.VirtualMachine{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "vm-"},
			Spec:       kubevirtv1.VirtualMachineSpec{Template: &kubevirtv1.VirtualMachineInstanceTemplateSpec{}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		require.Regexp(t, "^vm-[a-z0-9]{5}$", made.Name)

		made.Status.Ready = true
		made, err = c.KubevirtV1().VirtualMachines("default").UpdateStatus(t.Context(), made, metav1.UpdateOptions{})
		require.NoError(t, err)
		require.True(t, made.Status.Ready)

		d, err := discovery.NewDiscoveryClientForConfig(s.Admin())
		require.NoError(t, err)

		groups, err := restmapper.GetAPIGroupResources(d)
		require.NoError(t, err)

		mapping, err := restmapper.NewDiscoveryRESTMapper(groups).RESTMapping(schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachine"})
		require.NoError(t, err)
		require.Equal(t, machines, mapping.Resource)

		version, err := d.ServerVersion()
		require.NoError(t, err)
		require.Equal(t, "v1.36.3", version.GitVersion)
	})
}

func TestClosedServerRefusesConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)
		c := vms(t, s.Admin())

		w, err := c.Watch(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)

		s.Close()

		_, open := <-w.ResultChan()
		require.False(t, open)

		_, err = c.Create(t.Context(), machine("a"), metav1.CreateOptions{})
		require.ErrorContains(t, err, "connection refused")
	})
}

func TestRequestThatIsGivenUpLeavesNobodyBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t)

		ctx, cancel := context.WithCancel(t.Context())

		for _, path := range []string{"/api/v1/pods?watch=true", "/api/v1/namespaces"} {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://kubernetes.sim"+path, nil)
			require.NoError(t, err)
			r.Header.Set("Authorization", "Bearer "+s.Admin().BearerToken)

			answer, err := s.Transport(nil).RoundTrip(r) //nolint:bodyclose // That is what it is about.
			require.NoError(t, err)
			require.Equal(t, "200 OK", answer.Status)
		}

		cancel()
		synctest.Wait()
	})
}

func TestLatencyIsTheCallersToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := startWith(t, apiserver.Options{Latency: func(op string) time.Duration {
			if op == "create virtualmachines" {
				return 3 * time.Second
			}

			return 0
		}})
		s.SetUser(apiserver.User{Name: "u", Token: "t"})

		begun := time.Now()
		create(t, vms(t, s.Client(s.Ledger().Session(), "t")), "a")
		require.Equal(t, 3*time.Second, time.Since(begun))
	})
}

func TestServerOnLoopbackLosesConnectionsToo(t *testing.T) {
	s := start(t)
	s.SetUser(apiserver.User{Name: "u", Token: "t"})

	listening := httptest.NewServer(s.Handler(s.Ledger().Session()))
	defer listening.Close()

	c := vms(t, &rest.Config{Host: listening.URL, BearerToken: "t"})
	create(t, c, "a")

	w, err := c.Watch(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Equal(t, "ADDED", string((<-w.ResultChan()).Type))
	s.CutWatches()

	_, open := <-w.ResultChan()
	require.False(t, open)

	s.Ledger().Inject(ledger.Fault{Kind: ledger.Cut, Op: "create virtualmachines"})
	_, err = c.Create(t.Context(), machine("b"), metav1.CreateOptions{})
	require.ErrorContains(t, err, "EOF")
}
