package provider_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubevirtv1 "kubevirt.io/api/core/v1"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/virt"
	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

const (
	providerID = "kubevirt"
	namespace  = "omni"
	classData  = "{cores: 2, memory: 2048, disk_size: 10}"
	joinConfig = "apiVersion: v1alpha1\nkind: SideroLinkConfig\napiUrl: https://omni.test?jointoken=canary-join-token\n"
)

// lab is a simulated cluster and the driver on it.
type lab struct {
	*kubevirt.Cluster

	t      *testing.T
	driver *provider.Driver
	image  *image
	// watch ends the driver's watch, which the lab begins, and the driver; unwatch its watch alone.
	watch, unwatch func()
	// blind is a kind of object that the driver's watches show nothing of from the next restart on.
	blind string
}

// newLab makes a lab in the bubble of a test, in which the provider has the rights of its manifest in the lab's namespaces, unless the
// options say otherwise. tune changes how the driver works.
func newLab(t *testing.T, opts kubevirt.Options, tune ...func(*provider.Config)) *lab {
	t.Helper()

	if len(opts.Namespaces) == 0 {
		opts.Namespaces = []string{namespace}
	}

	if opts.Rules == nil && opts.NamespaceRules == nil {
		role, clusterRole := granted(t)
		opts.Rules, opts.NamespaceRules = clusterRole, map[string][]rbacv1.PolicyRule{}

		for _, namespace := range opts.Namespaces {
			opts.NamespaceRules[namespace] = role
		}
	}

	c, err := kubevirt.New(opts)
	require.NoError(t, err)
	t.Cleanup(c.Close)

	l := &lab{Cluster: c, t: t, image: &image{key: "talos-v1.11.0-nocloud-amd64-abc.qcow2", size: 1 << 30}, watch: func() {}}
	l.restart(tune...)

	return l
}

