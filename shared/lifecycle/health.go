package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// heartbeat tells Omni that the provider lives, and what is wrong: a cloud out of reach, machines that cannot be removed.
func (p *Provider) heartbeat(ctx context.Context) {
	heartbeat(ctx, p.cfg, p.st, p.lease, func(ctx context.Context) error {
		err := p.Healthy(ctx)

		if p.cfg.Trouble == nil {
			return err
		}

		switch trouble := p.cfg.Trouble(); {
		case err == nil:
			return trouble
		case trouble == nil:
			return err
		default:
			return fmt.Errorf("%w; %w", err, trouble)
		}
	})
}

// Heartbeat tells Omni in intervals that the provider lives, and what check says is wrong with it, until ctx ends. A provider
// that runs does so by itself; this is for a process that cannot run one yet and has to say why. As it would otherwise speak over a
// process that acts, it holds the provider's lease meanwhile, and waits for it first. It uses the ID, the Logger, the Holder and the
// times of cfg. Its error is Omni's refusal, as that of Run is.
func Heartbeat(ctx context.Context, cfg Config, st state.State, check func(context.Context) error) error {
	cfg.setDefaults()

	l := newLease(cfg, st)

	return l.serve(ctx, func(ctx context.Context) error {
		heartbeat(ctx, cfg, st, l, check)

		return nil
	})
}

func heartbeat(ctx context.Context, cfg Config, st state.State, l *lease, check func(context.Context) error) {
	h := heart{cfg: cfg, st: st, lease: l}

	// A check that hangs does not put the next report off: Omni would take the provider for dead.
	ticker := time.NewTicker(cfg.HeartbeatInterval)
	defer ticker.Stop()

	for ctx.Err() == nil {
		trouble := ""
		if err := check(ctx); err != nil {
			trouble = plain(err.Error())
		}

		if ctx.Err() != nil {
			return
		}

		if err := h.beat(ctx, trouble); err != nil && ctx.Err() == nil {
			cfg.Logger.Warn("health is not reported", zap.Error(err))
		}

		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// heart writes health reports.
type heart struct {
	cfg   Config
	st    state.State
	lease *lease
	// last is the report as it was last written.
	last *infra.ProviderHealthStatus
}

func (h *heart) beat(ctx context.Context, trouble string) error {
	const owner = ".ProviderHealthStatusController"

	next := infra.NewProviderHealthStatus(h.cfg.ID)
	if h.last != nil {
		next = h.last.DeepCopy().(*infra.ProviderHealthStatus) //nolint:forcetypeassert,errcheck // a copy
	}

	next.TypedSpec().Value.LastHeartbeatTimestamp = timestamppb.Now()
	next.TypedSpec().Value.Error = trouble

	err := h.write(ctx, func(ctx context.Context) error {
		if h.last == nil {
			return h.st.Create(ctx, next, state.WithCreateOwner(h.cfg.ID+owner))
		}

		return h.st.Update(ctx, next, state.WithUpdateOwner(h.last.Metadata().Owner()))
	})
	if err == nil {
		h.last = next

		return nil
	}

	if !isRace(err) {
		return err
	}

	// Another process wrote it, or Omni lost it in a restart.
	res, err := call(ctx, h.cfg.CallTimeout, "reading from Omni", func(ctx context.Context) (resource.Resource, error) { return h.st.Get(ctx, next.Metadata()) })
	if state.IsNotFoundError(err) {
		h.last = nil

		return h.beat(ctx, trouble)
	}

	if err != nil {
		return err
	}

	current, ok := res.(*infra.ProviderHealthStatus)
	if !ok {
		return fmt.Errorf("read provider health: got a %T", res)
	}

	current.TypedSpec().Value.LastHeartbeatTimestamp = timestamppb.Now()
	current.TypedSpec().Value.Error = trouble
	h.last = current

	return h.write(ctx, func(ctx context.Context) error {
		return h.st.Update(ctx, current, state.WithUpdateOwner(current.Metadata().Owner()))
	})
}

func (h *heart) write(ctx context.Context, f func(context.Context) error) error {
	return write(ctx, h.lease, h.cfg.CallTimeout, f)
}

// Healthy returns what is wrong with the provider now, or nil: a cloud out of reach, calls of the driver that do not end, a cloud
// that cannot be listed or lacks machines, machines that cannot be removed. It asks the cloud, unless that asks to be left alone:
// then the last answer holds.
//
// An error in which driver.UnseenOf finds something is that of a provider that works: some of its places are out of reach, which
// also is why machines there cannot be removed.
func (p *Provider) Healthy(ctx context.Context) error {
	if p.gate.closedFor() <= 0 {
		err := do(ctx, p, min(p.cfg.CallTimeout, p.cfg.HeartbeatInterval), "checking the cloud", p.cfg.Driver.Check)
		if ctx.Err() == nil && driver.KindOf(err) != driver.KindPending {
			p.checked.Store(&err)
			p.cfg.Metrics.checked(err)

			if placer := p.placer(); placer != nil {
				p.cfg.Metrics.places(placer.Places(), err)
			}
		}
	}

	var checked error
	if err := p.checked.Load(); err != nil {
		checked = *err
	}

	looks := p.looks.trouble()

	for _, err := range []error{checked, p.calls.err(), looks} {
		if err != nil && driver.UnseenOf(err) == nil {
			return err
		}
	}

	unseen, stuck := cmp.Or(checked, looks), p.stuck.err()
	if unseen != nil && stuck != nil {
		return fmt.Errorf("%w; %w", unseen, stuck)
	}

	return cmp.Or(unseen, stuck)
}

// stuckAfter is how long a cloud may be at work on a removal before that is a trouble.
const stuckAfter = 10 * time.Minute

// troubles are the teardowns that do not come to an end. Omni has no place for them in a request, whose status is gone by then.
type troubles struct {
	mu    sync.Mutex
	items map[string]trouble
}

type trouble struct {
	since time.Time
	err   error
}

func (t *troubles) set(id string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.items == nil {
		t.items = map[string]trouble{}
	}

	since := time.Now()
	if before, ok := t.items[id]; ok {
		since = before.since
	}

	t.items[id] = trouble{since: since, err: err}
}

// of returns what keeps a request's teardown from its end, or nil.
func (t *troubles) of(id string) error {
	t.mu.Lock()
	defer t.mu.Unlock()

	return t.items[id].err
}

func (t *troubles) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()

	t.items = nil
}

func (t *troubles) clear(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	delete(t.items, id)
}

// err sums the troubles up in one line; it names the oldest.
func (t *troubles) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()

	var ids []string

	for id, item := range t.items {
		if driver.KindOf(item.err) != driver.KindPending || time.Since(item.since) >= stuckAfter {
			ids = append(ids, id)
		}
	}

	if len(ids) == 0 {
		return nil
	}

	oldest := slices.MinFunc(ids, func(a, b string) int {
		return cmp.Or(t.items[a].since.Compare(t.items[b].since), cmp.Compare(a, b))
	})

	return fmt.Errorf("machines that cannot be removed: %d; %q for %s: %w",
		len(ids), oldest, time.Since(t.items[oldest].since).Round(time.Second), t.items[oldest].err)
}
