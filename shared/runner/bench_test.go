package runner

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/cosi-project/runtime/pkg/state/impl/inmem"
	"github.com/cosi-project/runtime/pkg/state/impl/namespaced"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// siteConfig is a provider's own configuration with everything that matters here.
type siteConfig struct {
	URI      string   `json:"uri" doc:"Where the cloud is." default:"cloud:///default"`
	Pools    []string `json:"pools" doc:"Pools."`
	Password string   `json:"password" doc:"The password." secret:"true"`
	// Network is a struct that is one value.
	Network netip.Prefix `json:"network" doc:"Network."`
}

// site is a cloud that counts who connects to it.
type site struct {
	mu     sync.Mutex
	opened []string
	closed []string
	down   map[string]error
	// check, if not nil, stands before each check of a cloud.
	check func(uri string)
}

// siteDriver is a cloud without machines.
type siteDriver struct {
	driver.Driver
	site *site
	uri  string
}

func (d *siteDriver) Check(context.Context) error {
	d.site.mu.Lock()
	check := d.site.check
	d.site.mu.Unlock()

	if check != nil {
		check(d.uri)
	}

	d.site.mu.Lock()
	defer d.site.mu.Unlock()

	return d.site.down[d.uri]
}

func (d *siteDriver) List(context.Context, string) ([]driver.Machine, error) { return nil, nil }

// bench runs a supervisor; the test plays Omni.
type bench struct {
	t    *testing.T
	ctx  context.Context
	st   state.State
	site *site
	logs *observer.ObservedLogs
	sup  *supervisor[siteConfig]
	done chan error
	gate *labelGate
}

// labelGate shows an infra provider only with its label, and tells of no change that takes the label away, as Omni does.
type labelGate struct {
	state.State

	mu    sync.Mutex
	cut   context.CancelFunc
	gets  int
	fails error
}

func (g *labelGate) Get(ctx context.Context, ptr resource.Pointer, opts ...state.GetOption) (resource.Resource, error) {
	res, err := g.State.Get(ctx, ptr, opts...)
	if ptr.Type() != infra.ProviderType {
		return res, err
	}

	g.mu.Lock()
	defer g.mu.Unlock()

	g.gets++

	if g.fails != nil {
		return nil, g.fails
	}

	if err == nil && !labelled(res) {
		return nil, inmem.ErrNotFound(ptr)
	}

	return res, err
}

func labelled(res resource.Resource) bool {
	id, _ := res.Metadata().Labels().Get(omni.LabelInfraProviderID)

	return id == res.Metadata().ID()
}

func (g *labelGate) Watch(ctx context.Context, ptr resource.Pointer, to chan<- state.Event, opts ...state.WatchOption) error {
	inner, cut := context.WithCancel(ctx)
	from := make(chan state.Event)

	if err := g.State.Watch(inner, ptr, from, opts...); err != nil {
		cut()

		return err
	}

	g.mu.Lock()
	g.cut = cut
	g.mu.Unlock()

	go func() {
		defer cut()

		for {
			event := state.Event{Type: state.Errored, Error: errors.New("buffer overrun")}

			select {
			case <-ctx.Done():
				return
			case <-inner.Done():
			case event = <-from:
				if !labelled(event.Resource) {
					continue
				}
			}

			select {
			case <-ctx.Done():
				return
			case to <- event:
			}

			if event.Type == state.Errored {
				return
			}
		}
	}()

	return nil
}

// cutWatch breaks the watch on the infra provider.
func (g *labelGate) cutWatch() {
	g.mu.Lock()
	defer g.mu.Unlock()

	g.cut()
}

