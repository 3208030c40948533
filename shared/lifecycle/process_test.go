package lifecycle_test

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"go.uber.org/zap/zaptest/observer"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/lifecycle"
)

// process is one of several processes with the same provider id: it has a line to Omni and a seat at the cloud of its own.
type process struct {
	w      *world
	seat   *seat
	line   *line
	logs   *observer.ObservedLogs
	cancel context.CancelFunc
	done   chan error
}

// process starts another process beside the world's own, which the caller has to have stopped.
func (w *world) process(name string, change ...func(*lifecycle.Config)) *process {
	p, cfg := w.newProcess(name, change...)

	provider, err := lifecycle.New(cfg)
	require.NoError(w.t, err)

	var ctx context.Context

	ctx, p.cancel = context.WithCancel(w.ctx)

	go func() { p.done <- provider.Run(ctx, p.line) }()

	return p
}

func (w *world) newProcess(name string, change ...func(*lifecycle.Config)) (*process, lifecycle.Config) {
	core, logs := observer.New(zap.InfoLevel)
	p := &process{w: w, seat: &seat{cloud: w.cloud}, line: &line{State: w.st, w: w, open: make(chan struct{})}, logs: logs, done: make(chan error, 1)}
	close(p.line.open)

	cfg := lifecycle.Config{
		ID: providerID, Driver: p.seat, Schema: "{}", Holder: name,
		Logger: zaptest.NewLogger(w.t).Named(name).WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewTee(c, core) })),
	}
	for _, f := range change {
		f(&cfg)
	}

	return p, cfg
}

// stop ends the process in order.
func (p *process) stop() {
	p.cancel()
	require.NoError(p.w.t, <-p.done)
}

// kill ends the process as a crash does: nothing that it has not said yet reaches Omni.
func (p *process) kill() {
	p.line.set("", true)
	p.stop()
}

// seat is the cloud as one process sees it. It notes when that process changed something.
type seat struct {
	*cloud
	// phases is how many times each plan's phases are run one after another; once when it is 0.
	phases int

	mu      sync.Mutex
	changed []time.Time
}

func (s *seat) note() {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.changed = append(s.changed, time.Now())
}

// times returns when the process changed the cloud.
func (s *seat) times() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.Clone(s.changed)
}

func (s *seat) Plan(ctx context.Context, req driver.Request) (driver.Plan, error) {
	plan, err := s.cloud.Plan(ctx, req)
	plan.Phases = slices.Repeat(plan.Phases, max(1, s.phases))

	for i, phase := range plan.Phases {
		plan.Phases[i].Ensure = func(ctx context.Context, t driver.Task) error {
			s.note()

			return phase.Ensure(ctx, t)
		}
	}

	return plan, err
}

func (s *seat) Remove(ctx context.Context, ref driver.Ref) (bool, error) {
	s.note()

	return s.cloud.Remove(ctx, ref)
}

// line is a process's connection to Omni. While it is cut, calls hang and watches say nothing.
type line struct {
	state.State
	w *world

	mu   sync.Mutex
	open chan struct{}
	kind resource.Type // the only kind that is cut; all when it is empty
	// lost makes the answer to the next write of a kind an error, though the write is done.
	lost resource.Type
	// hides drops requests from what lists or watches say; list stands before a list, get before a get.
	hides func(id string, watch bool) bool
	list  func() error
	get   func(resource.Pointer)
}

// set cuts the line, or heals it.
func (l *line) set(kind resource.Type, cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if cut {
		l.open, l.kind = make(chan struct{}), kind
	} else {
		close(l.open)
	}
}

func (l *line) pass(ctx context.Context, kind resource.Type) error {
	l.w.cloud.sync()

	l.mu.Lock()
	open := l.open

	if l.kind != "" && l.kind != kind {
		open = nil
	}
	l.mu.Unlock()

	if open == nil {
		return ctx.Err()
	}

	select {
	case <-open:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *line) answer(kind resource.Type, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()

	if err == nil && l.lost == kind {
		l.lost = ""

		return context.DeadlineExceeded
	}

	return err
}

func (l *line) Get(ctx context.Context, p resource.Pointer, o ...state.GetOption) (resource.Resource, error) {
	if err := l.pass(ctx, p.Type()); err != nil {
		return nil, err
	}

	if l.get != nil {
		l.get(p)
	}

	return l.State.Get(ctx, p, o...)
}

func (l *line) List(ctx context.Context, kind resource.Kind, o ...state.ListOption) (resource.List, error) {
	if err := l.pass(ctx, kind.Type()); err != nil {
		return resource.List{}, err
	}

	list, err := l.State.List(ctx, kind, o...)

	if kind.Type() == infra.MachineRequestType {
		if l.list != nil {
			err = l.list()
		}

		list.Items = slices.DeleteFunc(list.Items, func(r resource.Resource) bool { return l.isHidden(r, false) })
	}

	return list, err
}

func (l *line) isHidden(r resource.Resource, watch bool) bool {
	l.w.cloud.sync()

	return l.hides != nil && r != nil && r.Metadata().Type() == infra.MachineRequestType && l.hides(r.Metadata().ID(), watch)
}

func (l *line) Create(ctx context.Context, r resource.Resource, o ...state.CreateOption) error {
	if err := l.pass(ctx, r.Metadata().Type()); err != nil {
		return err
	}

	return l.answer(r.Metadata().Type(), l.State.Create(ctx, r, o...))
}

func (l *line) Update(ctx context.Context, r resource.Resource, o ...state.UpdateOption) error {
	if err := l.pass(ctx, r.Metadata().Type()); err != nil {
		return err
	}

	// An answer that is lost tells nothing of the new version either.
	next := r.DeepCopy()

	err := l.answer(r.Metadata().Type(), l.State.Update(ctx, next, o...))
	if err == nil {
		*r.Metadata() = *next.Metadata()
	}

	return err
}

func (l *line) Destroy(ctx context.Context, p resource.Pointer, o ...state.DestroyOption) error {
	if err := l.pass(ctx, p.Type()); err != nil {
		return err
	}

	return l.State.Destroy(ctx, p, o...)
}

func (l *line) Teardown(ctx context.Context, p resource.Pointer, o ...state.TeardownOption) (bool, error) {
	if err := l.pass(ctx, p.Type()); err != nil {
		return false, err
	}

	return l.State.Teardown(ctx, p, o...)
}

func (l *line) WatchKindAggregated(ctx context.Context, kind resource.Kind, to chan<- []state.Event, o ...state.WatchKindOption) error {
	if err := l.pass(ctx, kind.Type()); err != nil {
		return err
	}

	from := make(chan []state.Event)

	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case events := <-from:
				if l.pass(ctx, kind.Type()) != nil {
					return
				}

				events = slices.DeleteFunc(events, func(e state.Event) bool { return l.isHidden(e.Resource, true) })

				select {
				case <-ctx.Done():
					return
				case to <- events:
				}
			}
		}
	}()

	return l.State.WatchKindAggregated(ctx, kind, from, o...)
}
