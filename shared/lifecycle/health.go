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
	var last *infra.ProviderHealthStatus

	// A check that hangs does not put the next report off: Omni would take the provider for dead.
	ticker := time.NewTicker(p.cfg.HeartbeatInterval)
	defer ticker.Stop()

	for ctx.Err() == nil {
		trouble := ""
		if err := p.Healthy(ctx); err != nil {
			trouble = plain(err.Error())
		}

		if ctx.Err() != nil {
			return
		}

		var err error
		if last, err = p.beat(ctx, last, trouble); err != nil && ctx.Err() == nil {
			p.log.Warn("health is not reported", zap.Error(err))
		}

		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

func (p *Provider) beat(ctx context.Context, last *infra.ProviderHealthStatus, trouble string) (*infra.ProviderHealthStatus, error) {
	owner := p.cfg.ID + ".ProviderHealthStatusController"

	next := infra.NewProviderHealthStatus(p.cfg.ID)
	if last != nil {
		next = last.DeepCopy().(*infra.ProviderHealthStatus) //nolint:forcetypeassert,errcheck // a copy
	}

	next.TypedSpec().Value.LastHeartbeatTimestamp = timestamppb.Now()
	next.TypedSpec().Value.Error = trouble

	err := p.write(ctx, func(ctx context.Context) error {
		if last == nil {
			return p.st.Create(ctx, next, state.WithCreateOwner(owner))
		}

		return p.st.Update(ctx, next, state.WithUpdateOwner(last.Metadata().Owner()))
	})
	if err == nil {
		return next, nil
	}

	if !isRace(err) {
		return last, err
	}

	// Another process wrote it, or Omni lost it in a restart.
	res, err := call(ctx, p.cfg.CallTimeout, "reading from Omni", func(ctx context.Context) (resource.Resource, error) { return p.st.Get(ctx, next.Metadata()) })
	if state.IsNotFoundError(err) {
		return p.beat(ctx, nil, trouble)
	}

	if err != nil {
		return last, err
	}

	current, ok := res.(*infra.ProviderHealthStatus)
	if !ok {
		return nil, fmt.Errorf("read provider health: got a %T", res)
	}

	current.TypedSpec().Value.LastHeartbeatTimestamp = timestamppb.Now()
	current.TypedSpec().Value.Error = trouble

	return current, p.write(ctx, func(ctx context.Context) error {
		return p.st.Update(ctx, current, state.WithUpdateOwner(current.Metadata().Owner()))
	})
}

// Healthy returns what is wrong with the provider now, or nil. It asks the cloud, unless that asks to be left alone: then the
// last answer holds.
func (p *Provider) Healthy(ctx context.Context) error {
	if p.gate.closedFor() <= 0 {
		err := do(ctx, p, min(p.cfg.CallTimeout, p.cfg.HeartbeatInterval), "checking the cloud", p.cfg.Driver.Check)
		if ctx.Err() == nil {
			p.checked.Store(&err)
			p.cfg.Metrics.checked(err)
		}
	}

	if err := p.checked.Load(); err != nil && *err != nil {
		return *err
	}

	if err := p.looks.trouble(); err != nil {
		return err
	}

	return p.stuck.err()
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
