package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// heartbeat tells Omni that the provider lives, and what is wrong: a cloud out of reach, machines that cannot be removed.
func (p *Provider) heartbeat(ctx context.Context) {
	var last *infra.ProviderHealthStatus

	for ctx.Err() == nil {
		trouble := ""
		if err := p.Healthy(ctx); err != nil {
			trouble = err.Error()
		}

		if ctx.Err() != nil {
			return
		}

		var err error
		if last, err = p.beat(ctx, last, trouble); err != nil && ctx.Err() == nil {
			p.log.Warn("health is not reported", zap.Error(err))
		}

		sleep(ctx, p.cfg.HeartbeatInterval)
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

// Healthy returns what is wrong with the provider now, or nil. It asks the cloud.
func (p *Provider) Healthy(ctx context.Context) error {
	limit := min(p.cfg.CallTimeout, p.cfg.HeartbeatInterval)

	err := do(ctx, p, limit, "checking the cloud", p.cfg.Driver.Check)

	p.cfg.Metrics.checked(err)

	if err != nil {
		return err
	}

	return p.stuck.err()
}

// troubles are the teardowns that fail. Omni has no place for them in a request, whose status is gone by then.
type troubles struct {
	mu    sync.Mutex
	since map[string]time.Time
	errs  map[string]error
}

func (t *troubles) set(id string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()

	if t.errs == nil {
		t.errs, t.since = map[string]error{}, map[string]time.Time{}
	}

	if _, ok := t.errs[id]; !ok {
		t.since[id] = time.Now()
	}

	t.errs[id] = err
}

func (t *troubles) clear(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()

	delete(t.errs, id)
	delete(t.since, id)
}

// err sums the troubles up in one line; it names the oldest.
func (t *troubles) err() error {
	t.mu.Lock()
	defer t.mu.Unlock()

	if len(t.errs) == 0 {
		return nil
	}

	oldest := slices.MinFunc(slices.Collect(maps.Keys(t.errs)), func(a, b string) int {
		return cmp.Or(t.since[a].Compare(t.since[b]), cmp.Compare(a, b))
	})

	return fmt.Errorf("%d machines cannot be removed, %q for %s: %w", len(t.errs), oldest, time.Since(t.since[oldest]).Round(time.Second), t.errs[oldest])
}