func onBench(t *testing.T, args []string, test func(b *bench), setup ...func(*bench)) {
	t.Helper()

	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	b := &bench{site: &site{down: map[string]error{}}}
	p := siteProgram(b.site)
	p.defaults().bind(flags, p)
	require.NoError(t, flags.Parse(append(args, "--omni-api-endpoint", "https://omni.test", "--omni-service-account-key", key(t, "infra-provider:site"))))

	l, err := p.read(flags, func(string) (string, bool) { return "", false })
	require.NoError(t, err)

	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()

		core, logs := observer.New(zapcore.DebugLevel)
		b.t, b.ctx, b.logs = t, ctx, logs
		b.st = state.WrapCore(namespaced.NewState(inmem.Build))
		b.gate = &labelGate{State: b.st}
		b.done = make(chan error, 1)

		join := siderolink.NewProviderJoinConfig("site")
		join.TypedSpec().Value.JoinToken = "token"

		require.NoError(t, errors.Join(b.st.Create(ctx, infra.NewProvider("site")), b.st.Create(ctx, join), b.st.Create(ctx, siderolink.NewAPIConfig())))

		for _, f := range setup {
			f(b)
		}

		log := zap.New(core)
		b.sup = &supervisor[siteConfig]{
			layers: l, id: "site", st: b.gate, log: log, level: zap.NewAtomicLevel(), status: newStatus(log),
			images: func(context.Context, string) (lifecycle.Images, error) { return nil, nil },
		}

		running, stop := context.WithCancel(ctx)
		go func() { b.done <- b.sup.run(running, "") }()

		b.wait(time.Second)
		test(b)
		stop()
		require.NoError(t, <-b.done)
	})
}

func siteProgram(s *site) Program[siteConfig] {
	return Program[siteConfig]{
		Name: "site", Title: "Site", Description: "Machines on a site.", Schema: "{}",
		Flags: func(flags *pflag.FlagSet, c *siteConfig) {
			flags.StringVar(&c.URI, "site-uri", c.URI, "where the cloud is")
			flags.StringSliceVar(&c.Pools, "pool", c.Pools, "pools")
		},
		New: func(_ context.Context, c siteConfig, _ *zap.Logger) (driver.Driver, func() error, error) {
			s.mu.Lock()
			defer s.mu.Unlock()

			s.opened = append(s.opened, c.URI)

			return &siteDriver{site: s, uri: c.URI}, func() error {
				s.mu.Lock()
				defer s.mu.Unlock()

				s.closed = append(s.closed, c.URI)

				return nil
			}, nil
		},
	}
}

// configure does what an administrator does: it labels the provider and sets the annotation, or takes it away.
func (b *bench) configure(text string) {
	_, err := b.st.UpdateWithConflicts(b.ctx, infra.NewProvider("site").Metadata(), func(r resource.Resource) error {
		r.Metadata().Labels().Set(omni.LabelInfraProviderID, "site")

		if text == "" {
			r.Metadata().Annotations().Delete(ConfigAnnotation)
		} else {
			r.Metadata().Annotations().Set(ConfigAnnotation, text)
		}

		return nil
	})
	require.NoError(b.t, err)
	b.wait(time.Second)
}

func (b *bench) unlabel() {
	_, err := b.st.UpdateWithConflicts(b.ctx, infra.NewProvider("site").Metadata(), func(r resource.Resource) error {
		r.Metadata().Labels().Delete(omni.LabelInfraProviderID)

		return nil
	})
	require.NoError(b.t, err)
}

func (b *bench) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// health is what Omni shows of the provider's health.
func (b *bench) health() string {
	res, err := b.st.Get(b.ctx, infra.NewProviderHealthStatus("site").Metadata())
	require.NoError(b.t, err)

	return res.(*infra.ProviderHealthStatus).TypedSpec().Value.Error //nolint:forcetypeassert // read by its id
}

func (b *bench) name() string {
	res, err := b.st.Get(b.ctx, infra.NewProviderStatus("site").Metadata())
	require.NoError(b.t, err)

	return res.(*infra.ProviderStatus).TypedSpec().Value.Name //nolint:forcetypeassert // read by its id
}

func (b *bench) healthz() (int, string) {
	recorder := httptest.NewRecorder()
	b.sup.status.handler().ServeHTTP(recorder, httptest.NewRequestWithContext(b.ctx, http.MethodGet, "/healthz", nil))

	return recorder.Code, recorder.Body.String()
}

// changed returns what the log says has changed, oldest first.
func (b *bench) changed() []string {
	var all []string

	for _, entry := range b.logs.FilterMessage("configuration has changed").All() {
		for _, name := range entry.ContextMap()["changed"].([]any) { //nolint:forcetypeassert // a list of names
			all = append(all, name.(string)) //nolint:forcetypeassert
		}
	}

	return all
}

func (b *bench) connections() (opened, closed []string) {
	b.site.mu.Lock()
	defer b.site.mu.Unlock()

	return slices.Clone(b.site.opened), slices.Clone(b.site.closed)
}
