//go:build real

package provider

import (
	"context"
	"fmt"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/client"
	omniclient "github.com/siderolabs/omni/client/pkg/client/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	resources "github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/hypervisor"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
	"github.com/omni-infra/omni-infra-providers/sim/factory"
	"github.com/omni-infra/omni-infra-providers/sim/omni"
)

// site is an Omni and an image factory, to which whole providers come and go.
type site struct {
	t        *testing.T
	provider string
	omni     *omni.Omni
	key      string
	factory  string
}

func newSite(t *testing.T, provider string) *site {
	t.Helper()

	o, err := omni.New(omni.Options{})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)

	go func() { done <- o.Run(ctx) }()

	images := httptest.NewServer(new(factory.Factory).Handler())

	t.Cleanup(func() {
		require.Empty(t, o.Unmodelled())
		images.Close()
		cancel()
		require.NoError(t, <-done)
	})

	key, err := o.CreateProvider(ctx, provider)
	require.NoError(t, err)

	return &site{t: t, provider: provider, omni: o, key: key, factory: images.URL}
}

// process is a provider as its program runs it, with a libvirt driver, a lifecycle and connections of its own.
type process struct {
	t      *testing.T
	cancel context.CancelFunc
	omni   *client.Client
	ended  chan struct{}
	once   sync.Once
}

// start starts a provider. Its calls to libvirt go through intercept, which may be nil.
func (s *site) start(intercept func(p *process, what string, next func() error) error) *process {
	s.t.Helper()

	c, err := s.omni.Client(s.key, client.WithOmniClientOptions(omniclient.WithProviderID(s.provider)))
	require.NoError(s.t, err)

	images, err := bootasset.New(bootasset.Config{Factory: s.factory})
	require.NoError(s.t, err)

	ctx, cancel := context.WithCancel(context.Background())
	p := &process{t: s.t, cancel: cancel, omni: c, ended: make(chan struct{})}

	config := hypervisor.Config{ShutdownTimeout: time.Second}
	if intercept != nil {
		config.Config = connection.Config{Intercept: func(what string, next func() error) error { return intercept(p, what, next) }}
	}

	d := newOf(config)

	engine, err := lifecycle.New(lifecycle.Config{
		ID: s.provider, Driver: d, Schema: machine.Schema(), Images: images, Logger: zaptest.NewLogger(s.t, zaptest.Level(zap.ErrorLevel)),
		// The one that follows a killed one waits for that long.
		LeaseDuration: 3 * time.Second,
	})
	require.NoError(s.t, err)

	go func() {
		defer close(p.ended)
		defer d.Close()

		// A provider that is killed while it registers has no clean end.
		_ = engine.Run(ctx, c.Omni().State())
	}()

	// A test that fails leaves it running.
	s.t.Cleanup(p.end)

	return p
}

// kill ends the provider as SIGKILL does: nothing that it has not yet said reaches Omni any more.
func (p *process) kill() {
	p.once.Do(func() {
		_ = p.omni.Close() // Nobody is left to hear of an error.
		p.cancel()
	})
}

// end kills the provider and waits until its goroutines have ended.
func (p *process) end() {
	p.t.Helper()
	p.kill()

	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		require.Fail(p.t, "the provider does not end")
	}
}

func (s *site) request(id, data string) driver.Request {
	s.t.Helper()

	r := infra.NewMachineRequest(id)
	r.Metadata().Labels().Set(resources.LabelInfraProviderID, s.provider)
	r.TypedSpec().Value.TalosVersion = "v1.13.5"
	r.TypedSpec().Value.ProviderData = data
	require.NoError(s.t, s.omni.State().Create(s.t.Context(), r))

	ref := driver.Ref{ProviderID: s.provider, RequestID: id}

	return driver.Request{Ref: ref, Identity: driver.NewIdentity(ref), ClassData: data}
}

// waitTimeout is how long a request may take to get where it should.
const waitTimeout = time.Minute

// awaitProvisioned waits until the machine is made; it returns false when the provider dies before that.
func (s *site) awaitProvisioned(id string, p *process) bool {
	s.t.Helper()

	return s.await(p, "machine of request "+id+" made", func(ctx context.Context) error {
		_, err := s.omni.State().WatchFor(ctx, infra.NewMachineRequestStatus(id).Metadata(),
			state.WithCondition(func(r resource.Resource) (bool, error) {
				status, ok := r.(*infra.MachineRequestStatus)

				return ok && status.TypedSpec().Value.Stage == specs.MachineRequestStatusSpec_PROVISIONED, nil
			}))

		return err
	})
}

// delete asks for the end of the machine, as a user does.
func (s *site) delete(id string) {
	s.t.Helper()

	_, err := s.omni.State().Teardown(s.t.Context(), infra.NewMachineRequest(id).Metadata())
	require.NoError(s.t, err)
}

// awaitGone waits until the provider has let go of the request, and takes the request away; it returns false when the provider
// dies before that.
func (s *site) awaitGone(id string, p *process) bool {
	s.t.Helper()

	md := infra.NewMachineRequest(id).Metadata()

	if !s.await(p, "machine of request "+id+" removed", func(ctx context.Context) error {
		_, err := s.omni.State().WatchFor(ctx, md, state.WithFinalizerEmpty())

		return err
	}) {
		return false
	}

	require.NoError(s.t, s.omni.State().Destroy(s.t.Context(), md))

	left, err := safe.StateListAll[*infra.MachineRequestStatus](s.t.Context(), s.omni.State())
	require.NoError(s.t, err)
	require.Zero(s.t, left.Len())

	return true
}

// await waits for what Omni is to hold; it returns false when the provider dies before that.
func (s *site) await(p *process, what string, wait func(context.Context) error) bool {
	s.t.Helper()

	ctx, cancel := context.WithTimeout(s.t.Context(), waitTimeout)
	defer cancel()

	stop := make(chan struct{})
	defer close(stop)

	go func() {
		select {
		case <-p.ended:
			cancel()
		case <-stop:
		}
	}()

	err := wait(ctx)

	select {
	case <-p.ended:
		return err == nil
	default:
	}

	if err != nil {
		statuses, listErr := safe.StateListAll[*infra.MachineRequestStatus](context.Background(), s.omni.State())
		require.NoError(s.t, listErr)

		text := ""
		for status := range statuses.All() {
			text += fmt.Sprintf("%s: %s %s: %s\n", status.Metadata(), status.TypedSpec().Value.Stage, status.TypedSpec().Value.Status, status.TypedSpec().Value.Error)
		}

		require.NoError(s.t, err, "%s\n%s", what, text)
	}

	return true
}