// restart makes the driver anew, as the next process would have it, over a session of its own.
func (l *lab) restart(tune ...func(*provider.Config)) {
	l.t.Helper()
	l.watch()

	connection := l.RESTConfig(l.Ledger().Session())
	if l.blind != "" {
		connection.Wrap(func(next http.RoundTripper) http.RoundTripper { return blindfold{l.blind, next} })
	}

	config := provider.Config{
		Cluster:  cluster.Config{Rest: connection},
		Operator: machine.Operator{Namespaces: []string{namespace}},
		Version:  "v0.0.0",
	}
	for _, f := range tune {
		f(&config)
	}

	d, err := provider.New(config)
	require.NoError(l.t, err)

	ctx, cancel := context.WithCancel(context.Background())

	var wg sync.WaitGroup

	wg.Go(func() {
		for ctx.Err() == nil {
			_ = d.Watch(ctx, providerID, func(driver.Ref) {}) //nolint:errcheck // the library tells of it in its log

			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	})

	l.driver = d
	l.unwatch = func() { cancel(); wg.Wait() }
	l.watch = sync.OnceFunc(func() { l.unwatch(); d.Close() })
	l.t.Cleanup(l.watch)
	synctest.Wait()
}

// blindfold lets watches, and the lists that they begin with, show nothing of a kind of object.
type blindfold struct {
	kind string
	next http.RoundTripper
}

func (b blindfold) RoundTrip(req *http.Request) (*http.Response, error) {
	q := req.URL.Query()

	if strings.HasSuffix(req.URL.Path, "/"+b.kind) && q.Get("labelSelector") == machine.LabelProvider+"="+providerID {
		req = req.Clone(req.Context())
		q.Set("labelSelector", machine.LabelProvider+"=nobody")
		req.URL.RawQuery = q.Encode()
	}

	return b.next.RoundTrip(req)
}

func ref(request string) driver.Ref { return driver.Ref{ProviderID: providerID, RequestID: request} }

func requestOf(request, data string) driver.Request {
	r := ref(request)

	return driver.Request{Ref: r, Identity: driver.NewIdentity(r), TalosVersion: "v1.11.0", ClassData: data}
}

// outcome is what a user has seen of a request.
type outcome struct {
	// said are the texts of what was waited for, and of errors, each once.
	said []string
	// err is the error with which it was given up.
	err error
}

// attempt runs all phases once, as the library does.
func (l *lab) attempt(ctx context.Context, req driver.Request) error {
	plan, err := l.driver.Plan(ctx, req)
	if err != nil {
		return err
	}

	task := driver.Task{Request: req, Join: driver.Join{UserData: joinConfig}, Progress: func(string) {}}
	if plan.Image != nil {
		task.Image = l.image
	}

	for _, phase := range plan.Phases {
		if err := phase.Ensure(ctx, task); err != nil {
			return fmt.Errorf("%s: %w", phase.Name, err)
		}
	}

	m, err := l.driver.Find(ctx, req.Ref)

	switch {
	case err != nil:
		return err
	case m.Power != driver.PowerOn || m.UUID != req.Identity.UUID || m.Incomplete:
		return fmt.Errorf("the machine is %+v", m)
	default:
		return nil
	}
}

// provision tries until the machine is made, it fails for good, or the time is over.
func (l *lab) provision(req driver.Request, limit time.Duration) outcome {
	var o outcome

	end := time.Now().Add(limit)

	for failures := 0; ; {
		err := l.attempt(l.t.Context(), req)
		if err == nil {
			return outcome{said: o.said}
		}

		if n := len(o.said); n == 0 || o.said[n-1] != err.Error() {
			o.said = append(o.said, err.Error())
		}

		o.err = err

		pause := driver.PauseOf(err)
		if driver.KindOf(err) != driver.KindPending {
			failures++
			pause = max(pause, min(time.Duration(failures)*5*time.Second, time.Minute))
		}

		if driver.KindOf(err) == driver.KindTerminal || time.Now().Add(pause).After(end) {
			return o
		}

		time.Sleep(pause)
	}
}

// mustProvision fails the test when the machine is not made within an hour.
func (l *lab) mustProvision(request string) outcome {
	l.t.Helper()

	o := l.provision(requestOf(request, classData), time.Hour)
	require.NoError(l.t, o.err, "%v\n%s", o.said, tail(l.Ledger().History()))

	return o
}

// remove tries until the machine is gone.
func (l *lab) remove(request string, limit time.Duration) outcome {
	var o outcome

	for end := time.Now().Add(limit); ; {
		done, err := l.driver.Remove(l.t.Context(), ref(request))
		if done {
			return outcome{said: o.said}
		}

		if err == nil {
			err = errors.New("not done")
		}

		if n := len(o.said); n == 0 || o.said[n-1] != err.Error() {
			o.said = append(o.said, err.Error())
		}

		o.err = err

		if time.Now().After(end) {
			return o
		}

		time.Sleep(max(driver.PauseOf(err), time.Second))
	}
}

func (l *lab) mustRemove(request string) {
	l.t.Helper()

	o := l.remove(request, time.Hour)
	require.NoError(l.t, o.err, "%v\n%s", o.said, tail(l.Ledger().History()))
}

// admin is a connection that leaves no trace in the books.
func (l *lab) admin() *cluster.Cluster {
	l.t.Helper()

	k, err := cluster.New(cluster.Config{Rest: l.Server().Admin()})
	require.NoError(l.t, err)

	return k
}

// vm returns the request's virtual machine.
func (l *lab) vm(request string) *kubevirtv1.VirtualMachine {
	l.t.Helper()

	vm, err := l.admin().VirtualMachines().Get(l.t.Context(), namespace, machine.NamesOf(ref(request)).VM)
	require.NoError(l.t, err)

	return vm
}

// left lists what the books have, but for images.
func (l *lab) left() []string {
	var left []string

	for _, o := range l.Ledger().Objects() {
		if !o.Keep {
			left = append(left, o.String())
		}
	}

	return left
}

// keepImages tells images, which are there for all machines, from what is one machine's.
func keepImages(o ledger.Object, object *unstructured.Unstructured) ledger.Object {
	_, image := object.GetLabels()[machine.LabelImage]
	o.Keep = o.Keep || image

	return o
}

// image is a boot image of which there is the header alone.
type image struct {
	key  string
	size uint64
	// opened counts how often its header was read.
	mu     sync.Mutex
	opened int
	err    error
}

func (i *image) Key() string { return i.key }
func (i *image) URL() string { return "https://factory.test/image/abc/v1.11.0/nocloud-amd64.qcow2" }

func (i *image) Open(context.Context) (io.ReadCloser, error) {
	i.mu.Lock()
	defer i.mu.Unlock()

	i.opened++

	header := make([]byte, 104)
	copy(header, "QFI\xfb")
	binary.BigEndian.PutUint64(header[24:], i.size)

	return io.NopCloser(bytes.NewReader(header)), i.err
}

// bubble runs a test on the fake clock.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()

	synctest.Test(t, f)
}

// linger keeps instances for a while after their machines are gone.
func (l *lab) linger(d time.Duration) { l.Virt.Inject(virt.Fault{Linger: d}) }

// tail is the end of a history.
func tail(history string) string { return history[max(0, len(history)-4000):] }

// noRules are the rights of somebody who has none: no rules at all would be all rights.
var noRules = []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"configmaps"}}}
